"""A whole worker on the log in memory with the scripted engine: each way that a generation can go."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from inference_workers.engine import Engine, EngineStats, GenerationRequest
from inference_workers.engines.clock import RealClock
from inference_workers.engines.scripted import ScriptedEngine
from inference_workers.engines.simulated import SimulatedEngine
from inference_workers.engines.simulation import Faults, SimulatedSettings
from inference_workers.outcomes import Patience
from inference_workers.policy import Policy
from inference_workers.worker import Exit, Worker, wall_ms
from schemas.codec import Envelope, decode
from schemas.events import (
    CancellationRequested,
    Event,
    GenerationEnded,
    GenerationFinished,
    GenerationQueued,
    GenerationRequested,
    GenerationRevoked,
    GenerationStarted,
    TokensGenerated,
    WorkerLeased,
    WorkerRegistered,
    WorkerReleased,
)
from schemas.ids import text_digest
from schemas.prefix import blocks, salt_of, unpacked
from schemas.reply import Reply, apply
from schemas.topics import inference
from schemas.values import Priority, PromptMessage, Sampling, Usage
from streams.log.log import Start
from streams.log.memory import MemoryLog
from streams.log.memory.consumer import MemoryReader
from streams.log.steps import NotAppended, OffsetExpired, Output, Partition, Record

E = TypeVar("E", bound=Event)

POLICY = Policy(
    grace_s=5.0,
    lease_s=0.05,
    tick_s=0.01,
    abort_s=0.3,
    hand_back_s=2.0,
    patience=Patience(first_token_s=300, token_s=60),
)
WITHIN_S = 10.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Bench:
    """One worker under test, and the dispatch that the test plays."""

    def __init__(self, log: MemoryLog, engine: Engine, policy: Policy = POLICY, inbox: int = 0) -> None:
        self.log = log
        self.engine = engine
        self.policy = policy
        self.inbox = inbox
        self.stop = threading.Event()
        self.writer = log.writer("test")
        self.task: asyncio.Task[Exit]
        self.epoch = -1

    async def start(self) -> None:
        await self.engine.start()
        before = len(self.of(WorkerRegistered))
        self.worker = worker = Worker(
            log=self.log,
            engine=self.engine,
            pool="default",
            inbox=self.inbox,
            instance=f"instance-{before}",
            policy=self.policy,
        )
        self.task = asyncio.ensure_future(worker.run(self.stop))
        await self.until(lambda: len(self.of(WorkerLeased)) > 0 and len(self.of(WorkerRegistered)) > before)
        self.epoch = max(
            record.offset
            for record in self.log.records("workers")
            if isinstance(decode(record.value, record.headers).event, WorkerRegistered)
        )

    def of(self, cls: type[E]) -> list[E]:
        topic = cls.TOPIC
        assert topic is not None
        return [event for event in self.log.events(topic) if isinstance(event, cls)]

    def pieces(self, reply_id: str) -> list[TokensGenerated]:
        return [event for event in self.of(TokensGenerated) if event.reply_id == reply_id]

    def text(self, reply_id: str) -> str:
        return "".join(piece.text for piece in self.pieces(reply_id))

    def end(self, reply_id: str) -> GenerationEnded | None:
        return next((event for event in self.of(GenerationEnded) if event.reply_id == reply_id), None)

    def finished(self, reply_id: str) -> GenerationFinished | None:
        return next((event for event in self.of(GenerationFinished) if event.reply_id == reply_id), None)

    def folded(self, reply_id: str) -> Reply:
        """The reply as every reader folds it."""
        queued = GenerationQueued(
            reply_id=reply_id, message_id="m", conversation_id="c", account_id="a", tier="paid", pool="default",
            model="m", submitted_at_ms=0,
        )  # fmt: skip
        reply, _ = apply(None, queued)
        for event in self.log.events("tokens"):
            if getattr(event, "reply_id", None) == reply_id:
                reply, _ = apply(reply, event)
        assert reply is not None
        return reply

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - the log in memory has nothing to wait on from here
                await asyncio.sleep(0.002)

    async def ended(self, reply_id: str) -> GenerationEnded:
        await self.until(lambda: self.finished(reply_id) is not None)
        end = self.end(reply_id)
        assert end is not None
        return end

    def request(
        self,
        reply_id: str,
        script: dict[str, object] | str,
        *,
        epoch: int | None = None,
        attempt: int = 1,
        priority: Priority = "paid",
        deadline_ms: int = 600_000,
        max_tokens: int = 10_000,
    ) -> GenerationRequested:
        event = GenerationRequested(
            pool="default",
            priority=priority,
            epoch=self.epoch if epoch is None else epoch,
            reply_id=reply_id,
            conversation_id="c",
            account_id="a",
            generation_id=f"{reply_id}-g{attempt}",
            attempt=attempt,
            model="m",
            prompt=(PromptMessage(role="user", content=script if isinstance(script, str) else json.dumps(script)),),
            sampling=Sampling(max_output_tokens=max_tokens),
            submitted_at_ms=wall_ms(),
            deadline_at_ms=wall_ms() + deadline_ms,
        )
        cause = Envelope(event=CANCEL, source="api", traceparent=TRACE)
        topic = inference("default", priority).name
        self.writer.append(Output(event=event, topic=topic, partition=self.inbox, cause=cause))
        return event

    def revoke(self, reply_id: str, attempt: int = 1) -> None:
        event = GenerationRevoked(
            pool="default", epoch=self.epoch, reply_id=reply_id, generation_id=f"{reply_id}-g{attempt}"
        )
        self.writer.append(Output(event=event, topic=inference("default", "paid").name, partition=self.inbox))

    def cancel(self, reply_id: str) -> None:
        event = CancellationRequested(conversation_id="c", reply_id=reply_id, account_id="a", requested_at_ms=0)
        self.writer.append(Output(event=event))


CANCEL = CancellationRequested(conversation_id="c", reply_id="none", account_id="a", requested_at_ms=0)


def scripted(slots: int = 2) -> ScriptedEngine:
    return ScriptedEngine(model="m", slots=slots, context_tokens=1000)


@pytest.fixture
async def benches() -> AsyncIterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.stop.set()
        bench.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
            await bench.task
        await bench.engine.shutdown(0)


async def start(benches: list[Bench], engine: Engine | None = None, policy: Policy = POLICY) -> Bench:
    log = benches[0].log if benches else MemoryLog()
    bench = Bench(log, engine or scripted(), policy)
    await bench.start()
    benches.append(bench)
    return bench


SLOW: dict[str, object] = {"chunks": 2000, "every_ms": 5}


async def test_a_generation_goes_from_its_request_to_its_end_and_all_readers_see_the_same(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"text": "Grüße 🎉 to all", "chunks": 8, "every_ms": 3, "split_utf8": True})
    end = await bench.ended("r")
    assert end.status == "completed"
    assert bench.text("r") == "Grüße 🎉 to all"
    assert end.usage == Usage(input_tokens=14, output_tokens=8) or end.usage is not None
    assert end.usage.output_tokens == 8
    assert sum(piece.tokens for piece in bench.pieces("r")) == 8
    assert end.text_bytes == len("Grüße 🎉 to all".encode())
    assert end.text_digest == text_digest("Grüße 🎉 to all")
    assert [piece.seq for piece in bench.pieces("r")] == list(range(1, end.seq))
    assert end.timings is not None
    assert 0 <= end.timings.queued_ms <= (end.timings.first_token_ms or 0) <= end.timings.total_ms
    reply = bench.folded("r")
    assert (reply.phase, reply.text) == ("ended", "Grüße 🎉 to all")
    finished = bench.finished("r")
    assert finished is not None
    assert (finished.status, finished.returned, finished.epoch) == ("completed", False, bench.epoch)


async def test_the_trace_and_the_cause_are_carried_through(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 1})
    await bench.ended("r")
    by_type = {
        type(envelope.event): envelope
        for topic in ("tokens", "workers")
        for record in bench.log.records(topic)
        for envelope in [decode(record.value, record.headers)]
    }
    for cls in (GenerationStarted, GenerationEnded, GenerationFinished):
        assert by_type[cls].causation_id == "r-g1/requested"
        assert (by_type[cls].traceparent or "").split("-")[1] == TRACE.split("-")[1]


async def test_the_token_limit_ends_with_length(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 10}, max_tokens=3)
    assert (await bench.ended("r")).status == "length"
    assert bench.text("r") == "word1 word2 word3"


async def test_a_cancel_while_decoding_keeps_the_partial_text_and_counts_it(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", SLOW)
    await bench.until(lambda: len(bench.pieces("r")) > 3)
    asked_ms = wall_ms()
    bench.cancel("r")
    end = await bench.ended("r")
    assert end.status == "cancelled"
    assert end.ended_at_ms - asked_ms < 250
    assert end.usage is not None
    assert end.usage.counted
    assert end.usage.output_tokens == sum(piece.tokens for piece in bench.pieces("r")) > 0
    assert end.text_digest == text_digest(bench.text("r"))
    assert bench.engine.stats().active == 0


async def test_a_cancel_before_the_first_token(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 5, "first_after_ms": 60_000})
    await bench.until(lambda: bench.engine.stats().active == 1)
    bench.cancel("r")
    end = await bench.ended("r")
    assert (end.status, end.seq, end.text_bytes) == ("cancelled", 1, 0)
    assert bench.engine.stats().active == 0


async def test_a_cancel_while_waiting_for_a_slot_never_starts_it(benches: list[Bench]) -> None:
    bench = await start(benches, scripted(slots=1))
    bench.request("a", SLOW)
    await bench.until(lambda: bool(bench.pieces("a")))
    bench.request("b", {"chunks": 3})
    bench.cancel("b")
    end = await bench.ended("b")
    assert (end.status, end.usage) == ("cancelled", Usage(input_tokens=0, output_tokens=0))
    assert bench.folded("b").phase == "ended"
    bench.cancel("a")
    await bench.ended("a")
    assert not bench.pieces("b")


async def test_a_cancel_before_the_request_also_from_before_the_worker_started(benches: list[Bench]) -> None:
    log = MemoryLog()
    early = Bench(log, scripted())
    early.cancel("r")
    await early.start()
    benches.append(early)
    early.request("r", {"chunks": 3})
    end = await early.ended("r")
    assert end.status == "cancelled"
    assert early.text("r") == ""


async def test_a_cancel_after_the_end_changes_nothing(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 2})
    await bench.ended("r")
    bench.cancel("r")
    bench.request("s", {"chunks": 2})
    await bench.ended("s")
    assert [event.status for event in bench.of(GenerationEnded) if event.reply_id == "r"] == ["completed"]


async def test_a_revoked_generation_stops_silently(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", SLOW)
    await bench.until(lambda: bool(bench.pieces("r")))
    bench.revoke("r")
    await bench.until(lambda: bench.engine.stats().active == 0)
    bench.request("s", {"chunks": 2})
    await bench.ended("s")
    assert bench.end("r") is None
    assert bench.finished("r") is None


async def test_a_later_worker_of_the_same_inbox_ends_the_earlier_one(benches: list[Bench]) -> None:
    first = await start(benches)
    first.request("old", SLOW)
    await first.until(lambda: bool(first.pieces("old")))
    second = await start(benches)
    assert second.epoch > first.epoch
    second.request("new", {"chunks": 2})
    assert await asyncio.wait_for(first.task, WITHIN_S) == "superseded"
    assert (await second.ended("new")).status == "completed"
    assert first.end("old") is None
    assert not second.of(WorkerReleased)
    assert {event.generation_id for event in second.of(GenerationStarted)} == {"old-g1", "new-g1"}


async def test_requests_of_an_earlier_epoch_and_repeated_ones_are_not_run(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("stale", {"chunks": 2}, epoch=bench.epoch - 1)
    bench.request("r", {"chunks": 2})
    bench.request("r", {"chunks": 2})
    await bench.ended("r")
    bench.request("r", {"chunks": 2})
    bench.request("s", {"chunks": 2})
    await bench.ended("s")
    assert [event.reply_id for event in bench.of(GenerationStarted)] == ["r", "s"]


async def test_a_higher_attempt_here_replaces_the_lower_one(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", SLOW)
    await bench.until(lambda: bool(bench.pieces("r")))
    bench.request("r", {"text": "second"}, attempt=2)
    end = await bench.ended("r")
    assert (end.attempt, end.status) == (2, "completed")
    assert bench.folded("r").text == "second"


async def test_paid_goes_first(benches: list[Bench]) -> None:
    bench = await start(benches, scripted(slots=1))
    bench.request("running", {"chunks": 20, "every_ms": 5})
    await bench.until(lambda: bool(bench.pieces("running")))
    bench.request("free", {"chunks": 1}, priority="free")
    await asyncio.sleep(0)
    bench.request("paid", {"chunks": 1}, priority="paid")
    for reply_id in ("running", "free", "paid"):
        await bench.ended(reply_id)
    assert [event.reply_id for event in bench.of(GenerationEnded)] == ["running", "paid", "free"]


@pytest.mark.parametrize(
    ("script", "status", "code", "text"),
    [
        ({"chunks": 9, "fail_at": 3}, "failed", "engine_error", "word1 word2 word3"),
        ({"chunks": "many"}, "refused", "invalid_request", ""),
        ("word " * 1500, "refused", "context_too_long", ""),
    ],
    ids=["engine_error", "invalid_request", "context_too_long"],
)
async def test_errors_end_the_reply_with_a_code_of_their_own(
    benches: list[Bench], script: dict[str, object] | str, status: str, code: str, text: str
) -> None:
    bench = await start(benches)
    bench.request("r", script)
    end = await bench.ended("r")
    assert end.error is not None
    assert (end.status, end.error.code) == (status, code)
    assert bench.text("r") == text
    assert bench.folded("r").phase == "ended"


async def test_a_generation_that_falls_silent_is_handed_back_and_the_others_go_on(benches: list[Bench]) -> None:
    policy = Policy(tick_s=0.01, lease_s=0.05, patience=Patience(first_token_s=0.15, token_s=0.15))
    bench = await start(benches, scripted(slots=3), policy=policy)
    bench.request("hung", {"chunks": 9, "hang_at": 2})
    bench.request("silent", {"chunks": 9, "hang_at": 0})
    bench.request("fine", {"chunks": 40, "every_ms": 10})
    fine = await bench.ended("fine")
    for name in ("hung", "silent"):
        await bench.until(lambda name=name: bench.finished(name) is not None)  # type: ignore[misc]
        told = bench.finished(name)
        assert told is not None
        assert (told.returned, told.reason) == (True, "engine_stalled")
        assert bench.end(name) is None
    assert bench.text("hung") == "word1 word2"
    assert fine.status == "completed"
    assert bench.engine.stats().active == 0
    assert not bench.task.done()


async def test_an_engine_that_has_fallen_silent_altogether_is_left_at_once(benches: list[Bench]) -> None:
    policy = Policy(tick_s=0.01, lease_s=0.05, patience=Patience(first_token_s=60, token_s=0.15), hand_back_s=1.0)
    bench = await start(benches, scripted(slots=4), policy=policy)
    bench.request("one", {"chunks": 9, "hang_at": 2})
    bench.request("two", {"chunks": 9, "hang_at": 3})
    bench.request("new", {"chunks": 9, "hang_at": 0})
    assert await asyncio.wait_for(bench.task, WITHIN_S) == "engine_hung"
    told = [bench.finished(name) for name in ("one", "two", "new")]
    assert {(one.returned, one.reason) for one in told if one} == {(True, "engine_stuck")}
    assert [event.reason for event in bench.of(WorkerReleased)] == ["engine_hung"]
    assert bench.worker.unanswered_aborts == 0


async def test_a_lease_tells_what_the_engine_has_cached(benches: list[Bench]) -> None:
    bench = await start(benches)
    long = "What is a log? " * 100
    bench.request("r", long)
    await bench.ended("r")

    def known() -> set[int]:
        names: set[int] = set()
        for leased in bench.of(WorkerLeased):
            names = (set() if leased.whole else names) | set(unpacked(leased.prefixes))
            names -= set(unpacked(leased.dropped))
        return names

    prompt = PromptMessage(role="user", content=long)
    said = PromptMessage(role="assistant", content=bench.text("r"))
    asked = set(blocks(salt_of("a"), (prompt,)))
    await bench.until(lambda: set(blocks(salt_of("a"), (prompt, said))) <= known())
    assert asked
    assert not asked & set(blocks(salt_of("other"), (prompt,)))


async def test_an_engine_that_does_not_tell_how_it_is_counts_as_full(benches: list[Bench]) -> None:
    class Deaf(ScriptedEngine):
        def stats(self) -> EngineStats:
            return EngineStats(active=0, queued=0, kv_tokens_used=0, age_s=6.0)

    bench = await start(benches, Deaf(model="m", slots=4, context_tokens=100))
    await bench.until(lambda: len(bench.of(WorkerLeased)) > 2)
    assert {leased.free_slots for leased in bench.of(WorkerLeased)} == {0}


@pytest.mark.parametrize("where", ["generate", "iterate", "close"])
async def test_an_engine_that_throws_what_it_should_not_fails_that_generation_alone(
    benches: list[Bench], where: str
) -> None:
    class Careless(ScriptedEngine):
        def generate(self, request: GenerationRequest) -> Any:
            made = super().generate(request)
            if "careless" not in request.messages[-1].content:
                return made
            if where == "generate":
                raise RecursionError
            return Throwing(made, where)

    bench = await start(benches, Careless(model="m", slots=4, context_tokens=1000))
    bench.request("fine", {"chunks": 40, "every_ms": 10})
    bench.request("bad", "careless")
    bad, fine = await bench.ended("bad"), await bench.ended("fine")
    assert fine.status == "completed"
    if where == "close":
        assert bad.status == "completed"
    else:
        assert bad.error is not None
        assert (bad.status, bad.error.code) == ("failed", "engine_error")
    assert not bench.task.done()


class Throwing:
    """A generation that throws what no engine should, where it is told to."""

    def __init__(self, inner: Any, where: str) -> None:
        self._inner = inner
        self._where = where

    @property
    def usage(self) -> Usage:
        return self._inner.usage  # type: ignore[no-any-return]

    def __aiter__(self) -> "Throwing":
        return self

    async def __anext__(self) -> Any:
        if self._where == "iterate":
            raise OverflowError
        return await anext(self._inner)

    async def aclose(self) -> None:
        await self._inner.aclose()
        if self._where == "close":
            raise ValueError("closing")


async def test_a_finished_generation_tells_how_long_it_ran(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 5, "every_ms": 30})
    await bench.ended("r")
    told = bench.finished("r")
    assert told is not None
    assert told.ran_ms >= 120


async def test_a_deadline_ends_running_and_waiting_replies(benches: list[Bench]) -> None:
    bench = await start(benches, scripted(slots=1))
    bench.request("running", SLOW, deadline_ms=150)
    bench.request("waiting", SLOW, deadline_ms=100)
    for name in ("running", "waiting"):
        end = await bench.ended(name)
        assert end.error is not None
        assert (end.status, end.error.code) == ("failed", "deadline_exceeded")
    assert bench.text("running")
    assert not bench.text("waiting")


async def test_a_piece_that_cannot_be_delivered_stops_its_generation_and_hands_it_back(benches: list[Bench]) -> None:
    bench = await start(benches)
    lost: list[str] = []

    def at_point(point: str, topic: str) -> None:
        if point == "append" and topic == "tokens" and len(bench.pieces("r")) == 5 and not lost:
            lost.append(topic)
            raise NotAppended("tokens: timed out")

    bench.request("r", SLOW)
    bench.log.at_point = at_point
    await bench.until(lambda: bench.finished("r") is not None)
    finished = bench.finished("r")
    assert finished is not None
    assert (finished.returned, finished.status) == (True, None)
    assert bench.end("r") is None
    await bench.until(lambda: bench.engine.stats().active == 0)


async def test_while_the_log_is_down_text_is_held_and_none_is_lost(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 600, "every_ms": 4})
    await bench.until(lambda: len(bench.pieces("r")) > 3)
    bench.log.down = True
    began_s = asyncio.get_running_loop().time()
    await bench.until(lambda: asyncio.get_running_loop().time() - began_s > 1.8)
    bench.log.down = False
    end = await bench.ended("r")
    assert end.status == "completed"
    assert bench.text("r") == " ".join(f"word{n}" for n in range(1, 601))
    assert max(piece.tokens for piece in bench.pieces("r")) > 50


async def test_a_dead_engine_hands_its_replies_back_and_ends_the_worker(benches: list[Bench]) -> None:
    settings = SimulatedSettings(slots=4, output_tokens_mean=5000, faults=Faults(crash_at=5))
    bench = await start(benches, SimulatedEngine(settings, RealClock(5)))
    bench.request("a", "tell me", max_tokens=5000)
    bench.request("b", "tell me more", max_tokens=5000)
    assert await asyncio.wait_for(bench.task, WITHIN_S) == "engine_dead"
    for name in ("a", "b"):
        finished = bench.finished(name)
        assert finished is not None
        assert finished.returned
        assert bench.end(name) is None
    assert len(bench.of(WorkerReleased)) == 1


async def test_an_engine_that_repeats_its_diffs_says_and_counts_nothing_twice_in_the_log(benches: list[Bench]) -> None:
    told = []
    for faults in (Faults(), Faults(duplicate_diff=True)):
        settings = SimulatedSettings(slots=4, output_tokens_mean=50, faults=faults)
        bench = Bench(MemoryLog(), SimulatedEngine(settings, RealClock(20)))
        benches.append(bench)
        await bench.start()
        bench.request("r", "tell me", max_tokens=40)
        end = await bench.ended("r")
        told.append((bench.text("r"), end.usage, end.text_digest, sum(piece.tokens for piece in bench.pieces("r"))))
    assert told[0] == told[1]
    assert told[0][0]


async def test_an_engine_that_ignores_a_cancel_does_not_delay_the_end_and_is_replaced(benches: list[Bench]) -> None:
    settings = SimulatedSettings(slots=4, output_tokens_mean=50_000, faults=Faults(ignore_abort=True))
    bench = await start(benches, SimulatedEngine(settings, RealClock(1)))
    bench.request("r", "tell me", max_tokens=5000)
    await bench.until(lambda: bool(bench.pieces("r")))
    asked_ms = wall_ms()
    bench.cancel("r")
    end = await bench.ended("r")
    assert end.status == "cancelled"
    assert end.ended_at_ms - asked_ms < 400
    assert await asyncio.wait_for(bench.task, WITHIN_S) == "engine_stuck"
    assert bench.worker.unanswered_aborts == 1
    assert [event.reason for event in bench.of(WorkerReleased)] == ["engine_stuck"]


async def test_an_engine_that_ignores_a_cancel_lets_the_others_finish_and_the_rest_is_handed_over(
    benches: list[Bench],
) -> None:
    settings = SimulatedSettings(slots=4, output_tokens_mean=50_000, faults=Faults(ignore_abort=True))
    policy = msgspec.structs.replace(POLICY, grace_s=0.2)
    bench = await start(benches, SimulatedEngine(settings, RealClock(1)), policy=policy)
    bench.request("r", "tell me", max_tokens=5000)
    bench.request("other", "tell me more", max_tokens=5000)
    await bench.until(lambda: bool(bench.pieces("r")) and bool(bench.pieces("other")))
    bench.cancel("r")
    assert await asyncio.wait_for(bench.task, WITHIN_S) == "engine_stuck"
    told = bench.finished("other")
    assert told is not None
    assert (told.returned, told.reason) == (True, "handed_back"), "no death: nothing speaks against the reply"


async def test_told_to_stop_it_lets_running_replies_finish(benches: list[Bench]) -> None:
    bench = await start(benches)
    bench.request("r", {"chunks": 40, "every_ms": 10})
    await bench.until(lambda: bool(bench.pieces("r")))
    bench.stop.set()
    await bench.until(lambda: bench.of(WorkerLeased)[-1].draining)
    bench.request("late", {"chunks": 1})
    assert await asyncio.wait_for(bench.task, WITHIN_S) == "drained"
    end, late = bench.end("r"), bench.finished("late")
    assert end is not None
    assert end.status == "completed"
    assert late is not None
    assert late.returned
    assert len(bench.of(WorkerReleased)) == 1
    released = bench.log.events("workers")[-1]
    assert isinstance(released, WorkerReleased)
    assert released.reason == "drained"


async def test_what_does_not_finish_within_the_grace_is_handed_back(benches: list[Bench]) -> None:
    bench = await start(benches, scripted(slots=1), Policy(grace_s=0.1, tick_s=0.01))
    bench.request("r", {"chunks": 9000, "every_ms": 10})
    bench.request("waiting", {"chunks": 1})
    await bench.until(lambda: bool(bench.pieces("r")))
    bench.stop.set()
    assert await asyncio.wait_for(bench.task, WITHIN_S) == "drained"
    for name in ("r", "waiting"):
        finished = bench.finished(name)
        assert finished is not None
        assert finished.returned
        assert bench.end(name) is None
    assert len(bench.of(WorkerReleased)) == 1


async def test_the_lease_says_what_is_free(benches: list[Bench]) -> None:
    bench = await start(benches, scripted(slots=2))
    assert bench.of(WorkerLeased)[0].free_slots == 2
    bench.request("r", SLOW)
    await bench.until(lambda: bench.of(WorkerLeased)[-1].free_slots == 1)
    leases = bench.of(WorkerLeased)
    assert [lease.renewal for lease in leases] == list(range(1, len(leases) + 1))
    assert {lease.epoch for lease in leases} == {bench.epoch}


async def test_what_was_in_the_inbox_before_it_registered_is_not_read(benches: list[Bench]) -> None:
    log = MemoryLog()
    bench = Bench(log, scripted())
    bench.request("before", {"chunks": 2}, epoch=10**9)
    await bench.start()
    benches.append(bench)
    bench.request("after", {"chunks": 2})
    await bench.ended("after")
    assert not bench.task.done()
    assert [event.reply_id for event in bench.of(GenerationStarted)] == ["after"]


async def test_a_record_that_cannot_be_decoded_is_skipped(benches: list[Bench]) -> None:
    bench = await start(benches)
    topic = inference("default", "paid").name
    bench.writer.append_record(topic, "k", b"not json", [("ce_type", b"turnlog.GenerationRequested.v1")], partition=0)
    bench.request("r", {"chunks": 1})
    assert (await bench.ended("r")).status == "completed"


class BrokenLog(MemoryLog):
    """Readers of this one break when they are told to."""

    broken = False

    def reader(self, partitions: Sequence[Partition], start: Start, *, committed_only: bool = True) -> MemoryReader:
        log = self

        class Broken(MemoryReader):
            def poll(self, timeout_s: float) -> list[Record]:
                if log.broken:
                    raise OffsetExpired("gone")
                return super().poll(timeout_s)

        return Broken(self, partitions, start, committed_only=committed_only)


async def test_a_failing_read_ends_the_worker_with_its_error(benches: list[Bench]) -> None:
    log = BrokenLog()
    bench = Bench(log, scripted())
    await bench.start()
    benches.append(bench)
    log.broken = True
    with pytest.raises(BaseExceptionGroup):
        await asyncio.wait_for(bench.task, WITHIN_S)
