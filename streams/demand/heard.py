"""Of which fleet an event is, and of which reply.

1. An admission names the model that was asked for, a registration that of its worker.
2. A lease and a finish name their worker by inbox and epoch, which is the offset of its registration. So registrations
   are kept, in a table that outlives the process: the newest of each inbox.
3. A finish of a worker that is not known is one of the model that its reply was admitted for. Mostly that is so: only
   under high demand dispatch gives a reply to a smaller model.
"""

from collections.abc import MutableMapping

import msgspec

from schemas.events import Event, GenerationAdmitted, GenerationFinished, WorkerLeased, WorkerRegistered
from schemas.values import Tier
from streams.demand.fleet import Fleet
from streams.demand.windows import Window, after

REPLIES_MAX = 100_000
"""Replies that are remembered until they finish; the oldest is forgotten, then not counted."""
INBOXES_MAX = 1_000
"""Of a pool; a registration in another one is not kept."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of an admission."""

    tier: Tier
    model: str


class _Worker(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    model: str


_Workers = dict[int, _Worker]
"""By inbox."""


class Heard:
    """Replies by their admission, in memory; workers by their registration, in the table."""

    def __init__(self, kept: MutableMapping[str, bytes]) -> None:
        """Nothing is read from `kept` before an event is heard."""
        self._kept = kept
        self._replies: dict[str, Reply] = {}

    def fleet(self, event: Event, offset: int) -> Fleet | None:
        """Of which fleet the event is; None: of none that is known. To be called once for each record.

        Args:
            event: of `requests` or `workers`.
            offset: of its record.
        """
        match event:
            case GenerationAdmitted():
                self._replies[event.reply_id] = Reply(tier=event.priority, model=event.model)
                if len(self._replies) > REPLIES_MAX:
                    del self._replies[next(iter(self._replies))]
                return Fleet(event.pool, event.model)
            case WorkerRegistered():
                self._register(event, offset)
                return Fleet(event.pool, event.model)
            case WorkerLeased():
                return self._of_worker(event.pool, event.inbox, event.epoch)
            case GenerationFinished():
                reply = self._replies.get(event.reply_id)
                asked = Fleet(event.pool, reply.model) if reply else None
                return self._of_worker(event.pool, event.inbox, event.epoch) or asked
            case _:
                return None

    def counted(self, window: Window | None, fleet: Fleet, event: Event) -> Window:
        """The window of the event's fleet, with the event."""
        reply = self._replies.get(event.reply_id) if isinstance(event, GenerationFinished) else None
        moved = reply is not None and reply.model != fleet.model
        return after(window, event, reply.tier if reply else None, moved=moved)

    def _register(self, event: WorkerRegistered, epoch: int) -> None:
        workers = self._workers(event.pool)
        before = workers.get(event.inbox)
        newer = epoch > before.epoch if before else len(workers) < INBOXES_MAX
        if newer:
            workers[event.inbox] = _Worker(epoch=epoch, model=event.model)
            self._kept[_key(event.pool)] = msgspec.json.encode(workers)

    def _of_worker(self, pool: str, inbox: int, epoch: int) -> Fleet | None:
        worker = self._workers(pool).get(inbox)
        return Fleet(pool, worker.model) if worker and worker.epoch == epoch else None

    def _workers(self, pool: str) -> _Workers:
        return msgspec.json.decode(self._kept.get(_key(pool)) or b"{}", type=_Workers)


def _key(pool: str) -> str:
    return f"workers:{pool}"
