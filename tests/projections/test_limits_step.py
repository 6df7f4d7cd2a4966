"""The limits' projection on the real server: each reply settled once, whatever comes twice, late, or not at all."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from redis import Redis

from api.limits import Granted, Leases, Looked, bucket_words, confirm_words, looked, outcome, reserve_words
from api.limits_twin import LimitsTwin, Settled
from projections.limits.commands import MARGIN_MS, Owners, charged_tokens
from projections.limits.step import LimitsStep, Span
from projections.redis import functions
from projections.redis.client import Store
from schemas.account import Accounts, rules_for
from schemas.events import AccountOpened, LimitsChanged, UsageAdjusted, UsageRecorded
from schemas.examples import EXAMPLES
from schemas.tiers import DEFAULT_TIERS, MICRO, Holder, all_buckets
from schemas.tiers.library import CONFIRM, LOOK, RESERVE, marker_keys
from streams.log.steps import Partition, Rewind
from tests.api.demands import RULES, demand
from tests.projections.logs import arrived, fresh_namespace
from tests.projections.valkey import Valkey

pytestmark = pytest.mark.servers

HOLDER = Holder("a")
TIERS = DEFAULT_TIERS | {"free": RULES}
RECORD = EXAMPLES[UsageRecorded]


def now_ms():
    return time.time_ns() // 1_000_000


def ended(reply_id="rep_1", tokens=60, ago_ms=0, **members):
    """A reply's record, of so many tokens of output."""
    nothing = {
        "uncached_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_write_input_tokens": 0,
        "cache_write_long_input_tokens": 0,
    }
    base = {"account_id": "a", "tier": "free", "record_kind": "reply", "conversation_id": "conv", "model": "m"}
    told = {"pool": "p", "reply_id": reply_id, "output_tokens": tokens, "ended_at_ms": now_ms() - ago_ms}
    return replace(RECORD, **{**nothing, **base, **told, **members})


class World:
    """A log of usage, the step that reads it, and the API's side of the buckets."""

    def __init__(self, url, partitions=1):
        self.url = url
        self.redis = Redis.from_url(url)
        self.namespace = fresh_namespace()
        self.logs = {Partition("usage", number): [] for number in range(partitions)}
        self.accounts = Accounts()
        self.begin()

    def begin(self, starts=None):
        """A process begins, at its committed offsets."""
        self.positions = {partition: (starts or {}).get(partition, 0) for partition in self.logs}
        self.step = LimitsStep(Store(self.url), self.namespace, Owners(self.accounts, TIERS), self.span, len(self.logs))
        self.step.assigned(self.positions)

    def span(self, partition, since_ms):
        events = self.logs[partition]
        young = [place for place, event in enumerate(events) if getattr(event, "ended_at_ms", since_ms) >= since_ms]
        return Span(young[0] if young else len(events), len(events))

    def append(self, *events, number=0):
        self.logs[Partition("usage", number)] += events

    def turn(self, count=1_000, at_ms=None):
        self.now_ms = at_ms or max(getattr(self, "now_ms", 0) + 1_100, now_ms())
        try:
            for partition, position in self.positions.items():
                batch = self.logs[partition][position : position + count]
                self.positions[partition] = position + len(batch)
                self.step.submit(arrived(batch, partition, position), self.now_ms)
            self.step.poll(self.now_ms)
        except Rewind as rewind:
            self.positions |= rewind.offsets

    def finish(self):
        for _ in range(12):
            self.turn()
        assert not self.step.trouble

    def reserve(self, reply_id="rep_1", account_id="a", **members):
        asked = demand(reply_id, account_id, **members)
        answer = self.redis.fcall(RESERVE.decode(), 2, *asked.holder.keys(self.namespace), *reserve_words(asked))
        return outcome(answer, asked)

    def confirm(self, reply_id="rep_1", **members):
        asked = demand(reply_id, **members)
        self.redis.fcall(CONFIRM.decode(), 2, *asked.holder.keys(self.namespace), *confirm_words(asked))

    def look(self, holder=HOLDER, rules=RULES) -> Looked:
        buckets = all_buckets(rules, holder)
        answer = self.redis.fcall(LOOK.decode(), 2, *holder.keys(self.namespace), *bucket_words(buckets))
        return looked(answer, buckets, rules.running_max)

    def tokens(self):
        return self.look().standing.levels[1].micro / 1e6

    def whole(self):
        return self.redis.get(marker_keys(self.namespace)[1])


SLOW = replace(RULES, tokens_per_minute=1)
"""Of these nothing comes back within a test."""


@pytest.fixture
def world(servers, monkeypatch):
    functions.load(servers.redis_url)
    monkeypatch.setitem(TIERS, "free", SLOW)
    made = World(servers.redis_url)
    yield made
    for key in made.redis.scan_iter(f"{made.namespace}:*", count=1000):
        made.redis.delete(key)


@pytest.fixture
def valkey(tmp_path, monkeypatch):
    monkeypatch.setitem(TIERS, "free", SLOW)
    server = Valkey(tmp_path)
    server.start()
    yield server
    server.kill()


def slow(world, reply_id="rep_1", **members):
    return world.reserve(reply_id, rules=SLOW, **members)


def left(world):
    """Tokens in the bucket, refill aside."""
    return round(world.look(rules=SLOW).standing.levels[1].micro / 1e6)


def test_what_a_reply_did_not_use_comes_back_once_however_often_its_record_comes(world):
    slow(world)
    assert left(world) == 900
    world.append(ended(), ended(), ended(revision=2))
    world.finish()
    world.begin()
    world.finish()
    assert left(world) == 940
    assert world.look().standing.running == 0
    assert world.step.counts.settled == 0


def test_a_send_that_is_repeated_when_its_reply_is_settled_takes_nothing(world):
    slow(world)
    world.append(ended())
    world.finish()
    again = slow(world)
    assert (type(again), again.fresh) == (Granted, False)
    world.confirm(rules=SLOW)
    assert world.look().standing.running == 0
    assert left(world) == 940
    assert isinstance(slow(world, output_tokens=100_000_000, context_tokens=100_000_000), Granted), (
        "also where it is denied"
    )


def test_more_than_was_reserved_is_charged_and_may_leave_a_debt(world):
    slow(world)
    world.append(ended(tokens=1_200))
    world.finish()
    assert left(world) == -200


def test_cached_reads_are_free_and_writes_count(world):
    slow(world)
    record = ended(
        tokens=1,
        uncached_input_tokens=2,
        cache_read_input_tokens=500,
        cache_write_input_tokens=4,
        cache_write_long_input_tokens=8,
    )
    assert charged_tokens(record) == 15
    world.append(record)
    world.finish()
    assert left(world) == 985


@pytest.mark.parametrize("status", ["completed", "length", "cancelled", "refused", "failed"])
def test_whatever_became_of_a_reply_its_share_is_free(world, status):
    slow(world)
    world.append(ended(tokens=0, status=status))
    world.finish()
    assert left(world) == 1_000
    assert world.look().standing.running == 0


def test_attempts_and_corrections_say_nothing_about_buckets(world):
    slow(world)
    correction = UsageAdjusted(
        account_id="a",
        reply_id="rep_1",
        record_kind="refund-1",
        revision=1,
        usage_day="2026-11-30",
        cost="-1",
        currency="USD",
        reason="x",
        adjusted_at_ms=1,
    )
    world.append(ended(record_kind="attempt-1"), correction)
    world.finish()
    assert left(world) == 900


def test_a_reply_whose_lease_is_over_is_charged_when_it_ends(world):
    leases = demand().leases
    slow(world, leases=replace(leases, door_ms=1))
    until = time.monotonic() + 10
    while world.look().standing.running and time.monotonic() < until:
        pass
    assert left(world) == 1_000
    world.append(ended())
    world.finish()
    assert left(world) == 940
    assert world.step.counts.late == 1


def test_a_record_that_is_older_than_the_window_and_was_never_reserved_charges_nothing(world, monkeypatch):
    monkeypatch.setitem(TIERS, "free", replace(SLOW, tokens_per_minute=1_000))
    window_ms = 60_000
    world.finish()
    world.append(ended("rep_1", ago_ms=window_ms + MARGIN_MS + 5_000), ended("rep_2", ago_ms=window_ms))
    world.finish()
    assert world.step.counts.settled == 1


def test_an_organisation_shares_one_bucket(world, monkeypatch):
    rules = replace(SLOW, organisation_tokens_per_minute=500)
    monkeypatch.setitem(TIERS, "free", rules)
    for account_id in ("a", "b"):
        opened = AccountOpened(account_id=account_id, name="x", tier="free", opened_at_ms=1, organisation_id="o")
        world.accounts.apply(opened.key(), opened)
    members = {"organisation_id": "o", "rules": rules, "output_tokens": 190}
    assert world.reserve("rep_1", "a", **members).standing.levels[2].available in (300, 301)
    assert world.reserve("rep_2", "b", **members).standing.levels[2].available in (100, 101, 102)
    world.append(ended("rep_1", 0), ended("rep_2", 0, account_id="b"))
    world.finish()
    looked_at = world.look(Holder("b", "o"), rules)
    assert [level.available for level in looked_at.standing.levels[1:]] == [1_000, 500]


def test_accounts_of_different_tiers_share_the_organisations_bucket_and_none_lowers_it(world, monkeypatch):
    tiers = {"small": 1_000, "large": 900_000, "none": None}
    for tier, shared in tiers.items():
        monkeypatch.setitem(TIERS, tier, replace(SLOW, burst_tokens=900_000, organisation_tokens_per_minute=shared))
        opened = AccountOpened(account_id=tier, name="x", tier=tier, opened_at_ms=1, organisation_id="o")
        world.accounts.apply(opened.key(), opened)
    rules = {tier: rules_for(world.accounts, world.accounts.account(tier), TIERS) for tier in tiers}
    now_us = time.time_ns() // 1_000
    twin = LimitsTwin()
    took = {"large": 700_000, "small": 10, "none": 100_000}
    for tier, tokens in took.items():
        asked = {"rules": rules[tier], "organisation_id": "o", "prompt_tokens": 0, "output_tokens": tokens}
        assert isinstance(world.reserve(f"rep_{tier}", tier, context_tokens=10**6, **asked), Granted)
        twin.reserve(demand(f"rep_{tier}", tier, context_tokens=10**6, **asked), now_us)
    left = 900_000 - sum(took.values())
    for tier in tiers:
        level = world.look(Holder(tier, "o"), rules[tier]).standing.level("organisation")
        assert level.bucket.capacity == 900_000
        assert left <= level.available < left + 15_000 * (1 + time.time() - now_us / 1e6)
        assert twin.look(Holder(tier, "o"), (level.bucket,), now_us)[2] == left * MICRO
    world.append(*(ended(f"rep_{tier}", 0, account_id=tier, tier=tier) for tier in ("small", "large")))
    world.append(ended("never_reserved", 50_000, account_id="none", tier="none"))
    world.finish()
    level = world.look(Holder("small", "o"), rules["small"]).standing.level("organisation")
    assert left + 700_010 - 50_000 <= level.available <= 900_000


def test_the_accounts_own_limits_count(world):
    opened = AccountOpened(account_id="a", name="x", tier="free", opened_at_ms=1)
    own = LimitsChanged(account_id="a", changed_at_ms=2, burst_tokens=100, tokens_per_minute=1)
    for event in (opened, own):
        world.accounts.apply(event.key(), event)
    world.append(ended(tokens=60))
    world.finish()
    assert round(world.look(rules=replace(SLOW, burst_tokens=100)).standing.levels[1].micro / 1e6) == 40


def test_the_conversation_is_weighed_by_what_its_newest_reply_left(world):
    said = HOLDER.keys(world.namespace)[0] + b":said:conv"
    slow(world)
    world.confirm(rules=SLOW)
    assert world.redis.hmget(said, "last", "prompt", "output") == [b"rep_1", b"10", b"90"]
    world.append(ended(tokens=30, uncached_input_tokens=12, cache_read_input_tokens=100))
    world.finish()
    assert world.redis.hmget(said, "last", "prompt", "output", "most") == [b"rep_1", b"112", b"30", b"142"]
    next_one = slow(world, "rep_2", before="last")
    assert left(world) == 1_000 - 42 - 242
    assert next_one.fresh
    world.confirm("rep_2", rules=SLOW, before="last")
    world.append(ended("rep_2", tokens=0, status="refused"))
    world.finish()
    assert world.redis.hmget(said, "last", "prompt", "output") == [b"rep_2", b"152", b"0"]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_killed_replayed_and_reordered_between_partitions_the_buckets_are_the_same(world, data):
    world.namespace = fresh_namespace()
    world.logs = {Partition("usage", number): [] for number in range(2)}
    replies = [f"rep_{n}" for n in range(6)]
    used = {reply: data.draw(st.integers(0, 150)) for reply in replies}
    for reply in replies:
        slow(world, reply)
    for reply in data.draw(st.permutations(replies + data.draw(st.lists(st.sampled_from(replies), max_size=6)))):
        world.append(ended(reply, used[reply]), number=int(reply[-1]) % 2)
    world.begin()
    for count, kill in data.draw(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=10)):
        world.turn(count)
        if kill:
            world.begin(dict(world.step.settled()))
    world.finish()
    assert left(world) == 1_000 - sum(used.values())
    assert world.look().standing.running == 0
    assert world.whole()


def test_buckets_are_whole_only_when_every_partition_has_been_made_again(world):
    world.logs = {Partition("usage", number): [] for number in range(3)}
    world.begin()
    world.step.revoked([Partition("usage", 2)])
    del world.positions[Partition("usage", 2)]
    for _ in range(6):
        world.turn()
    assert world.whole() is None
    world.positions[Partition("usage", 2)] = 0
    world.step.assigned({Partition("usage", 2): 0})
    for _ in range(6):
        world.turn()
    assert world.whole() is not None


@pytest.mark.parametrize("restart", [False, True], ids=["flushed", "restarted empty"])
def test_a_lost_redis_is_noticed_and_its_buckets_are_made_again_from_usage(valkey, restart):
    functions.load(valkey.url)
    world = World(valkey.url)
    world.append(ended("old", 500, ago_ms=3_600_000 * 40), *(ended(f"rep_{n}", 100) for n in range(3)))
    world.finish()
    assert left(world) == 1_000 - 300, "the old one is beyond the window"
    whole = world.whole()
    slow(world, "running")
    if restart:
        valkey.kill()
        world.turn()
        assert world.step.trouble
        valkey.start()
    else:
        world.redis.flushall()
    assert world.whole() is None
    world.append(ended("running", 50))
    for _ in range(14):
        world.turn(1)
    world.finish()
    assert left(world) == 1_000 - 350
    assert world.whole() not in (None, whole)
    assert world.step.counts.rebuilds >= 2


def flush(world):
    for key in world.redis.scan_iter(f"{world.namespace}:*", count=1_000):
        world.redis.delete(key)


@pytest.mark.parametrize("touched", [False, True], ids=["untouched", "sent to meanwhile"])
def test_what_came_back_before_the_loss_is_there_after_it(world, monkeypatch, touched):
    """60 requests and 6,000 tokens a minute; 66 requests five minutes ago, as fast as may be, and 3 lately."""
    rules = replace(RULES, burst_tokens=6_000)
    monkeypatch.setitem(TIERS, "free", rules)
    world.append(*(ended(f"old_{n}", 90, ago_ms=310_000 - n * 100) for n in range(66)))
    world.append(*(ended(f"new_{n}", 90, ago_ms=30_000) for n in range(3)))
    world.finish()
    flush(world)
    if touched:
        world.reserve("rep_1", rules=rules)
    world.finish()
    assert world.step.counts.rebuilds >= 2
    requests, tokens = world.look(rules=rules).standing.levels
    assert requests.available >= 59
    assert tokens.available >= 5_900
    assert world.whole()


def test_what_was_used_just_before_the_loss_is_not_there_after_it(world, monkeypatch):
    rules = replace(RULES, burst_tokens=6_000)
    monkeypatch.setitem(TIERS, "free", rules)
    world.append(*(ended(f"rep_{n}", 100, ago_ms=200 - n) for n in range(58)))
    world.finish()
    flush(world)
    began = time.time()
    world.reserve("running", rules=rules)
    world.finish()
    requests, tokens = world.look(rules=rules).standing.levels
    most = time.time() - began + 1
    assert 1 <= requests.available + 1 <= 2 + most
    assert 100 <= tokens.available + 1 <= 100 + most * 100


RATES = replace(RULES, requests_per_minute=60, burst_tokens=2_000, organisation_tokens_per_minute=4_000)
MEMBERS = (Holder("a", "o"), Holder("b", "o"))
HISTORIES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 30_000) | st.integers(0, 30_000) | st.integers(0, 400_000),
        st.sampled_from([50, 50, 1_000, 60_000]),
        st.sampled_from([60, 300, 800]),
        st.sampled_from([0.0, 1.0, 1.0, 0.5]),
    ),
    min_size=12,
    max_size=40,
)
"""Of replies: whose, how long ago it came, how long it ran (ms), what it reserved, and the share that it used."""


def never_lost(history, now_us):
    """The buckets that were never lost, as the twin keeps them; and the records of what was granted."""
    twin, ends, records = LimitsTwin(), [], []
    moments = []
    for number, (whose, ago_ms, ran_ms, tokens, share) in enumerate(history):
        came_us = now_us - max(ago_ms, ran_ms) * 1_000
        moments.append((came_us, 0, number))
        ends.append((whose, came_us + ran_ms * 1_000, tokens, int(tokens * share)))
        moments.append((ends[-1][1], 1, number))
    granted = set()
    for at_us, kind, number in sorted(moments):
        whose, ended_us, tokens, used = ends[number]
        holder, reply_id = MEMBERS[whose], f"rep_{number}"
        asked = demand(
            reply_id,
            holder.account_id,
            RATES,
            organisation_id="o",
            prompt_tokens=0,
            output_tokens=tokens,
            leases=Leases(door_ms=10**9, reply_ms=10**9),
        )
        if kind == 0:
            if isinstance(outcome(twin.reserve(asked, at_us), asked), Granted):
                granted.add(number)
        elif number in granted:
            end = Settled(
                reply_id=reply_id,
                conversation_id="conv",
                done_ms=10**9,
                tokens=used,
                input_tokens=0,
                output_tokens=used,
                buckets=asked.buckets,
            )
            twin.settle(holder, end, at_us)
            record = ended(reply_id, used, account_id=holder.account_id)
            records.append((whose, replace(record, ended_at_ms=-(-ended_us // 1000))))
    return twin, records


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=HISTORIES, touched=st.booleans())
def test_buckets_made_again_hold_what_they_held_where_nothing_was_lost_or_less(world, monkeypatch, history, touched):
    monkeypatch.setitem(TIERS, "free", RATES)
    world.namespace = fresh_namespace()
    world.logs = {Partition("usage", number): [] for number in range(2)}
    for holder in MEMBERS:
        opened = AccountOpened(account_id=holder.account_id, name="x", tier="free", opened_at_ms=1, organisation_id="o")
        world.accounts.apply(opened.key(), opened)
    world.now_ms = 0
    now_us = time.time_ns() // 1_000
    twin, records = never_lost(history, now_us)
    for whose, record in records:
        world.append(record, number=whose)
    world.begin()
    tokens = 0
    if touched and isinstance(world.reserve("late", "a", organisation_id="o", rules=RATES), Granted):
        tokens = 100
    world.finish()
    assert world.whole()
    for holder in MEMBERS:
        buckets = all_buckets(RATES, holder)
        real = world.look(holder, RATES).standing.levels
        then_us = time.time_ns() // 1_000
        held = twin.look(holder, buckets, then_us)[2::2]
        for level, micro in zip(real, held, strict=True):
            taken = {"requests": 1 if tokens and holder.account_id == "a" else 0, "organisation": tokens}
            less = taken.get(level.bucket.name, tokens if holder.account_id == "a" else 0)
            came_back = (then_us - now_us) * level.bucket.per_minute // 60
            assert level.micro <= micro + 1_000 - max(less * MICRO - came_back, 0), level
            full = not any(then_us // 1000 - record.ended_at_ms < 130_000 for _, record in records)
            assert not full or level.available >= level.bucket.capacity - less, level


def test_buckets_made_again_never_hold_less_than_nothing(valkey):
    functions.load(valkey.url)
    world = World(valkey.url)
    world.append(*(ended(f"rep_{n}", 400) for n in range(5)))
    world.finish()
    assert left(world) == 0


def test_a_store_that_came_back_with_older_data_is_noticed(valkey):
    functions.load(valkey.url)
    world = World(valkey.url)
    world.append(ended("rep_1", 100))
    world.finish()
    dump = {key: world.redis.dump(key) for key in world.redis.scan_iter("*")}
    world.append(ended("rep_2", 100))
    world.finish()
    assert left(world) == 800
    for key in world.redis.scan_iter("*"):
        world.redis.delete(key)
    for key, value in dump.items():
        world.redis.restore(key, 0, value)
    assert left(world) == 900
    world.finish()
    assert left(world) == 800


def test_a_process_that_begins_after_its_marker_reads_again_from_there(world):
    world.append(*(ended(f"rep_{n}", 10) for n in range(4)))
    world.finish()
    marker = marker_keys(world.namespace)[0]
    world.redis.hset(marker, "0", 2)
    world.begin({Partition("usage", 0): 4})
    world.turn()
    assert world.positions[Partition("usage", 0)] == 2
    world.finish()
    assert left(world) == 960
