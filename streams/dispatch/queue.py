"""What waits in a pool, in its lines, and how much accounts have running: a working copy for one round."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from schemas.values import PRIORITIES, Priority
from streams.dispatch.bounds import Bounds
from streams.dispatch.limits import Limits
from streams.dispatch.lines import Line, Place
from streams.dispatch.overlays import Overlay
from streams.dispatch.pool import ModelAccount, ModelLine, Pool, Request

K = TypeVar("K", bound=Hashable)

UNBOUNDED = 1_000_000
"""Room of an account where nothing bounds it."""


class Queue:
    """Lines are copied when they are changed; the pool's own stay as they are.

    Args:
        pool: what it is of.
        limits: the bounds of accounts.
        bounds: how many generations of a model an account may have beside others.
    """

    def __init__(self, pool: Pool, limits: Limits, bounds: Bounds) -> None:
        self._limits = limits
        self._bounds = bounds
        self._mine: set[ModelLine] = set()
        self.lines: dict[ModelLine, Line] = dict(pool.lines)
        self.waiting = pool.waiting
        self.waiting_chars = pool.waiting_chars
        self.running: Overlay[str, int] = Overlay(pool.running)
        """Generations that accounts have on workers."""
        self.running_of: Overlay[ModelAccount, int] = Overlay(pool.running_of)
        self.held_back: set[ModelAccount] = set(pool.held_back)
        """Accounts without room for what others would have to leave: they are looked at again each round."""

    def wait(self, request: Request) -> None:
        """The request waits."""
        self._line(request).add(*where(request), self.room(request))
        self.waiting += 1
        self.waiting_chars += request.chars

    def left(self, request: Request) -> None:
        """The request does not wait any more."""
        self._line(request).remove(*where(request))
        self._less(request)

    def given(self, request: Request) -> None:
        """The request, which waits, runs from now on."""
        account, place = where(request)
        self._line(request).given(account, place, request.tokens)
        self._less(request)
        self._run(request, 1)

    def stopped(self, request: Request) -> None:
        """The request does not run any more."""
        self._run(request, -1)

    def used(self, request: Request, tokens: int) -> None:
        """What the request has cost in the end: its account is charged that and not what was guessed."""
        self._line(request).charge(request.admitted.account_id, tokens - request.tokens)

    def step_aside(self, request: Request) -> None:
        """It lets those behind it pass, until `step_back`."""
        self._line(request).remove(*where(request))

    def step_back(self, request: Request) -> None:
        """To its old place."""
        self._line(request).put_back(*where(request), self.room(request))

    def of(self, model: str) -> Iterator[tuple[Priority, Line]]:
        """The lines of a model in which somebody waits, strictest priority first, ours to change."""
        for priority in PRIORITIES:
            line = self.lines.get((model, priority))
            if line is not None and line.waiting:
                yield priority, self._own((model, priority))

    def waiting_of(self, model: str) -> Mapping[Priority, int]:
        """How many wait for a model, by priority."""
        return {priority: line.waiting if line else 0 for priority, line in self._lines_of(model)}

    def eligible_of(self, model: str) -> Mapping[Priority, int]:
        """The same, without those that wait for other requests of their own account to end."""
        return {priority: line.eligible if line else 0 for priority, line in self._lines_of(model)}

    def waiting_of_account(self, account: str) -> int:
        """How many of an account wait."""
        return sum(line.waiting_of(account) for line in self.lines.values())

    def models(self) -> set[str]:
        """Models that somebody waits for."""
        return {model for (model, _), line in self.lines.items() if line.waiting}

    def _lines_of(self, model: str) -> Iterator[tuple[Priority, Line | None]]:
        return ((priority, self.lines.get((model, priority))) for priority in PRIORITIES)

    def _less(self, request: Request) -> None:
        self.waiting -= 1
        self.waiting_chars -= request.chars

    def room(self, request: Request) -> int:
        """How many more generations of its model its account may have now."""
        admitted = request.admitted
        return self._room(admitted.model, admitted.priority, admitted.account_id)

    def admits(self, request: Request) -> bool:
        """Whether that is one at least. If not, its line passes its account over from now on."""
        room = self.room(request)
        if room <= 0:
            self._line(request).allow(request.admitted.account_id, room)
        return room > 0

    def look_again(self) -> None:
        """Others may have stopped to ask, or workers come, since accounts were held back."""
        for of in sorted(self.held_back):
            self.held_back.discard(of)
            self._allow(of[1], of[0])

    def _run(self, request: Request, change: int) -> None:
        account = request.admitted.account_id
        _add(self.running, account, change)
        _add(self.running_of, (request.admitted.model, account), change)
        self._allow(account)

    def _allow(self, account: str, only: str | None = None) -> None:
        for (model, priority), line in self.lines.items():
            if (only is None or model == only) and line.waiting_of(account):
                self._own((model, priority)).allow(account, self._room(model, priority, account))

    def _room(self, model: str, priority: Priority, account: str) -> int:
        left = room(self._limits, priority, self.running.get(account) or 0)
        running = self.running_of.get((model, account))
        if not running or left <= 0 or self._limits.queueing == "fifo":
            return left
        most = self._bounds.most(model, account)
        if most is None or running < most:
            return left
        self.held_back.add((model, account))
        return 0

    def _line(self, request: Request) -> Line:
        return self._own((request.admitted.model, request.admitted.priority))

    def _own(self, of: ModelLine) -> Line:
        if of not in self._mine:
            before = self.lines.get(of)
            self.lines[of] = before.copy() if before else Line()
            self._mine.add(of)
        return self.lines[of]


def restored(waiting: Iterable[Request], given: Sequence[Request], limits: Limits) -> dict[ModelLine, Line]:
    """The lines of a pool with these requests. What accounts had used before is forgotten, but for what runs."""
    lines: dict[ModelLine, Line] = {}
    running = Counter(request.admitted.account_id for request in given)
    for request in sorted(waiting, key=lambda one: one.order):
        line = lines.setdefault((request.admitted.model, request.admitted.priority), Line())
        account, place = where(request)
        line.add(account, place, room(limits, request.admitted.priority, running[account]))
    for request in given:
        of = (request.admitted.model, request.admitted.priority)
        if of in lines:
            lines[of].charge(request.admitted.account_id, request.tokens)
    return lines


def _add(counts: Overlay[K, int], name: K, change: int) -> None:
    counts.put(name, (counts.get(name) or 0) + change or None)


def room(limits: Limits, priority: Priority, running: int) -> int:
    """How many more generations an account with so many may have."""
    return UNBOUNDED if limits.queueing == "fifo" else limits.running_max(priority) - running


def where(request: Request) -> tuple[str, Place]:
    """Account and place of a request in its line."""
    return request.admitted.account_id, (request.order, request.admitted.reply_id)
