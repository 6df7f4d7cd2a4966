"""Several API processes and a projection on one real server: what is granted, whoever asks, settles, dies or loses."""

import asyncio
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace
from redis import Redis

from api.limits import Denied, Granted, Leases, looked, outcome, reserve_words
from api.limits import bucket_words as words_of
from api.metrics import Metrics
from api.redis_store import RedisStore
from infra.accounts import open_account
from projections.limits.commands import Owners
from projections.limits.step import LimitsStep, Span
from projections.redis import functions
from projections.redis.client import Store
from schemas.account import Accounts
from schemas.events import LimitsChanged
from schemas.tiers import DEFAULT_TIERS, MICRO, Holder, all_buckets
from schemas.tiers.library import LOOK, RELEASE, RESERVE, marker_keys
from streams.log.kafka.log import KafkaLog
from streams.log.steps import Output, Partition, Rewind
from tests.api.demands import RULES, demand
from tests.api.test_limits_twin import SHIFT
from tests.projections.logs import arrived, fresh_namespace
from tests.projections.test_limits_step import ended
from tests.projections.test_processes import Running, eventually
from tests.projections.valkey import Valkey

pytestmark = pytest.mark.servers

SLOW = replace(RULES, tokens_per_minute=1, burst_tokens=1_440, running_max=8, requests_per_minute=60_000_000)
"""Nothing comes back within a test."""
CROWD = replace(SLOW, running_max=1_000)
USAGE = Partition("usage", 0)
USED = 40
"""Of the 100 tokens that each reply reserves."""


def hammer(deployment: Deployment, who: int, pipe: Connection) -> None:
    """An API process: many sends at once; says which were granted. Then it ends those, and goes on until it is told to
    stop: a reply that is granted has ended, with its record in the log.
    """

    async def at_once(store: RedisStore, first: int, count: int) -> list[str]:
        demands = [demand(f"rep_{who}_{n}", rules=CROWD) for n in range(first, first + count)]
        answers = await asyncio.gather(*(store.enter(one, None) for one in demands))
        granted = zip(demands, answers, strict=True)
        return [one.reply_id for one, entry in granted if isinstance(entry.reserved.outcome, Granted)]

    async def work() -> None:
        store = RedisStore(deployment.redis_url, deployment.namespace, Metrics())
        log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, f"api-{who}")
        writer = log.writer("test")
        pipe.recv()
        granted, number = await at_once(store, 0, 60), 60
        pipe.send(granted)
        pipe.recv()
        ending = granted
        while not pipe.poll(0.01):
            for reply_id in ending:
                writer.append(Output(event=ended(reply_id, USED)))
            writer.flush(10)
            ending, number = await at_once(store, number, 8), number + 8
            granted += ending
        pipe.recv()
        pipe.send(granted)
        log.close()
        await store.close()

    asyncio.run(work())


def test_four_processes_at_once_are_granted_what_the_bucket_holds_and_no_more(
    provisioned: Deployment, tmp_path: Path
) -> None:
    """Four API processes and the projection, which is killed while they send and their replies end."""
    redis = Redis.from_url(provisioned.redis_url)
    keys = Holder("a").keys(provisioned.namespace)
    buckets = all_buckets(CROWD, Holder("a"))[1:]

    def look() -> tuple[int, int]:
        _, running, level, _ = redis.fcall(LOOK.decode(), 2, *keys, *words_of(buckets))
        return level // MICRO, running

    members = {"tokens_per_minute": 1, "burst_tokens": 1_440, "running_max": 1_000, "requests_per_minute": 60_000_000}
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test")
    writer = log.writer("test")
    for event in (open_account("a", "A", "free", 1), LimitsChanged(account_id="a", changed_at_ms=1, **members)):
        writer.append(Output(event=event))
    writer.flush(10)
    projection = Running("limits", provisioned.environment(), tmp_path)
    pipes, processes = [], []
    context = multiprocessing.get_context("spawn")
    try:
        eventually(lambda: redis.get(marker_keys(provisioned.namespace)[1]), "the buckets are whole")
        for who in range(4):
            here, there = context.Pipe()
            process = context.Process(target=hammer, args=(provisioned, who, there), daemon=True)
            process.start()
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            pipe.send("go")
        granted = [reply for pipe in pipes for reply in pipe.recv()]
        assert len(granted) == len(set(granted)) == 14
        assert look() == (40, 14)
        for pipe in pipes:
            pipe.send("end them and go on")
        eventually(lambda: look()[0] < 1_440 - 18 * USED, "some are settled, and others granted")
        projection.end(signal.SIGKILL)
        projection.start()
        # 34 replies of 40 leave 80, and 100 are needed.
        eventually(lambda: look() in ((80, 0), (81, 0)), "all are settled, and no more are granted")
        for pipe in pipes:
            pipe.send("stop")
        granted = [reply for pipe in pipes for reply in pipe.recv()]
        assert len(granted) == len(set(granted)) == 34
        assert look() in ((80, 0), (81, 0))
        for process in processes:
            process.join()
    finally:
        projection.end(signal.SIGKILL)
        for process in processes:
            process.kill()
        log.close()


LEASE_MS = 60_000
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


class Limits(RuleBasedStateMachine):
    """API processes that reserve, release or die; replies that use more than they reserved; a projection that settles,
    is killed and replays; leases that end; a Redis that is flushed.

    The model: tokens that are held by reservations that stand, and tokens that settled replies used. With what is in
    the bucket they are its capacity, whatever happened (and a little refill). What may be there besides is a debt that
    a loss forgave: of what was used and never granted.
    """

    url: str
    leases = Leases(door_ms=LEASE_MS, reply_ms=LEASE_MS)

    def __init__(self) -> None:
        super().__init__()
        self.redis = Redis.from_url(self.url)
        self.namespace = fresh_namespace()
        self.log: list[Any] = []
        self.reserved: dict[str, int] = {}
        """Tokens that are held, by reply."""
        self.running: set[str] = set()
        """Replies that were granted and have not ended, whatever became of what they held."""
        self.ended: dict[str, int] = {}
        self.began = time.time()
        self.flushed = False
        self.overused = 0
        """Tokens that were used beyond what was held for them at that time."""
        self.number = 0
        self.begin(0)
        for _ in range(4):
            self.turn(0, kill=False)
        assert self.redis.get(marker_keys(self.namespace)[1]), "the buckets are whole"

    def begin(self, start: int) -> None:
        owners = Owners(Accounts(), DEFAULT_TIERS | {"free": SLOW})
        self.step = LimitsStep(Store(self.url), self.namespace, owners, lambda *_: Span(0, len(self.log)), 1)
        self.step.assigned({USAGE: start})
        self.at = start
        self.now_ms = time.time_ns() // 1_000_000

    @initialize(may_lose=st.booleans(), may_lapse=st.booleans())
    def choose(self, may_lose: bool, may_lapse: bool) -> None:
        """Runs without losses have books that are exact."""
        self.may_lose, self.may_lapse = may_lose, may_lapse

    @rule(tokens=st.integers(1, 900), again=st.booleans())
    def reserve(self, tokens: int, again: bool) -> None:
        if not again or not self.number:
            self.number += 1
        reply_id = f"rep_{self.number}"
        asked = demand(reply_id, rules=SLOW, prompt_tokens=0, output_tokens=tokens, leases=self.leases)
        before = self.level()
        keys = asked.holder.keys(self.namespace)
        answer = outcome(self.redis.fcall(RESERVE.decode(), 2, *keys, *reserve_words(asked)), asked)
        if isinstance(answer, Granted) and answer.fresh:
            assert reply_id not in self.reserved
            assert self.level() - before + tokens <= self.refill()
            assert before + self.refill() >= tokens
            if reply_id in self.ended:  # a client that sends again what has ended, and is not settled or lost its mark
                assert reply_id not in self.settled()
                self.redis.fcall(RELEASE.decode(), 2, *keys, reply_id)
            else:
                self.reserved[reply_id] = tokens
                self.running.add(reply_id)
        elif isinstance(answer, Denied) and answer.lacking == "running":
            assert len(self.held()) >= SLOW.running_max
        elif isinstance(answer, Denied):
            assert before < tokens

    @precondition(lambda self: self.running & set(self.reserved))
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        """Nothing comes of a send after all."""
        reply_id = data.draw(st.sampled_from(sorted(self.running & set(self.reserved))))
        assert self.redis.fcall(RELEASE.decode(), 2, *Holder("a").keys(self.namespace), reply_id) == 1
        del self.reserved[reply_id]
        self.running.discard(reply_id)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), used=st.integers(0, 1_500))
    def end(self, data: Any, used: int) -> None:
        """A reply ends; its record is in the log, perhaps twice."""
        reply_id = data.draw(st.sampled_from(sorted(self.running)))
        self.log += [ended(reply_id, used)] * data.draw(st.integers(1, 2))
        self.ended[reply_id] = used
        self.running.discard(reply_id)
        self.overused += max(used - self.reserved.get(reply_id, 0), 0)

    @precondition(lambda self: self.may_lapse and self.reserved)
    @rule()
    def lapse(self) -> None:
        """Time passes, and all leases are over: what they held is free, and replies that go on are charged later."""
        keys = list(self.redis.scan_iter(f"{self.namespace}:*", count=1_000))
        keys = [key for key in keys if b":done:" not in key and b"{limits}" not in key]
        if keys:
            self.redis.eval(SHIFT, len(keys), *keys, (LEASE_MS + 1) * 1_000)
        self.began -= LEASE_MS / 1_000
        self.overused += sum(min(self.ended.get(one, 0), held) for one, held in self.reserved.items())
        self.reserved.clear()
        self.level()
        assert not self.held()

    @rule(count=st.integers(0, 3), kill=st.booleans())
    def turn(self, count: int, kill: bool) -> None:
        self.now_ms += 1_100
        batch = self.log[self.at : self.at + count]
        try:
            self.step.submit(arrived(batch, USAGE, self.at), self.now_ms)
            self.at += len(batch)
            self.step.poll(self.now_ms)
        except Rewind as rewind:
            self.at = rewind.offsets[USAGE]
        if kill:
            self.begin(self.step.settled()[USAGE])

    @precondition(lambda self: self.may_lose and (self.reserved or self.ended))
    @rule()
    def lose(self) -> None:
        """Flushed: reservations that ran are not known any more, their replies will be charged when they end."""
        for key in self.redis.scan_iter(f"{self.namespace}:*", count=1_000):
            self.redis.delete(key)
        self.flushed = True
        self.overused += sum(min(self.ended.get(one, 0), held) for one, held in self.reserved.items())
        self.reserved.clear()

    @invariant()
    def every_token_is_in_the_bucket_or_held_or_used_once(self) -> None:
        self.check(sum(self.settled().values()))

    def check(self, settled: int) -> None:
        level, held = self.level(), sum(self.held().values())
        assert level <= SLOW.capacity_tokens
        there = level + held + settled
        assert there >= SLOW.capacity_tokens - 1, "none is charged twice, also after a loss"
        forgiven = self.overused if self.flushed else 0
        assert there <= SLOW.capacity_tokens + self.refill() + forgiven

    def refill(self) -> float:
        return (time.time() - self.began) / 60 * SLOW.tokens_per_minute + 1

    def settled(self) -> dict[str, int]:
        """Replies of which the store knows the end."""
        key, _ = Holder("a").keys(self.namespace)
        marks = self.redis.mget([key + f":done:{one}".encode() for one in self.ended]) if self.ended else []
        found = {one: int(mark) for one, mark in zip(self.ended, marks, strict=True) if mark is not None}
        assert all(self.ended[one] == used for one, used in found.items())
        return found

    def held(self) -> dict[str, int]:
        """Reservations that stand, which the store and the model know alike."""
        key, _ = Holder("a").keys(self.namespace)
        found = {name.decode() for name in self.redis.hkeys(key + b":held")}
        for reply_id in set(self.reserved) - found:
            assert reply_id in self.settled()
            del self.reserved[reply_id]
        assert found == set(self.reserved)
        return self.reserved

    def level(self) -> float:
        buckets = all_buckets(SLOW, Holder("a"))
        answer = self.redis.fcall(LOOK.decode(), 2, *Holder("a").keys(self.namespace), *words_of(buckets))
        return looked(answer, buckets, SLOW.running_max).standing.levels[1].micro / MICRO

    def teardown(self) -> None:
        for _ in range(14):
            self.turn(1_000, kill=False)
        assert self.settled() == self.ended
        self.check(sum(self.ended.values()))
        for key in self.redis.scan_iter(f"{self.namespace}:*", count=1_000):
            self.redis.delete(key)


def test_granted_is_never_more_than_capacity_and_refill_and_each_reply_is_settled_once(tmp_path: Path) -> None:
    server = Valkey(tmp_path)
    server.start()
    functions.load(server.url)
    Limits.url = server.url
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    how = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=checks, phases=PHASES)
    try:
        run_state_machine_as_test(Limits, settings=how)
    finally:
        server.kill()
