"""Several API processes and a projection on one real server: what is granted, whoever asks, settles, dies or loses."""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from redis import Redis

from api.limits import Demand, Denied, Granted, Leases, looked, outcome, reserve_words
from api.limits import bucket_words as words_of
from api.metrics import Metrics
from api.redis_store import RedisStore
from projections.limits.commands import Owners
from projections.limits.step import LimitsStep, Span
from projections.redis import functions
from projections.redis.client import Store
from schemas.account import Accounts
from schemas.tiers import DEFAULT_TIERS, MICRO, Holder, all_buckets
from schemas.tiers.library import LOOK, RELEASE, RESERVE
from streams.log.steps import Partition, Rewind
from tests.api.demands import RULES, demand
from tests.projections.logs import arrived, fresh_namespace
from tests.projections.test_limits_step import ended
from tests.projections.valkey import Valkey

pytestmark = pytest.mark.servers

SLOW = replace(RULES, tokens_per_minute=1, burst_tokens=2_000, running_max=8, requests_per_minute=60_000_000)
"""Nothing comes back within a test."""
USAGE = Partition("usage", 0)


def hammer(url: str, namespace: str, who: int, pipe: Connection) -> None:
    """An API process: many sends at once; says which were granted."""

    async def all_at_once() -> list[str]:
        store = RedisStore(url, namespace, Metrics())
        demands = [demand(f"rep_{who}_{n}", rules=replace(SLOW, running_max=1_000)) for n in range(60)]
        answers = await asyncio.gather(*(store.enter(one, None) for one in demands))
        await store.close()
        granted = zip(demands, answers, strict=True)
        return [one.reply_id for one, entry in granted if isinstance(entry.reserved.outcome, Granted)]

    pipe.recv()
    pipe.send(asyncio.run(all_at_once()))


def test_four_processes_at_once_are_granted_what_the_bucket_holds_and_no_more(provisioned: Deployment) -> None:
    pipes, processes = [], []
    context = multiprocessing.get_context("spawn")
    for who in range(4):
        here, there = context.Pipe()
        process = context.Process(target=hammer, args=(provisioned.redis_url, provisioned.namespace, who, there))
        process.start()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.send("go")
    granted = [reply for pipe in pipes for reply in pipe.recv()]
    for process in processes:
        process.join()
    assert len(granted) == len(set(granted)) == 20
    redis = Redis.from_url(provisioned.redis_url)
    key, shared = Holder("a").keys(provisioned.namespace)
    level, *_ = redis.fcall(LOOK.decode(), 2, key, shared, *words_of(all_buckets(SLOW, Holder("a"))[1:]))[2:]
    assert level // MICRO == 0


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


class Limits(RuleBasedStateMachine):
    """API processes that reserve, release or die; a projection that settles, is killed and replays; leases that
    end; a Redis that is flushed. The model: tokens that are granted and not given back, and tokens that are used.
    """

    url: str
    leases = Leases(door_ms=3_600_000, reply_ms=3_600_000)

    def __init__(self) -> None:
        super().__init__()
        self.redis = Redis.from_url(self.url)
        self.namespace = fresh_namespace()
        self.log: list[Any] = []
        self.reserved: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.began = time.time()
        self.flushed = False
        self.number = 0
        self.begin(0)

    def begin(self, start: int) -> None:
        owners = Owners(Accounts(), DEFAULT_TIERS | {"free": SLOW})
        self.step = LimitsStep(Store(self.url), self.namespace, owners, lambda *_: Span(0, len(self.log)), 1)
        self.step.assigned({USAGE: start})
        self.at = start
        self.now_ms = time.time_ns() // 1_000_000

    def demand(self, reply_id: str, tokens: int) -> Demand:
        return demand(reply_id, rules=SLOW, prompt_tokens=0, output_tokens=tokens, leases=self.leases)

    @rule(tokens=st.integers(1, 900), again=st.booleans())
    def reserve(self, tokens: int, again: bool) -> None:
        if not again or not self.reserved:
            self.number += 1
        reply_id = f"rep_{self.number}"
        asked = self.demand(reply_id, tokens)
        answer = outcome(
            self.redis.fcall(RESERVE.decode(), 2, *asked.holder.keys(self.namespace), *reserve_words(asked)), asked
        )
        if isinstance(answer, Granted) and answer.fresh:
            assert reply_id not in self.reserved
            assert reply_id not in self.ended or self.flushed or again
            if reply_id not in self.ended:
                self.reserved[reply_id] = tokens
            else:
                self.release_now(reply_id)
        elif isinstance(answer, Denied) and answer.lacking == "running":
            assert len(self.reserved) >= SLOW.running_max

    def running(self) -> list[str]:
        """Replies that have not ended."""
        return sorted(set(self.reserved) - set(self.ended))

    def release_now(self, reply_id: str) -> None:
        self.redis.fcall(RELEASE.decode(), 2, *Holder("a").keys(self.namespace), reply_id)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        reply_id = data.draw(st.sampled_from(self.running()))
        del self.reserved[reply_id]
        self.release_now(reply_id)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), used=st.integers(0, 900))
    def end(self, data: Any, used: int) -> None:
        """A reply ends; its record is in the log, perhaps twice."""
        reply_id = data.draw(st.sampled_from(self.running()))
        used = min(used, self.reserved[reply_id])
        self.log += [ended(reply_id, used)] * data.draw(st.integers(1, 2))
        self.ended[reply_id] = used

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

    @rule()
    def lose(self) -> None:
        """Flushed: reservations that ran are not known any more, their replies will be charged when they end."""
        for key in self.redis.scan_iter(f"{self.namespace}:*", count=1_000):
            self.redis.delete(key)
        self.flushed = True
        self.reserved.clear()

    @invariant()
    def never_more_than_capacity_and_refill(self) -> None:
        refill = (time.time() - self.began) / 60 * SLOW.tokens_per_minute + 1
        level = self.level()
        assert level <= SLOW.capacity_tokens
        if not self.flushed:
            there = self.held()
            settled = sum(used for reply_id, used in self.ended.items() if reply_id not in there)
            held = sum(tokens for reply_id, tokens in self.reserved.items() if reply_id in there)
            assert abs(level + held + settled - SLOW.capacity_tokens) <= refill
            assert settled + held <= SLOW.capacity_tokens + refill

    def held(self) -> set[str]:
        key, _ = Holder("a").keys(self.namespace)
        found = {name.decode() for name in self.redis.hkeys(key + b":held")}
        for reply_id in list(self.reserved):
            if reply_id not in found:
                assert reply_id in self.ended
                del self.reserved[reply_id]
        return found

    def level(self) -> float:
        buckets = all_buckets(SLOW, Holder("a"))
        answer = self.redis.fcall(LOOK.decode(), 2, *Holder("a").keys(self.namespace), *words_of(buckets))
        return looked(answer, buckets, SLOW.running_max).standing.levels[1].micro / MICRO

    def teardown(self) -> None:
        for _ in range(14):
            self.turn(1_000, kill=False)
        left = SLOW.capacity_tokens - sum(self.ended.values())
        if not self.flushed:
            there = self.held()
            left -= sum(tokens for reply_id, tokens in self.reserved.items() if reply_id in there)
            assert abs(self.level() - left) <= 2
        else:
            assert self.level() <= max(left, 0) + 2
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
