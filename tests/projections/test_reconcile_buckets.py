"""Marks of settled replies in Redis that are lost, forged or not there yet, held to the records in the log."""

import pytest
from msgspec.structs import replace

from projections.limits.commands import MARGIN_MS, Owners
from projections.reconcile.buckets import Buckets, Remade
from projections.reconcile.reconcile import Options, reconcile
from projections.redis.client import Store
from schemas.tiers.library import marker_keys
from streams.log.encoding import decoded
from streams.log.log import BEGINNING
from streams.log.memory import MemoryLog
from streams.log.steps import Arrived, Output, Partition, Rewind
from tests.projections.test_limits_step import HOLDER, RULES, SLOW, TIERS, World, ended, functions, left, now_ms, slow
from tests.projections.test_rebuild import Deployment

pytestmark = pytest.mark.servers

USAGE = Partition("usage", 0)


class Logged(World):
    """The limits' step on a log that a check can read too."""

    def __init__(self, url):
        self.log = MemoryLog({"usage": 1})
        self.writer = self.log.writer("test")
        self.reader = self.log.reader([USAGE], BEGINNING)
        super().__init__(url)
        self.buckets = Buckets(self.log, Store(url), self.namespace, Owners(self.accounts, TIERS))

    def append(self, *events, number=0):
        super().append(*events, number=number)
        for event in events:
            self.writer.append(Output(event=event))

    def turn(self, count=1_000, at_ms=None):
        del count
        self.now_ms = at_ms or max(getattr(self, "now_ms", 0) + 1_100, now_ms())
        records = self.reader.poll(0)
        self.step.submit([Arrived(record, decoded(record)) for record in records], self.now_ms)
        try:
            self.step.poll(self.now_ms)
        except Rewind as rewind:
            self.reader.seek(rewind.offsets)

    def mark(self, reply_id):
        account_key, _ = HOLDER.keys(self.namespace)
        return account_key + b":done:" + reply_id.encode()

    def found(self):
        return [
            (one.kind, one.event.reply_id, *((c.live, c.right) for c in one.changes))
            for one in self.buckets.wrong(self.buckets.reached(), now_ms())
        ]

    def repair(self):
        reached = self.buckets.reached()
        self.buckets.repair(reached, list(self.buckets.wrong(reached, now_ms())), now_ms())


@pytest.fixture
def world(servers, monkeypatch):
    functions.load(servers.redis_url)
    monkeypatch.setitem(TIERS, "free", SLOW)
    made = Logged(servers.redis_url)
    made.finish()
    yield made
    for key in made.redis.scan_iter(f"{made.namespace}:*", count=1000):
        made.redis.delete(key)


def test_what_is_settled_as_the_log_says_has_no_differences(world):
    slow(world, "rep_1")
    world.append(*(ended(f"rep_{n}", n) for n in range(1, 2_500)), ended("rep_7", 999))
    world.finish()
    assert world.found() == []
    assert world.buckets.looked_at == 2_499


def test_a_mark_that_is_lost_is_shown_and_settled_again(world):
    world.append(ended("rep_1", 60), ended("rep_2", 40))
    world.finish()
    assert left(world) == 900
    world.redis.delete(world.mark("rep_1"))
    assert world.found() == [("not_settled", "rep_1")]
    world.repair()
    assert world.found() == []
    assert world.redis.get(world.mark("rep_1")) == b"60"


def test_a_reservation_that_was_never_settled_is_given_back(world):
    world.append(ended("rep_1", 60))
    world.finish()
    world.redis.delete(world.mark("rep_1"))
    slow(world, "rep_1")
    before = left(world)
    assert world.look(rules=SLOW).standing.running == 1
    world.repair()
    assert world.look(rules=SLOW).standing.running == 0
    assert left(world) > before


@pytest.mark.parametrize(("forged", "charged"), [(10, 10), (500, 500), ("x", 0)])
def test_a_reply_that_was_settled_with_other_tokens_is_shown_and_the_difference_charged(world, forged, charged):
    world.append(ended("rep_1", 60))
    world.finish()
    assert left(world) == 940
    world.redis.set(world.mark("rep_1"), forged, keepttl=True)
    assert world.found() == [("differs", "rep_1", (str(forged), "60"))]
    world.repair()
    assert world.found() == []
    assert left(world) == min(940 + charged - 60, 1_000)
    assert world.redis.ttl(world.mark("rep_1")) > 0


def test_what_is_not_settled_yet_or_too_old_to_count_is_no_difference(world):
    world.append(ended("rep_1"))
    world.finish()
    world.append(ended("rep_2"))
    assert world.found() == []
    world.append(ended("rep_3", ago_ms=MARGIN_MS + 1_000), ended("rep_4", ago_ms=MARGIN_MS - 60_000))
    world.finish()
    for reply_id in ("rep_3", "rep_4"):
        world.redis.delete(world.mark(reply_id))
    assert world.found() == [("not_settled", "rep_4")]


def test_an_account_whose_window_has_grown_is_not_charged_again(world):
    TIERS["free"] = RULES
    world.append(ended("rep_1", 60))
    world.finish()
    TIERS["free"] = SLOW
    assert world.redis.ttl(world.mark("rep_1")) > MARGIN_MS / 1_000, "kept for longer than it is looked at"
    assert world.found() == []


def test_a_marker_that_is_ahead_of_the_log_ends_the_look_at_its_end(world):
    world.append(ended("rep_1"))
    world.finish()
    world.redis.hset(marker_keys(world.namespace)[0], "0", 1_000)
    assert world.found() == []
    assert world.buckets.looked_at == 1


def test_a_loss_of_the_store_while_it_is_looked_at_ends_the_look(world):
    world.append(ended("rep_1"))
    world.finish()
    reached = world.buckets.reached()
    for key in world.redis.scan_iter(f"{world.namespace}:*"):
        world.redis.delete(key)
    with pytest.raises(Remade):
        list(world.buckets.wrong(reached, now_ms()))
    with pytest.raises(Remade):
        world.buckets.repair(reached, [], now_ms())
    world.finish()
    with pytest.raises(Remade):
        world.buckets.repair(reached, [], now_ms())
    assert world.found() == []


def test_a_store_that_is_being_made_again_is_not_judged(world):
    world.append(ended("rep_1"))
    world.finish()
    world.redis.delete(marker_keys(world.namespace)[1])
    with pytest.raises(Remade):
        world.buckets.reached()
    world.redis.delete(marker_keys(world.namespace)[0])
    with pytest.raises(Remade):
        world.buckets.reached()


def test_reconciliation_shows_and_repairs_them_and_stands_without_redis(world, servers):
    deployed = Deployment(servers.clickhouse_url)
    try:
        records = [replace(ended(f"rep_{n}", n), usage_day="2025-11-29") for n in (1, 2)]
        deployed.append(*records)
        deployed.project()
        world.append(*records)
        world.finish()
        world.redis.delete(world.mark("rep_2"))

        def run(buckets=world.buckets, *, repair=False):
            found = []
            options = Options(wait_s=0.0, replies=False, repair=repair)
            return reconcile(deployed.log, deployed.connect, options, found.append, buckets=buckets), found

        outcome, found = run()
        assert [(one.table, one.kind, one.key) for one in found] == [("buckets", "not_settled", ("a", "rep_2"))]
        assert (outcome.found, outcome.left, outcome.settled, outcome.buckets_compared) == (1, 1, 2, True)
        outcome, _ = run(repair=True)
        assert (outcome.found, outcome.left) == (1, 0)
        nobody = Store("redis://127.0.0.1:1/0", timeout_s=1.0)
        outcome, found = run(Buckets(deployed.log, nobody, "none", Owners(world.accounts, TIERS)))
        assert (found, outcome.left, outcome.buckets_compared) == ([], 0, False)
        assert "127.0.0.1:1" in outcome.buckets_trouble
        no_address = Store("http://127.0.0.1:1")
        outcome, _ = run(Buckets(deployed.log, no_address, "none", Owners(world.accounts, TIERS)))
        assert "redis://127.0.0.1:6379/0" in outcome.buckets_trouble
    finally:
        deployed.database.command(f"DROP DATABASE {deployed.name}")
