"""Histories of one reply for the tests of formats, and the golden bytes that each format makes of them.

`golden/<format>/<history>.txt` are final: what clients were given once they are given again. Those that are missing are
added by `python -m tests.api.transcripts`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from api.formats.ai_sdk import AiSdkWriter
from api.formats.anthropic import AnthropicWriter
from api.formats.exchange import Facts
from api.formats.format import Writer, current_attempt, written
from api.formats.openai_chat import ChatWriter
from api.formats.openai_responses import ResponseWriter
from api.replay import Unserved, stored_frames
from schemas.events import MessageSubmitted, ReplyStored
from schemas.stream import AnyStreamEvent, Delta, Ended, Notified, Reset, Started, frame
from schemas.values import Failure, Timings, Usage

FOLDER = Path(__file__).parent / "golden"

FACTS = Facts(
    reply_id="rep_1",
    conversation_id="conv_1",
    model="smollm2-135m-instruct",
    created_at_ms=1_796_000_000_000,
    request=MessageSubmitted(
        conversation_id="conv_1",
        message_id="msg_1",
        reply_id="rep_1",
        account_id="alice",
        tier="paid",
        content="hello",
        body_digest="",
        submitted_at_ms=1_796_000_000_000,
        new_conversation=True,
    ),
)
USAGE = Usage(input_tokens=9, output_tokens=2, cached_input_tokens=4, cache_write_tokens=2)
NOTHING_USED = Usage(input_tokens=0, output_tokens=0, counted=False)
TIMINGS = Timings(queued_ms=1, first_token_ms=2, total_ms=3)

AWKWARD = "Grüße 👩‍👩‍👧 \u2028\u2029\x85 \x00\x1b\r\n\ndata: [DONE]\n\nevent: error\n\n\\u0041\"'</script>"


def _started(attempt: int = 1) -> Started:
    return Started(message_id="rep_1", conversation_id="conv_1", model="smollm2-135m-instruct", attempt=attempt)


def _ended(status: str, error: tuple[str, str] | None = None, usage: Usage = USAGE) -> Ended:
    failure = Failure(code=error[0], detail=error[1]) if error else None
    return Ended(status=status, usage=usage, timings=TIMINGS, error=failure)  # type: ignore[arg-type]


def _stored() -> tuple[bytes, ...]:
    stored = ReplyStored(
        conversation_id="conv_1",
        reply_id="rep_1",
        message_id="msg_1",
        account_id="alice",
        tier="paid",
        pool="default",
        model="smollm2-135m-instruct",
        status="completed",
        text="Rivers flow.",
        attempt=1,
        final_offset=4,
        usage=USAGE,
        submitted_at_ms=1,
        ended_at_ms=2,
        timings=TIMINGS,
        error=None,
    )
    served = stored_frames(stored, 0)
    assert not isinstance(served, Unserved)
    return served


def frames(events: Iterable[AnyStreamEvent]) -> tuple[bytes, ...]:
    """The native frames of these events."""
    return tuple(frame(offset, event) for offset, event in enumerate(events, start=1))


_SAID = (Delta(text="Rivers"), Delta(text=" flow."))

HISTORIES: dict[str, tuple[bytes, ...]] = {
    name: frames(events)
    for name, events in {
        "completed": (_started(), *_SAID, _ended("completed")),
        "empty": (_started(), _ended("completed")),
        "length": (_started(), *_SAID, _ended("length")),
        "cancelled_queued": (_ended("cancelled", usage=NOTHING_USED),),
        "cancelled_running": (_started(), *_SAID, _ended("cancelled")),
        "failed": (_started(), *_SAID, _ended("failed", ("engine_error", "The engine failed."))),
        "refused": (_ended("refused", ("prompt_too_large", "The prompt is too large."), NOTHING_USED),),
        "no_capacity": (_ended("refused", ("queue_full", "The queue is full."), NOTHING_USED),),
        "reset_before_text": (
            _started(),
            Reset(attempt=2, reason="worker_lost"),
            _started(2),
            *_SAID,
            _ended("completed"),
        ),
        "reset_after_text": (
            _started(),
            Delta(text="Riv"),
            Reset(attempt=2, reason="worker_lost"),
            _started(2),
            *_SAID,
            _ended("completed"),
        ),
        "notice": (_started(), Notified(code="shortened", detail="At most 5 tokens."), *_SAID, _ended("length")),
        "unicode": (_started(), Delta(text=AWKWARD), _ended("completed")),
        "broken": (_started(), *_SAID),
    }.items()
} | {"stored": _stored()}

FORMATS: dict[str, Callable[[], Writer]] = {
    "anthropic": lambda: AnthropicWriter(FACTS),
    "ai_sdk": lambda: AiSdkWriter(FACTS, resets=False),
    "ai_sdk_7": lambda: AiSdkWriter(FACTS, resets=True),
    "openai_chat": lambda: ChatWriter(FACTS),
    "openai_chat_usage": lambda: ChatWriter(FACTS, include_usage=True),
}
NUMBERED: dict[str, Callable[[], Writer]] = {"openai_responses": lambda: ResponseWriter(FACTS)}
"""Those whose bytes tell how many events were before."""


def live(writer: Writer, history: Sequence[bytes]) -> bytes:
    """What a reader gets that was there from the beginning; the stream breaks where the history has no end."""
    out = writer.begin() + written(writer, history)
    return out if writer.finished else out + writer.broken()


def again(writer: Writer, history: Sequence[bytes]) -> bytes:
    """What a reader gets that comes when all of it has happened."""
    return live(writer, current_attempt(history)[0])


def golden(name: str, history: str) -> bytes:
    """The bytes that were once decided."""
    return (FOLDER / name / f"{history}.txt").read_bytes()


def main() -> None:
    """Add what is missing."""
    for name, make in (FORMATS | NUMBERED).items():
        for history, given in HISTORIES.items():
            path = FOLDER / name / f"{history}.txt"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(live(make(), given))


if __name__ == "__main__":
    main()
