"""Each cause of an end has its own status and code."""

import pytest

from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineOverloaded,
    Interrupted,
    InvalidRequest,
)
from inference_workers.outcomes import (
    Ending,
    HandBack,
    Patience,
    Silence,
    broke,
    finished,
    is_hung,
    is_stalled,
    stopped,
)
from schemas.values import DETAIL_CHARS_MAX


def test_an_engines_own_ends() -> None:
    assert finished("stop") == Ending("completed")
    assert finished("length") == Ending("length")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextTooLong("too long"), "refused", "context_too_long"),
        (InvalidRequest("no"), "refused", "invalid_request"),
        (EngineError("broken"), "failed", "engine_error"),
    ],
)
def test_errors_of_a_request_end_it(error: EngineError, status: str, code: str) -> None:
    outcome = broke(error)
    assert isinstance(outcome, Ending)
    assert outcome.status == status
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.detail) == (code, str(error))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (EngineOverloaded("north: HTTP 429"), HandBack("engine_overloaded", "north: HTTP 429")),
        (Interrupted("the connection broke"), HandBack("interrupted", "the connection broke")),
        (EngineDead("/usr/lib/x.so: no such device"), HandBack("engine_dead")),
    ],
)
def test_errors_of_the_engine_hand_the_reply_on_with_their_cause_if_it_is_not_the_machines(
    error: EngineError, outcome: HandBack
) -> None:
    assert broke(error) == outcome


@pytest.mark.parametrize("kind", [ContextTooLong, InvalidRequest, EngineError, EngineOverloaded, Interrupted])
def test_what_is_told_of_any_error_is_bounded_and_holds_no_key(kind: type[EngineError]) -> None:
    outcome = broke(kind("the key sk-abcdef0123456789 and " + "x" * 5_000))
    detail = outcome.detail if isinstance(outcome, HandBack) else getattr(outcome, "error", None)
    said = detail if isinstance(detail, str) else getattr(detail, "detail", "")
    assert said.startswith("the key [key] and x")
    assert len(said) == DETAIL_CHARS_MAX


def test_reasons_of_the_worker() -> None:
    assert stopped("cancelled") == Ending("cancelled")
    deadline = stopped("deadline")
    assert isinstance(deadline, Ending)
    assert deadline.error is not None
    assert deadline.error.code == "deadline_exceeded"
    assert stopped("stalled") == HandBack("engine_stalled")
    assert stopped("engine_stuck") == HandBack("engine_stuck")
    assert stopped("handed_back") == HandBack("handed_back")
    assert stopped("undeliverable") == HandBack("undeliverable")
    assert isinstance(stopped("revoked"), Silence)
    assert isinstance(stopped("superseded"), Silence)


def test_silence_counts_from_the_last_token_and_longer_before_the_first() -> None:
    patience = Patience(first_token_s=300, token_s=60)
    assert not is_stalled(patience, began_s=0, last_token_s=None, now_s=299)
    assert is_stalled(patience, began_s=0, last_token_s=None, now_s=301)
    assert not is_stalled(patience, began_s=0, last_token_s=500, now_s=559)
    assert is_stalled(patience, began_s=0, last_token_s=500, now_s=561)


PATIENCE = Patience(first_token_s=300, token_s=60)


@pytest.mark.parametrize(
    ("heard_s", "hung"),
    [
        ([], False),
        ([(0.0, 100.0)], False),  # one alone may be its own fault
        ([(0.0, 100.0), (0.0, 130.0)], True),
        ([(0.0, 100.0), (0.0, 141.0)], False),  # another one goes on
        ([(0.0, 145.0), (0.0, None)], False),  # nobody is stalled yet
        ([(0.0, 100.0), (140.0, None)], True),  # the new one waits for its first token, on an engine without life
        ([(0.0, 100.0), (142.0, None)], False),  # it has just begun
        ([(0.0, 100.0), (0.0, 130.0), (200.0, None)], True),
    ],
)
def test_an_engine_is_hung_when_none_of_several_gets_a_token(
    heard_s: list[tuple[float, float | None]], *, hung: bool
) -> None:
    assert is_hung(PATIENCE, heard_s, now_s=201.0) is hung
