"""At the door: what dispatch would refuse for its load is refused before anything of it is written."""

import json
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.load import AHEAD_MS, RETRY_S_MAX, YOUNG_MS, Load, Now, Place, Told, refusal
from schemas.events import AccountOpened, LoadMeasured
from schemas.examples import EXAMPLES
from schemas.models import SMOLLM2
from schemas.topics import LOAD
from schemas.values import STAGES, Stage, Tier
from streams.log.compacted import CompactedReader
from streams.log.log import since
from streams.log.memory import MemoryLog
from streams.log.steps import Output
from tests.api.openai_calls import CHAT, RESPONSES, error_of
from tests.api.world import BOB, Process, World, eventually

LARGE = msgspec.structs.replace(SMOLLM2, name="large", smaller="small")
SMALL = msgspec.structs.replace(SMOLLM2, name="small")
NOW_MS = 1_796_000_000_000
NOW = Now(NOW_MS, 0)
BODY = {"content": "hello"}
ANTHROPIC = "/anthropic/v1/messages"
ASKED = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}


def load(model: str = "large", stage: Stage = "refuse", at_ms: int = NOW_MS, **members: Any) -> LoadMeasured:
    example = EXAMPLES[LoadMeasured]
    assert isinstance(example, LoadMeasured)
    told = {"workers": 1, "slots": 4, "retry_after_s": 7, "stage_paid": stage, "stage_free": stage}
    changed = {"pool": "default", "model": model, "measured_at_ms": at_ms} | told | members
    return msgspec.structs.replace(example, **changed)


def measured(*loads: LoadMeasured) -> dict[Place, Told]:
    return {(one.pool, one.model): Told(one, 0) for one in loads}


def test_a_model_that_refuses_is_refused_with_its_time_and_one_without_workers_is_named_so() -> None:
    high = refusal(LARGE, "paid", measured(load()), NOW)
    assert high is not None
    assert (high.code, high.retry_after_s) == ("high_demand", 7)
    none = refusal(LARGE, "paid", measured(load(workers=0, slots=0, retry_after_s=30)), NOW)
    assert none is not None
    assert (none.code, none.retry_after_s) == ("no_worker", 30)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("told_s", "said_s"), [(-(2**70), 1), (0, 1), (60, 60), (61, RETRY_S_MAX), (2**70, RETRY_S_MAX)]
)
def test_another_try_is_never_put_off_for_longer_than_a_minute(workers: int, told_s: int, said_s: int) -> None:
    refused = refusal(LARGE, "paid", measured(load(workers=workers, retry_after_s=told_s)), NOW)
    assert refused is not None
    assert refused.retry_after_s == said_s


@given(
    st.sampled_from(STAGES),
    st.sampled_from(STAGES),
    st.sampled_from(["free", "paid"]),
    st.integers(-20_000, 20_000),
    st.integers(0, 20_000),
)
def test_only_a_measurement_that_is_young_by_both_clocks_refuses_and_only_the_tier_that_it_refuses(
    paid: Stage, free: Stage, tier: Tier, age_ms: int, read_ms_ago: int
) -> None:
    told = measured(load(stage_paid=paid, stage_free=free))
    refused = refusal(LARGE, tier, told, Now(NOW_MS + age_ms, read_ms_ago))
    young = -AHEAD_MS <= age_ms < YOUNG_MS and read_ms_ago < YOUNG_MS
    assert (refused is not None) == (young and (paid if tier == "paid" else free) == "refuse")


def test_what_a_dispatch_told_whose_clock_is_ahead_does_not_outlive_it() -> None:
    clock_s = 100.0
    held = Load(lambda: clock_s)

    def refused(after_ms: int) -> bool:
        return held.refusal(LARGE, "paid", NOW_MS + after_ms) is not None

    slightly = load(at_ms=NOW_MS + AHEAD_MS)
    held.apply(slightly.key(), slightly)
    assert refused(0)
    clock_s += YOUNG_MS / 1000
    assert not refused(YOUNG_MS), "by its time stamp it would count for as long again"
    an_hour = load(at_ms=NOW_MS + 3_600_000)
    held.apply(an_hour.key(), an_hour)
    assert not any(refused(after_ms) for after_ms in (0, YOUNG_MS))
    clock_s += 3_600
    assert not any(refused(after_ms) for after_ms in (3_600_000, 3_600_000 + YOUNG_MS))


def test_what_is_read_late_counts_by_its_time_stamp() -> None:
    held = Load(lambda: 100.0)
    told = load()
    held.apply(told.key(), told)
    assert held.refusal(LARGE, "paid", NOW_MS + YOUNG_MS - 1) is not None
    assert held.refusal(LARGE, "paid", NOW_MS + YOUNG_MS) is None


def test_where_the_smaller_model_can_take_over_dispatch_decides() -> None:
    def refused(*loads: LoadMeasured) -> bool:
        return refusal(LARGE, "paid", measured(load(), *loads), NOW) is not None

    assert refused()
    assert not refused(load("small", "full"))
    assert refused(load("small", "refuse"))
    assert refused(load("small", "full", slots=0))
    assert refused(load("small", "full", NOW_MS - YOUNG_MS))
    assert refusal(SMALL, "paid", measured(load("small")), NOW) is not None


def test_a_tombstone_takes_a_measurement_away_and_other_records_say_nothing() -> None:
    held, told = Load(), load()
    held.apply(told.key(), told)
    held.apply(told.key(), EXAMPLES[AccountOpened])
    held.apply("other", None)
    held.apply("other", load(stage="full"))
    assert held.refusal(LARGE, "paid", NOW_MS) is not None
    held.apply(told.key(), None)
    assert held.refusal(LARGE, "paid", NOW_MS) is None


async def test_a_process_follows_the_topic_from_a_moment_ago(world: World) -> None:
    log, held = MemoryLog(), Load()
    writer = log.writer("streams/dispatch")
    reader = CompactedReader(log, LOAD.name, held.apply, start=since(0), poll_s=0.01)
    reader.start()
    try:
        for stage in STAGES:
            writer.append(Output(event=load(stage=stage)))
        await eventually("it refuses", lambda: held.refusal(LARGE, "free", NOW_MS))
        writer.append(Output(event=load(stage="full")))
        await eventually("it does not", lambda: held.refusal(LARGE, "free", NOW_MS) is None)
    finally:
        reader.close()


@pytest.mark.parametrize("body", [BODY, BODY | {"client_message_id": "one"}])
@pytest.mark.parametrize(("workers", "code"), [(1, "high_demand"), (0, "no_worker")])
async def test_a_send_is_refused_before_anything_is_written(
    world: World, api: Process, body: dict[str, str], workers: int, code: str
) -> None:
    world.measure("refuse", workers=workers)
    for accept in ("*/*", "text/event-stream"):
        answer = await api.call("POST", "/v1/messages", body=body, headers={"Accept": accept})
        assert (answer.status, answer.json["code"], answer.json["retry_after_s"]) == (503, code, 7)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "7"
    assert world.submitted() == []
    assert api.metrics.refused_sends.labels(code)._value.get() == 2
    world.measure("full")
    sent = await api.call("POST", "/v1/messages", body=body)
    assert sent.status == 202, "a refused send claims nothing"


async def test_a_tier_that_is_served_and_an_old_measurement_let_in(world: World, api: Process) -> None:
    world.measure("smaller_model", free="refuse")
    assert (await api.call("POST", "/v1/messages", body=BODY)).status == 202
    assert (await api.call("POST", "/v1/messages", body=BODY, key=BOB)).status == 503
    world.time_ms += YOUNG_MS
    assert (await api.call("POST", "/v1/messages", body=BODY, key=BOB)).status == 202


async def test_what_is_there_already_is_answered_also_when_redis_was_lost(world: World, api: Process) -> None:
    body = BODY | {"client_message_id": "one"}
    sent = await api.send(client_message_id="one")
    world.project()
    world.measure("refuse")
    again = await api.call("POST", "/v1/messages", body=body)
    assert (again.status, again.json["reply"]["id"]) == (200, sent["reply"]["id"])
    other = await api.call("POST", "/v1/messages", body={"content": "other", "client_message_id": "one"})
    assert other.status == 409
    world.hot.lose()
    world.measure("refuse")
    again = await api.call("POST", "/v1/messages", body=body)
    assert (again.status, again.json["reply"]["id"]) == (200, sent["reply"]["id"])
    world.hot.down = True
    world.measure("refuse")
    assert (await api.call("POST", "/v1/messages", body=body)).status == 200
    new = await api.call("POST", "/v1/messages", body=BODY | {"client_message_id": "two"})
    assert (new.status, new.json["code"]) == (503, "high_demand")
    assert len(world.submitted()) == 1


async def test_a_regeneration_is_refused_too(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.whole(sent, "a")
    world.measure("refuse")
    refused = await api.call("POST", f"/v1/messages/{reply_id}/regenerate")
    assert (refused.status, refused.json["code"]) == (503, "high_demand")
    assert len(world.events("messages")) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_openais_formats_say_it_with_503_so_that_clients_try_again(
    world: World, api: Process, stream: bool
) -> None:
    world.measure("refuse")
    for path, request in ((CHAT, ASKED), (RESPONSES, {"model": "auto", "input": "hello"})):
        answer = await api.call("POST", path, body=request | {"stream": stream})
        error = error_of(answer, 503)
        assert (error["type"], error["code"], answer.headers["retry-after"]) == ("server_error", "high_demand", "7")
        assert "x-should-retry" not in answer.headers
        client = openai.OpenAI(api_key="none")
        raised = client._make_status_error_from_response(response_of(answer))
        assert isinstance(raised, openai.InternalServerError)
        assert client._should_retry(response_of(answer))
    background = await api.call("POST", RESPONSES, body={"model": "auto", "input": "hello", "background": True})
    assert error_of(background, 503)["code"] == "high_demand"
    assert world.submitted() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_format_says_it_with_529(world: World, api: Process, stream: bool) -> None:
    world.measure("refuse", workers=0)
    answer = await api.call("POST", ANTHROPIC, body=ASKED | {"max_tokens": 9, "stream": stream})
    assert (answer.status, answer.json["error"]["type"]) == (529, "overloaded_error")
    assert answer.headers["retry-after"] == "7"
    client = anthropic.Anthropic(api_key="none")
    assert client._should_retry(response_of(answer))  # type: ignore[arg-type]
    assert world.submitted() == []


async def test_the_ai_sdk_gets_the_problem(world: World, api: Process) -> None:
    world.measure("refuse")
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    body = {"id": "chat", "messages": [message], "trigger": "submit-message"}
    answer = await api.call("POST", "/ai-sdk", body=body)
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "high_demand", "7")
    assert world.submitted() == []


def response_of(answer: Any) -> httpx.Response:
    """The answer as the SDKs see it."""
    request = httpx.Request("POST", "http://here")
    return httpx.Response(answer.status, headers=answer.headers, content=json.dumps(answer.json), request=request)
