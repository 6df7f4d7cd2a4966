"""Each invariant about attempts holds of an honest history, and falls of a wrong one."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from schemas.stream import Delta, Ended, Reset, Started, frame
from schemas.values import Usage
from tests.chaos import attempts
from tests.chaos.check import Checked
from tests.chaos.evidence import Life, Logged, Lost, Row
from tests.chaos.failover import Wait, waits
from tests.chaos.ledger import Asked, Reading
from tests.chaos.wreck import Strike
from tests.simulation.frames import Read
from tests.simulation.promises import Broken

BEGUN = Started(message_id="r", conversation_id="c", model="m", attempt=1)
STREAM = [
    frame(1, BEGUN),
    frame(2, Delta(text="word1")),
    frame(3, Reset(attempt=2, reason="worker_lost")),
    frame(4, Started(message_id="r", conversation_id="c", model="m", attempt=2)),
    frame(5, Delta(text="word1")),
    frame(6, Ended(status="completed", usage=Usage(input_tokens=1, output_tokens=1))),
]
RESETS = [{"attempt": 2, "reason": "worker_lost", "detail": None}]
ROW = Row("r", "paid", 2, (1,), ("worker_lost",), ("w",), 2, ("worker_lost",))
LIFE = Life("worker-0", 1_000, None)
KILL = Strike("worker-0", "killed", 10.0, 5_000)
SILENCE = Strike("worker-0", "silenced", 10.0, 5_000)
STALL = Lost("engine_stalled", 9_000)
REPLACED = Life("worker-0", 1_000, 10_000)


def message(**members: Any) -> dict[str, Any]:
    ended = {"id": "r", "status": "completed", "text": "word1", "error": None, "attempt": 2, "resets": RESETS}
    return ended | members


def failed(code: str, *reasons: str) -> dict[str, Any]:
    resets = [{"attempt": n, "reason": reason, "detail": None} for n, reason in enumerate(reasons, 2)]
    return message(status="failed", error={"code": code}, attempt=len(resets) + 1, resets=resets)


def test_an_honest_history_breaks_nothing() -> None:
    attempts.it_ends_as_it_must(Asked("a", 1), message())
    attempts.a_failure_is_earned(failed("poison", "worker_lost"))
    attempts.the_api_tells_the_resets_of_the_stream(Checked(Asked("a", 1), message(), STREAM))
    attempts.the_views_tell_the_attempts(message(), ROW)
    attempts.the_log_has_the_resets(message(), {("r", 2): Lost("worker_lost", 9_000)})
    attempts.a_worker_is_lost_for_a_reason("r", Lost("worker_lost", 9_000), LIFE, [KILL])
    attempts.metrics_count_each_attempt(Counter(worker_lost=1), Counter(worker_lost=1))


def test_a_silence_is_an_honest_cause() -> None:
    for reason in attempts.SILENCES:
        attempts.a_silence_is_told_and_left("r", Lost(reason, 9_000), REPLACED, [SILENCE])
        attempts.a_stall_has_its_cause("r", Lost(reason, 9_000), REPLACED, [SILENCE], "")
    attempts.a_stall_has_its_cause("r", STALL, LIFE, [], "hangs")
    # Killed besides, or gone before anybody could see the silence: it may be lost for that.
    attempts.a_silence_is_told_and_left("r", Lost("worker_lost", 9_000), REPLACED, [SILENCE, KILL])
    attempts.a_silence_is_told_and_left("r", Lost("worker_replaced", 7_000), Life("worker-0", 1_000, 7_000), [SILENCE])


@pytest.mark.parametrize(
    "check",
    [
        lambda: attempts.it_ends_as_it_must(Asked("a", 1, "crashes"), message()),
        lambda: attempts.it_ends_as_it_must(Asked("a", 1, "hangs"), message()),
        lambda: attempts.a_stall_has_its_cause("r", STALL, LIFE, [KILL], ""),
        lambda: attempts.a_silence_is_told_and_left("r", Lost("worker_lost", 9_000), REPLACED, [SILENCE]),
        lambda: attempts.a_silence_is_told_and_left("r", STALL, LIFE, [SILENCE]),
        lambda: attempts.a_silence_is_told_and_left("r", STALL, Life("worker-0", 1_000, 99_000), [SILENCE]),
        lambda: attempts.a_failure_is_earned(failed("poison")),
        lambda: attempts.a_failure_is_earned(failed("engine_stalled", "worker_lost")),
        lambda: attempts.the_api_tells_the_resets_of_the_stream(Checked(Asked("a", 1), message(resets=[]), STREAM)),
        lambda: attempts.the_api_tells_the_resets_of_the_stream(Checked(Asked("a", 1), message(attempt=3), STREAM)),
        lambda: attempts.the_views_tell_the_attempts(message(), None),
        lambda: attempts.the_views_tell_the_attempts(message(resets=[]), ROW),
        lambda: attempts.the_log_has_the_resets(message(), {("r", 2): Lost("handed_over", 9_000)}),
        lambda: attempts.a_worker_is_lost_for_a_reason("r", Lost("worker_lost", 9_000), LIFE, []),
        lambda: attempts.metrics_count_each_attempt(Counter(), Counter(worker_lost=1)),
    ],
)
def test_what_is_not_told_alike_or_has_no_cause_is_found(check: Callable[[], None]) -> None:
    with pytest.raises(Broken):
        check()


def test_a_wait_is_counted_from_the_strike_at_the_worker_for_readers_that_had_something_of_it() -> None:
    arrived_s = [8.0, 9.0, 12.0, 12.5, 13.0, 13.1]
    early = Reading(Read("r", frames=STREAM), arrived_s=arrived_s)
    late = Reading(Read("r", frames=STREAM), arrived_s=[14.0] * 6)
    log = Logged({}, {"w": LIFE})
    assert waits([early, late], {"r": ROW}, log, [KILL]) == [Wait("killed", "r", 2.0, 3.0)]
