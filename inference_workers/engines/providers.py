"""Which provider is asked next, and when: retries, their budget and the circuit breaker, as functions of values.

Rules:

1. Providers are asked in the order of the list. One that may be asked now, or within `fallback_after_s`, goes before
   those after it; where none may, the one that may be asked soonest is waited for, at most `wait_max_s`.
2. A generation asks at most `attempts_max` times, one provider at most `attempts_each` times, and one that has said
   that it will not answer such a request (no key, no such model) never again.
3. Asking the same provider again is a retry: it costs one token of a budget that each generation fills by
   `retry_share`, up to `retry_burst`. So retries add at most that share to the load of a provider in trouble. Asking
   another provider costs nothing.
4. Between two requests to one provider lies a random time, evenly from 0 to `backoff_base_s` doubled with each retry
   ("full jitter": https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), after what the provider
   asked for itself (Retry-After).
5. A provider's breaker opens when, in one window, `breaker_failures` requests and the share `breaker_share` of all
   failed. Open, it lets nothing through until its time is over; then one request tries, and one more after each
   `breaker_probe_s` that it stays without an answer. The breaker closes when one is answered, and opens for twice as
   long when one is not. A provider that is only busy does not open it.

Times are seconds of one monotonic clock; random numbers are given, evenly from [0, 1).
"""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from inference_workers.engine import Value

Kind = Literal["request", "absent", "denied", "busy", "broken"]
"""Why a provider did not answer: it does not accept the request; does not have the model or the path; does not let us
in; has no room now; is broken, silent or gone."""

Circuit = Literal["closed", "open", "half_open"]


class Limits(Value, frozen=True):
    """How often and how soon providers are asked again. See the rules."""

    attempts_max: int = 4
    attempts_each: int = 2
    backoff_base_s: float = 0.25
    backoff_max_s: float = 4.0
    wait_max_s: float = 10.0
    fallback_after_s: float = 1.0
    retry_share: float = 0.2
    retry_burst: float = 10.0
    breaker_failures: int = 5
    breaker_share: float = 0.5
    breaker_window_s: float = 30.0
    breaker_open_s: float = 10.0
    breaker_open_max_s: float = 120.0
    breaker_probe_s: float = 2.0


class Breaker(Value, frozen=True):
    """What is known of one provider."""

    circuit: Circuit = "closed"
    turn: int = 0
    """Of the circuit: an answer to a request of an earlier turn says nothing about this one."""
    window_s: float = -math.inf
    """When the window of the two counts began."""
    succeeded: int = 0
    failed: int = 0
    opened: int = 0
    """Times in a row that it has opened."""
    until_s: float = -math.inf
    """Nothing is let through until then, unless it is closed."""
    busy_until_s: float = -math.inf
    """It has said that it has no room until then."""


class Asked(Value, frozen=True):
    """A request of this generation that a provider (by its place in the list) did not answer."""

    provider: int
    kind: Kind
    again_s: float
    """It may be asked again from then on, as far as this generation is concerned."""


class Ask(Value, frozen=True):
    """Ask this provider now."""

    provider: int


class Wait(Value, frozen=True):
    """Decide again then."""

    until_s: float


class GiveUp(Value, frozen=True):
    """None may be asked any more, or soon enough."""


Step = Ask | Wait | GiveUp

_FINAL: frozenset[Kind] = frozenset({"request", "absent", "denied"})


def next_step(
    limits: Limits,
    breakers: Sequence[Breaker],
    asked: Sequence[Asked],
    *,
    may_retry: bool,
    now_s: float,
    until_s: float = math.inf,
) -> Step:
    """What a generation does next, after the requests that were not answered. Nothing begins after `until_s`."""
    if len(asked) >= limits.attempts_max or now_s > until_s:
        return GiveUp()
    soonest, ready = math.inf, None
    for index, breaker in enumerate(breakers):
        mine = [one for one in asked if one.provider == index]
        if len(mine) >= limits.attempts_each or (mine and not may_retry) or any(one.kind in _FINAL for one in mine):
            continue
        at_s = max(ready_s(breaker), *(one.again_s for one in mine), -math.inf)
        if at_s <= now_s:
            ready = index
            break
        soonest = min(soonest, at_s)
    if ready is not None and soonest > now_s + limits.fallback_after_s:
        return Ask(provider=ready)
    if soonest <= min(now_s + limits.wait_max_s, until_s):
        return Wait(until_s=soonest)
    return GiveUp() if ready is None else Ask(provider=ready)


def backoff_s(limits: Limits, retry: int, retry_after_s: float | None, random: float) -> float:
    """How long to wait before the retry of this number (from 1)."""
    widest = limits.backoff_max_s
    if retry < 60:
        widest = min(widest, limits.backoff_base_s * 2 ** (retry - 1))
    return (retry_after_s or 0.0) + random * widest


def filled(limits: Limits, budget: float) -> float:
    """The retry budget after one more generation has begun."""
    return min(limits.retry_burst, budget + limits.retry_share)


def may_retry(budget: float) -> bool:
    """Whether the budget has a token."""
    return budget >= 1


def ready_s(breaker: Breaker) -> float:
    """From when on the provider may be asked."""
    if breaker.circuit == "closed":
        return breaker.busy_until_s
    return max(breaker.until_s, breaker.busy_until_s)


def entered(limits: Limits, breaker: Breaker, now_s: float) -> Breaker | None:
    """After a request has begun, None where none may. The request belongs to the `turn` of what is returned."""
    if ready_s(breaker) > now_s:
        return None
    if breaker.circuit == "closed":
        return breaker
    turn = breaker.turn + (breaker.circuit == "open")
    return replace(breaker, circuit="half_open", turn=turn, until_s=now_s + limits.breaker_probe_s)


def answered(limits: Limits, breaker: Breaker, turn: int, now_s: float) -> Breaker:
    """After a request of this turn was answered."""
    if turn != breaker.turn:
        return breaker
    if breaker.circuit == "half_open":
        return Breaker(turn=turn + 1, window_s=now_s, busy_until_s=breaker.busy_until_s)
    counted = _window(limits, breaker, now_s)
    return replace(counted, succeeded=counted.succeeded + 1)


def failed(limits: Limits, breaker: Breaker, turn: int, now_s: float) -> Breaker:
    """After a request of this turn was not answered, or its answer broke off."""
    if turn != breaker.turn:
        return breaker
    if breaker.circuit == "half_open":
        return _opened(limits, breaker, now_s)
    counted = _window(limits, breaker, now_s)
    counted = replace(counted, failed=counted.failed + 1)
    many = counted.failed >= limits.breaker_failures
    most = counted.failed >= limits.breaker_share * (counted.failed + counted.succeeded)
    return _opened(limits, counted, now_s) if many and most else counted


def abandoned(breaker: Breaker, turn: int, now_s: float) -> Breaker:
    """After a request of this turn was given up on our side: it has told nothing, another one may try."""
    if turn != breaker.turn or breaker.circuit != "half_open":
        return breaker
    return replace(breaker, until_s=now_s)


def busied(breaker: Breaker, until_s: float) -> Breaker:
    """After the provider has said that it has no room until then."""
    return replace(breaker, busy_until_s=max(breaker.busy_until_s, until_s))


def _opened(limits: Limits, breaker: Breaker, now_s: float) -> Breaker:
    length_s = min(limits.breaker_open_max_s, limits.breaker_open_s * 2 ** min(breaker.opened, 30))
    return replace(breaker, circuit="open", turn=breaker.turn + 1, opened=breaker.opened + 1, until_s=now_s + length_s)


def _window(limits: Limits, breaker: Breaker, now_s: float) -> Breaker:
    if now_s - breaker.window_s < limits.breaker_window_s:
        return breaker
    return replace(breaker, window_s=now_s, succeeded=0, failed=0)
