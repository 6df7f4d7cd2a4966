"""When to start a part again after it died. Pure.

The first death after a healthy life (ready, and some seconds old) is answered at once: every second
counts for the messages that wait. Only a part that dies again and again without one waits longer
each time.
"""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY_LIFE_S = 3.0
UNDISTURBED_LIFE_S = 60.0
"""The same for a part that ended because another one of its name took over: two that share a name (a worker's ordinal
in two deployments) would otherwise take over from each other without end."""
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 15.0
QUICK_DEATHS_BEFORE_GIVING_UP = 4


@dataclass(frozen=True)
class Restarts:
    """How a part has died so far: deaths without a healthy life before them, in a row, and all restarts."""

    quick_deaths: int = 0
    total: int = 0


@dataclass(frozen=True)
class Decision:
    """Start again after ``delay_s``; ``hopeless`` when a part that never became ready keeps dying, or must not."""

    restarts: Restarts
    delay_s: float
    hopeless: bool


def after_death(
    restarts: Restarts,
    *,
    lived_s: float,
    was_ready: bool,
    was_ever_ready: bool,
    taken_over: bool = False,
    bad_settings: bool = False,
) -> Decision:
    """What to do about a part that died: it lived ``lived_s`` seconds, and ``was_ready`` in this life or not.

    Wrong settings are as wrong the next time.
    """
    healthy = was_ready and lived_s >= (UNDISTURBED_LIFE_S if taken_over else HEALTHY_LIFE_S)
    quick = 0 if healthy else restarts.quick_deaths + 1
    return Decision(
        restarts=Restarts(quick_deaths=quick, total=restarts.total + 1),
        delay_s=backoff_s(quick),
        hopeless=bad_settings or (not was_ever_ready and quick >= QUICK_DEATHS_BEFORE_GIVING_UP),
    )


def backoff_s(quick_deaths: int) -> float:
    """Seconds to wait: none after the first death, then doubling from half a second up to 15."""
    if quick_deaths <= 1:
        return 0.0
    return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (quick_deaths - 2)))
