"""What a worker does with what it is told: which generations it holds, starts, stops and gives back.

No I/O, no clock: calls say what happened, and return the actions to carry out, in order. Rules:

1. A request counts only under the worker's own lease epoch. A lower one is stale and ignored; a higher one says that
   another worker has taken this inbox: everything stops silently, and so does the worker.
2. A generation is taken once, however often its request comes. Of two attempts at one reply the higher one is kept;
   the lower one stops silently.
3. At most `slots` run, and no more than the engine's KV tokens hold (one that is larger runs alone); the others wait,
   strictly by priority, in order of arrival within one. Beyond `waiting_max` a request is given back at once.
4. A cancellation may come before its request: it is remembered for `REMEMBER_MS`, the newest `REMEMBER_MAX` of them.
   A cancelled generation ends as `cancelled`, whether it runs or not; one that waits never starts.
5. A revoked generation stops silently: nothing that it emits counts any more.
6. The first reason to stop a generation is the one that counts.
7. While draining nothing new is taken: what waits and what arrives is given back.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from schemas.codec import Envelope
from schemas.events import CancellationRequested, GenerationRequested, GenerationRevoked
from schemas.values import PRIORITIES, Failure, Priority

REMEMBER_MS = 600_000
REMEMBER_MAX = 20_000
RECENT_MAX = 8_192

V = TypeVar("V")

StopReason = Literal[
    "cancelled", "deadline", "stalled", "engine_stuck", "undeliverable", "handed_back", "revoked", "superseded"
]


class Taken(msgspec.Struct, frozen=True):
    """A request as it came, with its trace."""

    request: GenerationRequested
    envelope: Envelope[GenerationRequested]

    @property
    def id(self) -> str:
        """The generation."""
        return self.request.generation_id


class Begin(msgspec.Struct, frozen=True):
    """Give it to the engine."""

    taken: Taken


class Stop(msgspec.Struct, frozen=True):
    """Stop a running generation."""

    generation_id: str
    reason: StopReason


class EndUnstarted(msgspec.Struct, frozen=True):
    """End a generation that never ran: it is opened and closed in the log."""

    taken: Taken
    cancelled: bool
    error: Failure | None


class GiveBack(msgspec.Struct, frozen=True):
    """Tell dispatch that a generation was not begun here."""

    taken: Taken


class Leave(msgspec.Struct, frozen=True):
    """Another worker has this inbox: exit."""

    epoch: int


Action = Begin | Stop | EndUnstarted | GiveBack | Leave

DEADLINE = Failure(code="deadline_exceeded", detail="the reply was not finished by its deadline")


class Assignments:
    """The state machine of one worker under one lease epoch; see the rules above."""

    def __init__(self, *, epoch: int, slots: int, waiting_max: int, kv_tokens: int = 0) -> None:
        self.epoch = epoch
        self.slots = slots
        self.kv_tokens = kv_tokens
        self.waiting_max = waiting_max
        self.draining = False
        self.superseded = False
        self._running: dict[str, Taken] = {}
        self._kv_tokens_taken = 0
        self._stopping: set[str] = set()
        self._waiting: dict[Priority, deque[Taken]] = {priority: deque() for priority in PRIORITIES}
        self._cancelled: OrderedDict[str, int] = OrderedDict()
        self._recent: OrderedDict[str, None] = OrderedDict()

    @property
    def free_slots(self) -> int:
        """Requests that would start at once."""
        return 0 if self.draining else max(0, self.slots - len(self._running) - self.waiting)

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def running(self) -> int:
        """Slots taken."""
        return len(self._running)

    def requested(  # noqa: PLR0911 - one return a rule
        self, envelope: Envelope[GenerationRequested], now_ms: int
    ) -> list[Action]:
        """A request came into the inbox."""
        request = envelope.event
        if self.superseded or request.epoch < self.epoch or request.generation_id in self._recent:
            return []
        if request.epoch > self.epoch:
            return self._supersede(request.epoch)
        self._note(self._recent, request.generation_id, None, RECENT_MAX)
        taken = Taken(request, envelope)
        if self.draining:
            return [GiveBack(taken)]
        actions, kept = self._older_attempts(request)
        if not kept:
            return actions
        if self._is_cancelled(request.reply_id, now_ms):
            return [*actions, EndUnstarted(taken, cancelled=True, error=None)]
        starts = not self.waiting and self._has_room(request)
        if self.waiting >= self.waiting_max and not starts:
            return [*actions, GiveBack(taken)]
        self._waiting[request.priority].append(taken)
        return [*actions, *self._begin_next(now_ms)]

    def revoked(self, event: GenerationRevoked) -> list[Action]:
        """A generation was taken from this worker."""
        if event.epoch > self.epoch:
            return self._supersede(event.epoch)
        self._note(self._recent, event.generation_id, None, RECENT_MAX)
        self._drop_waiting(lambda taken: taken.id == event.generation_id)
        return self.stop(event.generation_id, "revoked")

    def cancellation(self, event: CancellationRequested, now_ms: int) -> list[Action]:
        """Somebody wants a reply stopped; most are not held here."""
        self._note(self._cancelled, event.reply_id, now_ms, REMEMBER_MAX)
        dropped = self._drop_waiting(lambda taken: taken.request.reply_id == event.reply_id)
        actions: list[Action] = [EndUnstarted(taken, cancelled=True, error=None) for taken in dropped]
        for taken in list(self._running.values()):
            if taken.request.reply_id == event.reply_id:
                actions += self.stop(taken.id, "cancelled")
        return actions

    def stop(self, generation_id: str, reason: StopReason) -> list[Action]:
        """Stop a generation if it runs and is not stopping already."""
        if generation_id not in self._running or generation_id in self._stopping:
            return []
        self._stopping.add(generation_id)
        return [Stop(generation_id, reason)]

    def freed(self, generation_id: str, now_ms: int) -> list[Action]:
        """The engine is done with a generation: its slot is free."""
        taken = self._running.pop(generation_id, None)
        if taken is not None:
            self._kv_tokens_taken -= taken.request.kv_tokens
        self._stopping.discard(generation_id)
        return self._begin_next(now_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Time has passed: what waits beyond its deadline ends; what runs beyond it stops."""
        late = self._drop_waiting(lambda taken: taken.request.deadline_at_ms <= now_ms)
        actions: list[Action] = [EndUnstarted(taken, cancelled=False, error=DEADLINE) for taken in late]
        for taken in list(self._running.values()):
            if taken.request.deadline_at_ms <= now_ms:
                actions += self.stop(taken.id, "deadline")
        return actions

    def drain(self) -> list[Action]:
        """Take nothing new; what runs goes on."""
        self.draining = True
        return [GiveBack(taken) for taken in self._drop_waiting(lambda _: True)]

    def give_up(self, reason: StopReason = "handed_back") -> list[Action]:
        """The grace is over (or the engine does not work any more): hand back what still runs."""
        actions = self.drain()
        for generation_id in list(self._running):
            actions += self.stop(generation_id, reason)
        return actions

    def _supersede(self, epoch: int) -> list[Action]:
        if self.superseded:
            return []
        self.superseded = True
        self.draining = True
        self._drop_waiting(lambda _: True)
        actions: list[Action] = []
        for generation_id in list(self._running):
            actions += self.stop(generation_id, "superseded")
        return [*actions, Leave(epoch)]

    def _older_attempts(self, request: GenerationRequested) -> tuple[list[Action], bool]:
        """Stops of lower attempts at the same reply, and whether the new one is to be kept."""
        same = [taken for taken in self._held() if taken.request.reply_id == request.reply_id]
        if any(taken.request.attempt >= request.attempt for taken in same):
            return [], False
        self._drop_waiting(lambda taken: taken.request.reply_id == request.reply_id)
        actions: list[Action] = []
        for taken in same:
            actions += self.stop(taken.id, "revoked")
        return actions, True

    def _begin_next(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for priority in PRIORITIES:
            queue = self._waiting[priority]
            while queue and self._has_room(queue[0].request):
                taken = queue.popleft()
                if taken.request.deadline_at_ms <= now_ms:
                    actions.append(EndUnstarted(taken, cancelled=False, error=DEADLINE))
                    continue
                self._running[taken.id] = taken
                self._kv_tokens_taken += taken.request.kv_tokens
                actions.append(Begin(taken))
            if queue:
                break
        return actions

    def _has_room(self, request: GenerationRequested) -> bool:
        if len(self._running) >= self.slots:
            return False
        fits = self._kv_tokens_taken + request.kv_tokens <= self.kv_tokens
        return fits or self.kv_tokens == 0 or not self._running

    def _held(self) -> list[Taken]:
        return [*self._running.values(), *(taken for queue in self._waiting.values() for taken in queue)]

    def _drop_waiting(self, wanted: Callable[[Taken], bool]) -> list[Taken]:
        dropped: list[Taken] = []
        for priority, queue in self._waiting.items():
            if queue:
                dropped += [taken for taken in queue if wanted(taken)]
                self._waiting[priority] = deque(taken for taken in queue if not wanted(taken))
        return dropped

    def _is_cancelled(self, reply_id: str, now_ms: int) -> bool:
        at_ms = self._cancelled.get(reply_id)
        return at_ms is not None and now_ms - at_ms <= REMEMBER_MS

    @staticmethod
    def _note(memory: OrderedDict[str, V], name: str, value: V, limit: int) -> None:
        memory[name] = value
        memory.move_to_end(name)
        while len(memory) > limit:
            memory.popitem(last=False)
