"""OpenAI's streams: what the SDK's own types say of them, and that any reader can go on after any number."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api.formats.errors import openai_error
from api.formats.openai_chat import DONE, ChatWriter, completion, unanswered
from api.formats.openai_response_object import Told, response
from api.formats.openai_responses import LAST, ResponseWriter, Unserved, begun
from api.messages import running
from api.replay import stored_events
from api.stores import Live
from schemas.events import ReplyStored
from schemas.reply import Reply
from schemas.stream import Delta, Ended, Reset, Started, frame, parse_frame
from tests.api.transcripts import FACTS, HISTORIES, USAGE, frames, golden, live
from tests.schemas.histories import histories, seen

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

Said = dict[str, Any]


def events_of(received: bytes) -> list[Said]:
    """The events of a stream, as openai-python cuts them."""
    events = []
    for sse in SSEDecoder().iter_bytes(iter([received])):
        if sse.data != "[DONE]":
            data = sse.json()
            assert sse.event in (None, data.get("type"))
            events.append(data)
    return events


def numbers(events: Sequence[Said]) -> list[int]:
    return [event["sequence_number"] for event in events]


def text_of(events: Sequence[Said]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def served(history: Sequence[bytes], after: int = -1, *, stored: bool = False) -> list[Said] | str:
    """What a reader gets after a number: events, or why none."""
    made = begun(FACTS, history, stored=stored, after=after)
    return made.why if isinstance(made, Unserved) else events_of(made[1])


@pytest.mark.parametrize("history", sorted(HISTORIES))
def test_the_bytes_of_a_response_are_those_that_were_decided(history: str) -> None:
    assert live(ResponseWriter(FACTS), HISTORIES[history]) == golden("openai_responses", history)


@pytest.mark.parametrize("history", sorted(set(HISTORIES) - {"reset_after_text", "broken"}))
def test_who_reads_a_response_again_gets_the_same_bytes(history: str) -> None:
    made = begun(FACTS, HISTORIES[history], stored=history == "stored", after=-1)
    assert not isinstance(made, Unserved)
    assert made[1] == golden("openai_responses", history)


@pytest.mark.parametrize("history", sorted(HISTORIES))
def test_every_event_of_a_response_is_what_openais_types_say(history: str) -> None:
    for event in events_of(golden("openai_responses", history)):
        EVENTS.validate_python(event, strict=True)
        if "response" in event:
            Response.model_validate(event["response"], strict=True)


@pytest.mark.parametrize(
    ("history", "kind", "status"),
    [
        ("completed", "response.completed", "completed"),
        ("length", "response.incomplete", "incomplete"),
        ("cancelled_queued", "response.incomplete", "cancelled"),
        ("cancelled_running", "response.incomplete", "cancelled"),
        ("failed", "response.failed", "failed"),
        ("refused", "response.failed", "failed"),
        ("stored", "response.completed", "completed"),
        ("reset_before_text", "response.completed", "completed"),
    ],
)
def test_the_last_event_has_the_response_as_it_is_read_by_its_id(history: str, kind: str, status: str) -> None:
    last = events_of(golden("openai_responses", history))[-1]
    assert (last["type"], last["response"]["status"]) == (kind, status)
    assert last["response"] == response(FACTS, Told(map(parse_frame, HISTORIES[history])))


def test_a_reply_that_never_ran_has_three_events() -> None:
    assert numbers(events_of(golden("openai_responses", "refused"))) == [0, 1, 1 + LAST]


def test_the_numbers_are_the_offsets_and_three() -> None:
    kinds = {
        event["sequence_number"]: event["type"].removeprefix("response.")
        for event in events_of(golden("openai_responses", "notice"))
    }
    assert kinds == {
        0: "created",
        1: "queued",
        2: "in_progress",
        3: "output_item.added",
        4: "content_part.added",
        6: "output_text.delta",
        7: "output_text.delta",
        8: "output_text.done",
        9: "content_part.done",
        10: "output_item.done",
        11: "incomplete",
    }


def test_a_notice_is_told_with_the_response() -> None:
    last = events_of(golden("openai_responses", "notice"))[-1]["response"]
    assert last["notices"] == [{"code": "shortened", "detail": "At most 5 tokens."}]
    assert "notices" not in events_of(golden("openai_responses", "completed"))[-1]["response"]


@pytest.mark.parametrize(
    ("history", "code", "own"),
    [
        ("failed", "server_error", "engine_error"),
        ("refused", "invalid_prompt", "prompt_too_large"),
        ("no_capacity", "rate_limit_exceeded", "queue_full"),
    ],
)
def test_an_error_has_a_code_of_openais_and_ours_as_its_type(history: str, code: str, own: str) -> None:
    error = events_of(golden("openai_responses", history))[-1]["response"]["error"]
    assert (error["code"], error["type"]) == (code, own)


def test_a_reader_with_void_text_is_told_and_any_other_goes_on() -> None:
    history = HISTORIES["reset_after_text"]  # started 1, delta 2, reset 3, started 4, deltas 5 and 6, ended 7
    for after in (5, 6):
        events = served(history, after)
        assert [event["code"] for event in events] == ["reply_restarted"]
        assert numbers(events) == [max(6, after + 1)]
    whole = served(history)
    assert text_of(whole) == "Rivers flow."
    for after in (0, 1, 2, 3, 4, 7, 8, 9, 13):
        assert served(history, after) == [event for event in whole if event["sequence_number"] > after]


def test_a_number_behind_the_end_is_refused_and_the_last_one_has_nothing_behind_it() -> None:
    assert served(HISTORIES["completed"], 4 + LAST) == []
    assert served(HISTORIES["completed"], 4 + LAST + 1) == "beyond"
    assert served(HISTORIES["broken"], 1000) == []
    made = begun(FACTS, HISTORIES["broken"], stored=False, after=1000)
    assert not isinstance(made, Unserved)
    error = events_of(made[0].write(4, Ended(status="completed", usage=USAGE)))
    assert [event["code"] for event in error] == ["cursor_gone"]


def test_an_expired_stream_is_served_where_that_is_exact() -> None:
    history = HISTORIES["stored"]  # ended at 4: the text is at 6, the last event at 10
    whole = served(history, stored=True)
    for after in (0, 4, 6, 7, 10):
        assert served(history, after, stored=True) == [event for event in whole if event["sequence_number"] > after]
    assert served(history, 5, stored=True) == "expired"
    assert served(history, 11, stored=True) == "beyond"


def test_a_reader_with_a_part_of_the_text_is_never_given_the_whole_as_one_delta() -> None:
    writer = ResponseWriter(FACTS, after=7)
    text = Delta(text="Rivers flow. Seas wait.")
    started = Started(message_id="rep_1", conversation_id="conv_1", model="m", attempt=1)
    assert writer.begin() + writer.write(1, started) == b""
    assert [event["code"] for event in events_of(writer.write(8, text))] == ["stream_interrupted"]
    assert writer.finished


def test_a_broken_stream_names_the_event_after_which_to_resume() -> None:
    writer = ResponseWriter(FACTS)
    assert events_of(writer.begin() + writer.broken())[-1]["sequence_number"] == 1
    resumed = ResponseWriter(FACTS, after=9)
    assert events_of(resumed.begin() + resumed.broken())[-1]["sequence_number"] == 9


def _stored(reply: Reply) -> tuple[bytes, ...]:
    assert reply.end is not None
    stored = ReplyStored(
        conversation_id="conv_1",
        reply_id="rep_1",
        message_id="msg_1",
        account_id="alice",
        tier="paid",
        pool="default",
        model=reply.model,
        status=reply.end.status,
        text=reply.text,
        attempt=reply.attempt,
        final_offset=reply.offset,
        usage=reply.end.usage,
        submitted_at_ms=1,
        ended_at_ms=2,
        error=reply.end.error,
    )
    return tuple(frame(offset, event) for offset, event in stored_events(stored))


@given(histories())
def test_the_deltas_are_the_replys_text_and_numbers_rise(history: list[Any]) -> None:
    outcome = seen(history)
    reply = outcome.reply
    assert reply is not None
    given_ = frames(event for _, event in outcome.stream)
    events = served(given_)
    assert numbers(events) == sorted(set(numbers(events)))
    assert text_of(events) == reply.text
    for event in events:
        EVENTS.validate_python(event, strict=True)
    if reply.end is not None:
        assert events[-1]["sequence_number"] == reply.offset + LAST
        item = events[-1]["response"]["output"]
        assert (item[0]["content"][0]["text"] if item else "") == reply.text


@given(histories(), st.integers(0, 60))
def test_after_any_number_comes_what_follows_it_or_an_error(history: list[Any], after: int) -> None:
    outcome = seen(history)
    reply = outcome.reply
    assert reply is not None
    given_ = frames(event for _, event in outcome.stream)
    events = served(given_, after)
    if reply.end is not None and after > reply.offset + LAST:
        assert events == "beyond"
    elif [event["type"] for event in events] == ["error"]:
        assert any(isinstance(event, Reset) for _, event in outcome.stream)
    else:
        assert events == [event for event in served(given_) if event["sequence_number"] > after]


@given(histories(), st.data())
def test_a_reader_that_comes_and_goes_anywhere_has_the_text_or_is_told(history: list[Any], data: st.DataObject) -> None:
    outcome = seen(history)
    reply = outcome.reply
    assert reply is not None
    given_ = frames(event for _, event in outcome.stream)
    comes = data.draw(st.integers(0, len(given_)), "comes")
    goes = data.draw(st.integers(comes, len(given_)), "goes")
    made = begun(FACTS, given_[:comes], stored=False, after=-1)
    assert not isinstance(made, Unserved)
    writer, received = made
    for one in given_[comes:goes]:
        if not writer.finished:
            received += writer.write(*parse_frame(one))
    events = events_of(received)
    kept = events[: data.draw(st.integers(0, len(events)), "kept")]
    if kept and kept[-1]["type"] == "error":
        return  # it reads again from the beginning
    after = kept[-1]["sequence_number"] if kept else -1
    for stored in (False, True) if reply.end else (False,):
        more = served(_stored(reply) if stored else given_, after, stored=stored)
        if more == "expired":
            continue
        assert not isinstance(more, str)
        void = not reply.text.startswith(text_of(kept))
        if more and more[-1]["type"] == "error":
            assert text_of(kept), "it had nothing to lose"
            continue
        assert not void
        assert text_of(kept) + text_of(more) == reply.text
        assert numbers([*kept, *more]) == sorted(set(numbers([*kept, *more])))


@given(histories())
def test_live_and_later_are_the_same_bytes_where_no_text_was_lost(history: list[Any]) -> None:
    stream = [event for _, event in seen(history).stream]
    last_reset = max((at for at, event in enumerate(stream) if isinstance(event, Reset)), default=0)
    if any(isinstance(event, Delta) for event in stream[:last_reset]):
        return
    given_ = frames(stream)
    made = begun(FACTS, given_, stored=False, after=-1)
    assert not isinstance(made, Unserved)
    writer, received = made
    assert live(ResponseWriter(FACTS), given_) == received + (b"" if writer.finished else writer.broken())


@pytest.mark.parametrize("name", ["openai_chat", "openai_chat_usage"])
@pytest.mark.parametrize(
    "history", ["completed", "empty", "length", "notice", "unicode", "stored", "reset_before_text"]
)
def test_every_chunk_is_what_openais_types_say(name: str, history: str) -> None:
    received = golden(name, history)
    assert received.endswith(DONE)
    chunks = [ChatCompletionChunk.model_validate(data, strict=True) for data in events_of(received)]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    reply = running(Live({}, HISTORIES[history]))
    assert reply is not None
    assert reply.end is not None
    whole = ChatCompletion.model_validate(completion(FACTS, reply, reply.end), strict=True)
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.choices[0].message.content == said == reply.text
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert usages == ([whole.usage] if name == "openai_chat_usage" else [])


@pytest.mark.parametrize("history", ["cancelled_queued", "cancelled_running"])
def test_a_cancelled_completion_says_so_and_keeps_its_text(history: str) -> None:
    chunks = events_of(golden("openai_chat", history))
    assert chunks[-1]["choices"][0]["finish_reason"] == "cancelled"
    reply = running(Live({}, HISTORIES[history]))
    assert reply is not None
    assert reply.end is not None
    whole = completion(FACTS, reply, reply.end)
    assert whole["choices"][0]["finish_reason"] == "cancelled"
    assert whole["choices"][0]["message"]["content"] == reply.text


@pytest.mark.parametrize(
    ("history", "status", "code"),
    [("failed", 500, "engine_error"), ("refused", 400, "context_length_exceeded"), ("no_capacity", 503, "queue_full")],
)
def test_a_reply_without_a_completion_is_the_same_error_in_the_stream_and_alone(
    history: str, status: int, code: str
) -> None:
    reply = running(Live({}, HISTORIES[history]))
    assert reply is not None
    assert reply.end is not None
    problem = unanswered(reply.end)
    assert problem is not None
    assert (problem.status, problem.code) == (status, code)
    received = golden("openai_chat", history)
    assert events_of(received)[-1] == openai_error(problem)
    assert DONE not in received


@pytest.mark.parametrize(
    ("history", "code"), [("reset_after_text", "reply_restarted"), ("broken", "stream_interrupted")]
)
def test_a_stream_of_chunks_that_breaks_has_an_error_and_no_done(history: str, code: str) -> None:
    received = golden("openai_chat", history)
    assert events_of(received)[-1]["error"]["code"] == code
    assert DONE not in received


@given(histories(), st.booleans())
def test_the_chunks_are_the_replys_text_and_there_is_one_end(history: list[Any], include_usage: bool) -> None:
    outcome = seen(history)
    reply = outcome.reply
    assert reply is not None
    received = live(ChatWriter(FACTS, include_usage=include_usage), frames(event for _, event in outcome.stream))
    data = events_of(received)
    ended = reply.end is not None and reply.end.status in ("completed", "length", "cancelled")
    errors = [one for one in data if "error" in one]
    restarted = [one for one in errors if one["error"]["code"] == "reply_restarted"]
    assert (DONE in received) == (ended and not restarted)
    assert len(errors) == (0 if DONE in received else 1)
    if DONE in received:
        assert "".join(c["delta"].get("content", "") for one in data for c in one["choices"]) == reply.text
