"""What a format makes of a reply: golden bytes, and for all histories the same text, one end, the same bytes again."""

import json
from typing import Any

import pytest
from anthropic._streaming import SSEDecoder
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import ErrorResponse, RawMessageStreamEvent
from hypothesis import given
from pydantic import TypeAdapter

from api.formats.ai_sdk import DONE
from api.formats.anthropic import AnthropicWriter, ended_message
from api.messages import running
from api.stores import Live
from schemas.stream import AnyStreamEvent, Delta, Notified, Reset
from tests.api.transcripts import FACTS, FORMATS, HISTORIES, again, frames, golden, live
from tests.schemas.histories import histories, seen

RESTARTING = "reset_after_text"

EVENTS: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def events_of(received: bytes) -> list[tuple[str | None, Any]]:
    """The events of a stream, as anthropic-python cuts them."""
    return [(sse.event, sse.json()) for sse in SSEDecoder().iter_bytes(iter([received])) if sse.data != "[DONE]"]


def message_of(received: bytes) -> Any:
    """What anthropic-python has at the end of a stream, or the error's type and text."""
    snapshot = None
    for name, data in events_of(received):
        if name == "error":
            error = ErrorResponse.model_validate(data).error
            return error.type, error.message
        assert name == data["type"]
        snapshot = accumulate_event(event=EVENTS.validate_python(data), current_snapshot=snapshot, json_bufs={})
    return snapshot


def chunks_of(received: bytes) -> list[dict[str, Any]]:
    """The chunks of a UI message stream."""
    return [data for _, data in events_of(received)]


def text_of(chunks: list[dict[str, Any]]) -> str:
    """The text that a page shows of a UI message stream, whose parts must be open where they are written."""
    text, opened = "", False
    for chunk in chunks:
        match chunk["type"]:
            case "text-start":
                assert not opened
                opened = True
            case "text-delta":
                assert opened
                text += chunk["delta"]
            case "text-end":
                assert opened
                opened = False
            case "reset-step":
                text, opened = "", False
    return text


@pytest.mark.parametrize("history", sorted(HISTORIES))
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_bytes_are_those_that_were_decided(name: str, history: str) -> None:
    assert live(FORMATS[name](), HISTORIES[history]) == golden(name, history)


@pytest.mark.parametrize("history", sorted(set(HISTORIES) - {RESTARTING}))
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_who_comes_later_gets_the_same(name: str, history: str) -> None:
    assert again(FORMATS[name](), HISTORIES[history]) == golden(name, history)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_who_comes_after_a_reset_gets_the_attempt_that_counts(name: str) -> None:
    assert again(FORMATS[name](), HISTORIES[RESTARTING]) == golden(name, "completed")


@pytest.mark.parametrize(
    ("history", "text", "reason"),
    [
        ("completed", "Rivers flow.", "end_turn"),
        ("stored", "Rivers flow.", "end_turn"),
        ("notice", "Rivers flow.", "max_tokens"),
        ("cancelled_running", "Rivers flow.", None),
    ],
)
def test_anthropics_sdk_reads_the_stream_and_the_message_as_the_same(
    history: str, text: str, reason: str | None
) -> None:
    streamed = message_of(golden("anthropic", history))
    assert streamed.content[0].text == text
    assert streamed.stop_reason == reason
    usage = streamed.usage
    assert (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (3, 2, 4)
    reply = running(Live({}, HISTORIES[history]))
    assert reply is not None
    whole = ended_message(FACTS, reply)
    assert isinstance(whole, dict)
    assert {name: streamed.to_dict()[name] for name in whole} == whole


@pytest.mark.parametrize(
    ("history", "status", "kind"),
    [
        ("failed", 500, "api_error"),
        ("refused", 400, "invalid_request_error"),
        ("no_capacity", 529, "overloaded_error"),
    ],
)
def test_a_reply_that_failed_is_the_same_error_in_the_stream_and_alone(history: str, status: int, kind: str) -> None:
    reply = running(Live({}, HISTORIES[history]))
    assert reply is not None
    error = reply.end.error if reply.end else None
    assert error is not None
    reason = f"{error.code}: {error.detail}"
    assert ended_message(FACTS, reply) == (status, reason)
    assert message_of(golden("anthropic", history)) == (kind, reason)


def test_a_ping_is_an_event_with_data() -> None:
    assert AnthropicWriter(FACTS).beat() == b'event: ping\ndata: {"type":"ping"}\n\n'


def _quiet_before_resets(stream: list[AnyStreamEvent]) -> bool:
    """Nothing of an attempt that does not count was seen."""
    last = max((at for at, event in enumerate(stream) if isinstance(event, Reset)), default=0)
    return not any(isinstance(event, Delta | Notified) for event in stream[:last])


def _lost_text(stream: list[AnyStreamEvent]) -> bool:
    """Text was sent that a reset voids."""
    said = False
    for event in stream:
        if isinstance(event, Reset) and said:
            return True
        said = said or isinstance(event, Delta)
    return False


@given(histories())
def test_anthropics_text_is_the_replys_and_there_is_one_end(history: list[Any]) -> None:
    outcome = seen(history)
    stream = [event for _, event in outcome.stream]
    given_ = frames(stream)
    for received, restarted in (
        (live(FORMATS["anthropic"](), given_), _lost_text(stream)),
        (again(FORMATS["anthropic"](), given_), False),
    ):
        names = [name for name, _ in events_of(received)]
        assert names[0] == "message_start"
        assert [name in ("message_stop", "error") for name in names].index(True) == len(names) - 1
        reply = outcome.reply
        assert reply is not None
        text = "".join(d["delta"]["text"] for name, d in events_of(received) if name == "content_block_delta")
        assert restarted or text == reply.text
        whole = reply.end is not None and reply.end.status in ("completed", "length", "cancelled") and not restarted
        assert (names[-1] == "message_stop") == whole
        if whole:
            message = message_of(received)
            assert "".join(block.text for block in message.content) == reply.text


@given(histories())
def test_the_ui_messages_text_is_the_replys_and_there_is_one_end(history: list[Any]) -> None:
    outcome = seen(history)
    stream = [event for _, event in outcome.stream]
    given_ = frames(stream)
    reply = outcome.reply
    assert reply is not None
    lost = _lost_text(stream)
    for received, restarted in (
        (live(FORMATS["ai_sdk_7"](), given_), False),
        (live(FORMATS["ai_sdk"](), given_), lost),
        (again(FORMATS["ai_sdk_7"](), given_), False),
        (again(FORMATS["ai_sdk"](), given_), False),
    ):
        chunks = chunks_of(received)
        kinds = [chunk["type"] for chunk in chunks]
        assert received.endswith(DONE)
        assert received.count(DONE) == 1
        assert kinds[:2] == ["start", "start-step"]
        assert [kind in ("finish", "abort", "error") for kind in kinds].index(True) == len(kinds) - 1
        text = text_of(chunks)
        assert restarted or text == reply.text
        status = reply.end.status if reply.end else "failed"
        ends = {"completed": "finish", "length": "finish", "cancelled": "abort"}
        assert kinds[-1] == ("error" if restarted else ends.get(status, "error"))
        assert "reset-step" not in kinds or (lost and received == live(FORMATS["ai_sdk_7"](), given_))


@given(histories())
def test_live_and_later_are_the_same_bytes_for_who_saw_no_earlier_attempt(history: list[Any]) -> None:
    stream = [event for _, event in seen(history).stream]
    if not _quiet_before_resets(stream):
        return
    for make in FORMATS.values():
        assert live(make(), frames(stream)) == again(make(), frames(stream))


def test_no_line_of_a_stream_can_be_taken_for_another() -> None:
    for name in FORMATS:
        received = golden(name, "unicode").decode()
        lines = received.splitlines()
        assert all(line == "" or line.startswith(("event: ", "data: ")) for line in lines)
        assert all(json.loads(line[6:]) for line in lines if line.startswith("data: {"))
