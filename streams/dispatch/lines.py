"""The requests of one model and priority that wait: fair between accounts, first come first served within one.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over accounts, with KV tokens as the cost of a request: each
account has a tag, the amount of service that it has had; the lowest tag is served next, ties by order of admission.

1. An account that comes to wait begins at the virtual time, the tag of the last one served: what it did not use while
   it was away is not saved up. So the service of two accounts that always wait differs by one request at most.
2. A request costs its prompt and its longest output when it is given, and what it did not use is given back at its end:
   all of it, where its attempt came to nothing.
3. An account without room for another running generation is passed over, and comes back when it has some.
4. The two heaps name accounts, by tag and by their oldest request. Each change of an account that has room pushes
   entries anew; an entry that does not tell its account's present state is dropped when it comes to the front, or when
   there are too many of them. So every account with room always has its true entry in both.

A line is changed in place by one round; `copy` makes the next round's.
"""

import heapq
from bisect import bisect_left

Place = tuple[int, str]
"""Where a request stands: the offset of its admission, and the reply's id."""

TAGS_MIN = 1_000
"""Tags of accounts that do not wait are tidied from so many on."""


class Line:
    """One line."""

    __slots__ = ("_ages", "_heap", "_queues", "_rooms", "_tags", "_tags_max", "_virtual", "eligible", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        """What waits."""
        self.eligible = 0
        """What of it could run if there were workers enough: of no account more than it has room for."""
        self._queues: dict[str, tuple[Place, ...]] = {}
        self._rooms: dict[str, int] = {}
        """Generations that accounts that wait may have running besides those that run."""
        self._tags: dict[str, int] = {}
        self._tags_max = TAGS_MIN
        self._virtual = 0
        self._heap: list[tuple[int, int, str]] = []
        self._ages: list[tuple[int, str]] = []

    def copy(self) -> "Line":
        """An equal one, which is changed without changing this one."""
        made = Line()
        made.waiting, made.eligible = self.waiting, self.eligible
        made._queues = self._queues.copy()
        made._rooms = self._rooms.copy()
        made._tags, made._tags_max = self._tags.copy(), self._tags_max
        made._virtual = self._virtual
        made._heap = self._heap.copy()
        made._ages = self._ages.copy()
        return made

    def waiting_of(self, account: str) -> int:
        """How many of the account wait."""
        return len(self._queues.get(account, ()))

    def add(self, account: str, place: Place, room: int) -> None:
        """A request of an account with this room waits, at the place of its admission."""
        if account not in self._queues:
            self._tags[account] = max(self._tags.get(account, 0), self._virtual)
        self._insert(account, place, room)

    def remove(self, account: str, place: Place) -> None:
        """A request does not wait any more, without having been given."""
        queue = self._queues[account]
        at = bisect_left(queue, place)
        self._set(account, queue[:at] + queue[at + 1 :], self._rooms[account])

    def put_back(self, account: str, place: Place, room: int) -> None:
        """A request that was removed waits again as if it had not been: for those that let others pass."""
        self._tags.setdefault(account, self._virtual)
        self._insert(account, place, room)

    def given(self, account: str, place: Place, cost: int) -> None:
        """A request was given to a worker."""
        self._virtual = max(self._virtual, self._tags[account])
        self._tags[account] += cost
        self.remove(account, place)

    def charge(self, account: str, cost: int) -> None:
        """The account has had so much more service (less, when negative)."""
        self._tags[account] = max(self._tags.get(account, self._virtual) + cost, 0)
        self._push(account)
        if len(self._tags) > self._tags_max:
            self._tags = {name: tag for name, tag in self._tags.items() if tag > self._virtual or name in self._queues}
            self._tags_max = max(TAGS_MIN, 2 * len(self._tags))

    def allow(self, account: str, room: int) -> None:
        """The account may have so many more running."""
        if account in self._queues:
            self._set(account, self._queues[account], room)

    def head(self) -> Place | None:
        """The next one by fairness, of accounts that have room."""
        while self._heap:
            tag, order, account = self._heap[0]
            queue = self._queues.get(account)
            if queue and queue[0][0] == order and self._tags[account] == tag and self._rooms[account] > 0:
                return queue[0]
            heapq.heappop(self._heap)
        return None

    def oldest(self) -> Place | None:
        """The one that waits longest, of accounts that have room."""
        while self._ages:
            order, account = self._ages[0]
            queue = self._queues.get(account)
            if queue and queue[0][0] == order and self._rooms[account] > 0:
                return queue[0]
            heapq.heappop(self._ages)
        return None

    def _insert(self, account: str, place: Place, room: int) -> None:
        queue = self._queues.get(account, ())
        at = bisect_left(queue, place)
        self._set(account, (*queue[:at], place, *queue[at:]), room)

    def _set(self, account: str, queue: tuple[Place, ...], room: int) -> None:
        before, had = self._queues.get(account, ()), self._rooms.get(account, 0)
        self.waiting += len(queue) - len(before)
        self.eligible += min(len(queue), max(room, 0)) - min(len(before), max(had, 0))
        if queue:
            self._queues[account], self._rooms[account] = queue, room
            if room > 0 and (had <= 0 or queue[:1] != before[:1]):
                self._push(account)
                heapq.heappush(self._ages, (queue[0][0], account))
        elif before:
            del self._queues[account], self._rooms[account]

    def _push(self, account: str) -> None:
        if self._rooms.get(account, 0) <= 0:
            return
        heapq.heappush(self._heap, (self._tags[account], self._queues[account][0][0], account))
        if len(self._heap) + len(self._ages) > 8 * len(self._queues) + 128:
            self._tidy()

    def _tidy(self) -> None:
        fronts = [(account, queue[0][0]) for account, queue in self._queues.items() if self._rooms[account] > 0]
        self._heap = [(self._tags[account], order, account) for account, order in fronts]
        self._ages = [(order, account) for account, order in fronts]
        heapq.heapify(self._heap)
        heapq.heapify(self._ages)
