"""What waits in a pool, in its lines, and how much accounts have running: a working copy for one round."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from schemas.values import PRIORITIES, Priority
from streams.dispatch.limits import Limits
from streams.dispatch.lines import Line, Place
from streams.dispatch.pool import ModelLine, Pool, Request

UNBOUNDED = 1_000_000
"""Room of an account where nothing bounds it."""


class Queue:
    """Lines are copied when they are changed; the pool's own stay as they are."""

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self._limits = limits
        self._mine: set[ModelLine] = set()
        self.lines: dict[ModelLine, Line] = dict(pool.lines)
        self.waiting = pool.waiting
        self.waiting_chars = pool.waiting_chars
        self.running: dict[str, int] = dict(pool.running)
        """Generations that accounts have on workers."""

    def wait(self, request: Request) -> None:
        """The request waits."""
        self._line(request).add(*where(request), self._room(request))
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
        self._run(account, self.running.get(account, 0) + 1)

    def stopped(self, request: Request) -> None:
        """The request does not run any more."""
        account = request.admitted.account_id
        self._run(account, self.running.get(account, 0) - 1)

    def used(self, request: Request, tokens: int) -> None:
        """What the request has cost in the end: its account is charged that and not what was guessed."""
        self._line(request).charge(request.admitted.account_id, tokens - request.tokens)

    def step_aside(self, request: Request) -> None:
        """It lets those behind it pass, until `step_back`."""
        self._line(request).remove(*where(request))

    def step_back(self, request: Request) -> None:
        """To its old place."""
        self._line(request).put_back(*where(request), self._room(request))

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

    def _run(self, account: str, count: int) -> None:
        if count > 0:
            self.running[account] = count
        else:
            self.running.pop(account, None)
        for (model, priority), line in self.lines.items():
            if line.waiting_of(account):
                self._own((model, priority)).allow(account, room(self._limits, priority, count))

    def _room(self, request: Request) -> int:
        admitted = request.admitted
        return room(self._limits, admitted.priority, self.running.get(admitted.account_id, 0))

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


def room(limits: Limits, priority: Priority, running: int) -> int:
    """How many more generations an account with so many may have."""
    return UNBOUNDED if limits.queueing == "fifo" else limits.running_max(priority) - running


def where(request: Request) -> tuple[str, Place]:
    """Account and place of a request in its line."""
    return request.admitted.account_id, (request.order, request.admitted.reply_id)
