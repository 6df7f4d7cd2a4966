"""How a generation's end is told: from what happened in the engine to the status that the log gets."""

import math
from collections.abc import Sequence

import msgspec

from inference_workers import causes
from inference_workers.assignments import DEADLINE, StopReason
from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineOverloaded,
    Finish,
    Interrupted,
    InvalidRequest,
)
from schemas.values import EndStatus, Failure


class Ending(msgspec.Struct, frozen=True):
    """The reply ends here, with this status."""

    status: EndStatus
    error: Failure | None = None


class HandBack(msgspec.Struct, frozen=True):
    """No end: dispatch gives the reply to another worker."""

    because: str
    detail: str = ""
    """What the engine said of it; may be told to whoever waits for the reply."""


class Silence(msgspec.Struct, frozen=True):
    """Nothing is written: the generation is not this worker's any more."""

    because: str


Outcome = Ending | HandBack | Silence

_FINISHED: dict[Finish, EndStatus] = {"stop": "completed", "length": "length"}


def finished(finish: Finish) -> Outcome:
    """The engine came to an end of its own."""
    return Ending(_FINISHED[finish])


def stopped(reason: StopReason) -> Outcome:
    """The worker stopped it."""
    match reason:
        case "cancelled":
            return Ending("cancelled")
        case "deadline":
            return Ending("failed", DEADLINE)
        case "stalled":
            return HandBack("engine_stalled")
        case "engine_stuck" | "undeliverable" | "handed_back":
            return HandBack(reason)
        case "revoked" | "superseded":
            return Silence(reason)


def broke(error: EngineError) -> Outcome:
    """The engine raised an error. What a dead one says is of the machine, and for the worker's log alone."""
    detail = causes.told(str(error))
    match error:
        case ContextTooLong():
            return Ending("refused", Failure(code="context_too_long", detail=detail))
        case InvalidRequest():
            return Ending("refused", Failure(code="invalid_request", detail=detail))
        case EngineOverloaded():
            return HandBack("engine_overloaded", detail)
        case Interrupted():
            return HandBack("interrupted", detail)
        case EngineDead():
            return HandBack("engine_dead")
        case _:
            return Ending("failed", Failure(code="engine_error", detail=detail))


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long an engine may be silent before its generation counts as stalled, in seconds."""

    first_token_s: float
    token_s: float

    @property
    def together_s(self) -> float:
        """Of generations that fall silent together one had its last token first: so much later it is blamed alone."""
        return min(1.0, self.token_s / 4)


def is_stalled(patience: Patience, *, began_s: float, last_token_s: float | None, now_s: float) -> bool:
    """Whether a generation has been silent for too long. Times are one monotonic clock's seconds."""
    if last_token_s is None:
        return now_s - began_s > patience.first_token_s
    return now_s - last_token_s > patience.token_s


def is_hung(patience: Patience, heard_s: Sequence[tuple[float, float | None]], now_s: float) -> bool:
    """Whether the whole engine has fallen silent: one generation is stalled, and nobody has got a token for so long.

    One alone may be its own fault. One that has just begun says nothing: it waits as it would at an engine with life.

    Args:
        patience: how long is too long.
        heard_s: of each generation, when it began, and when its last token came (None: none has).
        now_s: the same clock's time.
    """
    if len(heard_s) < 2 or not any(
        is_stalled(patience, began_s=began_s, last_token_s=last_s, now_s=now_s) for began_s, last_s in heard_s
    ):
        return False
    newest_s = max((last_s for _, last_s in heard_s if last_s is not None), default=-math.inf)
    silent = sum(now_s - (began_s if last_s is None else last_s) > patience.token_s for began_s, last_s in heard_s)
    return silent > 1 and now_s - newest_s > patience.token_s
