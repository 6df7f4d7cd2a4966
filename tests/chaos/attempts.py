"""The promises about attempts, where workers are killed, stopped, drained and silenced: each loss has its cause, and
the stream, the API, the views, the log and the metrics tell the same of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from schemas.stream import Reset
from tests.chaos.check import ECHO, Checked, Report
from tests.chaos.evidence import Life, Logged, Lost, Row, counted, logged, rows
from tests.chaos.ledger import Asked, Fault
from tests.chaos.wreck import Stack, Strike
from tests.simulation.frames import events_of
from tests.simulation.promises import Refused, invariant, require

HIT = frozenset({"worker_lost", "not_served", "poison", "high_demand", "engine_stalled"})
ENDS = {"": HIT | {""}, "hangs": HIT, "crashes": HIT}
"""Codes that a reply may end with, by its fault; one that was cancelled, or echoed, has none. Where it stalls without
one, `a_stall_has_its_cause`."""
DEATHS = frozenset({"worker_lost", "worker_replaced", "engine_dead", "engine_stuck"})
RETURNS = frozenset({"handed_over", "engine_overloaded", "interrupted", "undeliverable"})
RETURNS_MAX = 40
SILENCES = frozenset({"engine_stuck", "engine_stalled"})
"""What is told of an attempt at a silent engine: of several the engine is blamed, of one alone the generation is."""
SEEN_WITHIN_MS = 3_000
"""TURNLOG_TOKEN_TIMEOUT_S of a run: no silence is seen sooner. A worker that is gone before died of something else."""
NEVER_MS = 2**62
LOST_WITHIN_MS = 30_000
"""A loss has its cause so long before, or the next worker in its place so long after it: the longest pause, a lease and
the longest backoff of a restart."""


def check_attempts(stack: Stack, report: Report, strikes: Sequence[Strike]) -> tuple[Logged, dict[str, Row]]:
    """All of it, after `check`; what it found."""
    log, views = logged(stack), rows(stack, {one.message["id"] for one in report.replies})
    faults = {one.message["id"]: one.asked.fault for one in report.replies}
    for reply in report.replies:
        report.hold(it_ends_as_it_must, reply.asked, reply.message)
        report.hold(a_failure_is_earned, reply.message)
        if reply.stream:
            report.hold(the_api_tells_the_resets_of_the_stream, reply)
        report.hold(the_views_tell_the_attempts, reply.message, views.get(reply.message["id"]))
        report.hold(the_log_has_the_resets, reply.message, log.lost)
        if (reply.message["error"] or {}).get("code") == "engine_stalled":
            what, life = (
                f"{reply.message['id']} at last",
                log.lives[log.ran[reply.message["id"], reply.message["attempt"]]],
            )
            at_last = Lost("engine_stalled", life.over_ms or NEVER_MS)
            report.hold(a_stall_has_its_cause, what, at_last, life, strikes, reply.asked.fault)
    for (reply_id, attempt), lost in log.lost.items():
        row = views.get(reply_id)
        worker = dict(zip(row.numbers, row.workers, strict=True)).get(attempt - 1, "") if row else ""
        life = log.lives.get(worker)
        if life is None:
            continue
        what, fault = f"{reply_id} attempt {attempt - 1}", faults.get(reply_id, "")
        report.hold(a_stall_has_its_cause, what, lost, life, strikes, fault)
        report.hold(a_silence_is_told_and_left, what, lost, life, strikes)
        if lost.reason in DEATHS:
            report.hold(a_worker_is_lost_for_a_reason, what, lost, life, strikes)
    report.hold(metrics_count_each_attempt, counted(stack), Counter(lost.reason for lost in log.lost.values()))
    return log, views


@invariant
def it_ends_as_it_must(asked: Asked, message: dict[str, Any]) -> None:
    """What hangs or crashes the engine fails for that, all else ends well, or was hit."""
    code = (message["error"] or {}).get("code", "")
    unharmed = message["status"] == "cancelled" or ECHO in message["text"]
    told = f"{message['id']} ({asked.fault or 'good'}) ended as {message['status']}: {message['error']}"
    require(code in ENDS[asked.fault] or (unharmed and code in ENDS[""]), told)
    require(code != "high_demand" or message["status"] == "refused", told)


@invariant
def a_failure_is_earned(message: dict[str, Any]) -> None:
    """Who fails for lost workers has lost them before; the last loss is the end itself."""
    code, reasons = (message["error"] or {}).get("code"), [reset["reason"] for reset in message["resets"]]
    deaths = sum(reason in DEATHS for reason in reasons)
    returns = sum(reason in RETURNS for reason in reasons)
    stalls = reasons.count("engine_stalled")
    earned = {
        "poison": deaths >= 1,
        "worker_lost": deaths >= 2,
        "not_served": returns + 1 >= RETURNS_MAX,
        "engine_stalled": stalls >= 1,
    }
    require(earned.get(code or "", True), f"{message['id']} failed as {code} after {reasons}")


@invariant
def the_api_tells_the_resets_of_the_stream(reply: Checked) -> None:
    """`resets` are the reset events, and `attempt` is one more."""
    message = reply.message
    resets = [
        {"attempt": event.attempt, "reason": event.reason, "detail": event.detail or None}
        for _, event in events_of(reply.stream)
        if isinstance(event, Reset)
    ]
    require(message["resets"] == resets, f"{message['id']} has {message['resets']}, its stream {resets}")
    require(message["attempt"] == 1 + len(resets), f"{message['id']} is at {message['attempt']} after {resets}")


@invariant
def the_views_tell_the_attempts(message: dict[str, Any], row: Row | None) -> None:
    """Numbers and reasons of the void attempts in both views are those that the API tells."""
    resets = [(reset["attempt"] - 1, reset["reason"]) for reset in message["resets"]]
    if row is None:
        raise Refused(f"{message['id']} is not in generation_stats")
    voids = list(zip(row.numbers, row.reasons, strict=True))
    require(voids == resets, f"{message['id']} has {voids} in generation_stats, {resets} in the API")
    require(list(row.message_reasons) == [reason for _, reason in resets], f"{message['id']}: messages has {row}")
    require({row.attempt, row.message_attempts} == {message["attempt"]}, f"{message['id']} is at {row}")


@invariant
def the_log_has_the_resets(message: dict[str, Any], lost: dict[tuple[str, int], Lost]) -> None:
    """Each reset that readers saw is one that dispatch wrote, with its reason."""
    for reset in message["resets"]:
        written = lost.get((message["id"], reset["attempt"]))
        same = written is not None and reset["reason"] == written.reason
        require(same, f"{message['id']} was reset with {reset}, the log has {written}")


@invariant
def a_worker_is_lost_for_a_reason(what: str, lost: Lost, life: Life, strikes: Sequence[Strike]) -> None:
    """Nobody is declared dead who was neither struck nor followed by another one."""
    struck = any(lost.at_ms <= strike.at_ms + LOST_WITHIN_MS for strike in _hits(life, strikes, lost.at_ms))
    replaced = life.over_ms is not None and life.over_ms <= lost.at_ms + LOST_WITHIN_MS
    require(struck or replaced, f"{what} was lost ({lost}), and nothing had happened to {life}")


@invariant
def a_stall_has_its_cause(what: str, lost: Lost, life: Life, strikes: Sequence[Strike], fault: Fault) -> None:
    """A generation stalls that was told to hang, or whose engine was silenced, or whose worker stood still."""
    if lost.reason == "engine_stalled":
        hows = {strike.how for strike in _hits(life, strikes, lost.at_ms)}
        require(fault == "hangs" or hows & {"silenced", "stopped"}, f"{what} stalled ({lost}) at {life} after {hows}")


@invariant
def a_silence_is_told_and_left(what: str, lost: Lost, life: Life, strikes: Sequence[Strike]) -> None:
    """Where nothing but silence came over a worker, its attempts are lost for that, and it gives way to another one."""
    hits = _hits(life, strikes, lost.at_ms)
    if not hits or any(strike.how != "silenced" for strike in hits):
        return
    since_ms, over_ms = hits[0].at_ms, life.over_ms
    if over_ms is not None and over_ms < since_ms + SEEN_WITHIN_MS:
        return
    require(lost.reason in SILENCES, f"{what} was lost ({lost}) at the silence ({hits[0]}) of {life}")
    left = over_ms is not None and over_ms <= lost.at_ms + LOST_WITHIN_MS
    require(left or lost.at_ms < since_ms + SEEN_WITHIN_MS, f"{what} was lost ({lost}) at {life}, which went on")


def _hits(life: Life, strikes: Sequence[Strike], until_ms: int) -> list[Strike]:
    """What came over a worker until then."""
    return [one for one in strikes if one.name == life.name and life.began_ms <= one.at_ms <= until_ms]


@invariant
def metrics_count_each_attempt(counts: Counter[str], written: Counter[str]) -> None:
    """Dispatch lived through the run, so that its counts are those of the log."""
    require(counts == written, f"metrics say {dict(counts)}, the log {dict(written)}")
