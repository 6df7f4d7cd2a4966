"""The requests of one model and priority that wait: fair between accounts, first come first served within one.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over accounts, with KV tokens as the cost of a request: each
account has a tag, the amount of service that it has had; the lowest tag is served next, ties by order of admission.

1. An account that comes to wait begins at the virtual time, the tag of the last one served: what it did not use while
   it was away is not saved up.
2. A request costs its prompt and its longest output when it is given, and what it did not use is given back at its end.
3. An account at its bound of running generations is passed over, and comes back when one ends.
4. Entries of requests that do not wait any more are dropped when they come to the front, or when they are too many.

A line is changed in place by one round; `copy` makes the next round's.
"""

import heapq
from bisect import insort
from collections.abc import Callable

Place = tuple[int, str]
"""Where a request stands: the offset of its admission, and the reply's id."""

TAGS_MAX = 20_000


class Line:
    """One line. `waiting` counts what waits."""

    __slots__ = ("_ages", "_heap", "_queues", "_tags", "_virtual", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._queues: dict[str, tuple[Place, ...]] = {}
        self._tags: dict[str, int] = {}
        self._virtual = 0
        self._heap: list[tuple[int, int, str]] = []
        self._ages: list[tuple[int, str, str]] = []

    def copy(self) -> "Line":
        """An equal one, which is changed without changing this one."""
        made = Line()
        made.waiting = self.waiting
        made._queues = dict(self._queues)
        made._tags = dict(self._tags)
        made._virtual = self._virtual
        made._heap = list(self._heap)
        made._ages = list(self._ages)
        return made

    def add(self, account: str, place: Place, waits: Callable[[Place], bool] = lambda _: True) -> None:
        """A request waits, at the place of its admission."""
        if len(self._ages) + len(self._heap) > 4 * self.waiting + 128:
            self._tidy(waits)
        self.waiting += 1
        queue = self._queues.get(account, ())
        if not queue:
            self._tags[account] = max(self._tags.get(account, 0), self._virtual)
        if not queue or place > queue[-1]:
            queue = (*queue, place)
        else:
            ordered = list(queue)
            insort(ordered, place)
            queue = tuple(ordered)
        self._queues[account] = queue
        if queue[0] == place:
            self._push(account)
        heapq.heappush(self._ages, (*place, account))

    def left(self) -> None:
        """A request does not wait any more, without having been given."""
        self.waiting -= 1

    def head(self, waits: Callable[[Place], bool], may: Callable[[str], bool]) -> Place | None:
        """The next one by fairness, of accounts that may have another one running."""
        while self._heap:
            tag, order, account = self._heap[0]
            queue = self._alive(account, waits)
            if not queue:
                heapq.heappop(self._heap)
            elif (tag, order) != (self._tags[account], queue[0][0]):
                heapq.heapreplace(self._heap, (self._tags[account], queue[0][0], account))
            elif not may(account):
                heapq.heappop(self._heap)
            else:
                return queue[0]
        return None

    def oldest(self, waits: Callable[[Place], bool], may: Callable[[str], bool]) -> Place | None:
        """The one that waits longest, of accounts that may have another one running."""
        while self._ages:
            order, reply_id, account = self._ages[0]
            if waits((order, reply_id)) and may(account):
                return order, reply_id
            heapq.heappop(self._ages)
        return None

    def given(self, account: str, place: Place, cost: int) -> None:
        """A request was given to a worker."""
        self.waiting -= 1
        queue = tuple(one for one in self._queues[account] if one != place)
        self._virtual = max(self._virtual, self._tags[account])
        self._tags[account] += cost
        self._set(account, queue)

    def charge(self, account: str, cost: int) -> None:
        """The account has had so much more service (less, when negative)."""
        self._tags[account] = max(self._tags.get(account, self._virtual) + cost, 0)
        if account in self._queues:
            self._push(account)
        elif len(self._tags) > TAGS_MAX:
            self._tags = {name: tag for name, tag in self._tags.items() if tag > self._virtual or name in self._queues}

    def wake(self, account: str) -> None:
        """The account may have another one running."""
        queue = self._queues.get(account)
        if queue:
            self._push(account)
            heapq.heappush(self._ages, (*queue[0], account))

    def _tidy(self, waits: Callable[[Place], bool]) -> None:
        alive = {account: tuple(filter(waits, queue)) for account, queue in self._queues.items()}
        self._queues = {account: queue for account, queue in alive.items() if queue}
        self._ages = [(*place, account) for account, queue in self._queues.items() for place in queue]
        self._heap = [(self._tags[account], queue[0][0], account) for account, queue in self._queues.items()]
        heapq.heapify(self._ages)
        heapq.heapify(self._heap)

    def _alive(self, account: str, waits: Callable[[Place], bool]) -> tuple[Place, ...]:
        queue = self._queues.get(account, ())
        dead = 0
        while dead < len(queue) and not waits(queue[dead]):
            dead += 1
        if dead:
            self._set(account, queue[dead:])
        return queue[dead:]

    def _set(self, account: str, queue: tuple[Place, ...]) -> None:
        if queue:
            self._queues[account] = queue
            self._push(account)
        else:
            self._queues.pop(account, None)

    def _push(self, account: str) -> None:
        heapq.heappush(self._heap, (self._tags[account], self._queues[account][0][0], account))
