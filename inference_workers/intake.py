"""Reading the log in a thread of its own, so that generating never waits for polling, nor polling for generating."""

import asyncio
import threading
from collections.abc import Sequence

import structlog

from schemas.codec import Envelope, Undecodable
from schemas.events import Event, GenerationRequested
from schemas.values import PRIORITIES
from streams.log.encoding import decoded
from streams.log.log import Reader
from streams.log.steps import Record

POLL_S = 0.25
"""How long one poll waits; bounds how long `close` takes."""

logger = structlog.get_logger("inference_workers")

Batch = Sequence[Envelope[Event]]


class Intake:
    """Puts what a reader brings into the event loop's queue, decoded, in order; an error too.

    A record that cannot be decoded is reported and skipped: its reply is ended by its deadline.
    """

    def __init__(self, name: str, reader: Reader, arrivals: "asyncio.Queue[Batch | BaseException]") -> None:
        self._reader = reader
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"intake-{name}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    async def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                batch = [envelope for record in self._reader.poll(POLL_S) if (envelope := _decoded(record))]
                if batch:
                    self._put(batch)
        except BaseException as error:  # noqa: BLE001 - the thread's edge: the event loop raises it again
            self._put(error)
        finally:
            self._reader.close()

    def _put(self, item: "Batch | BaseException") -> None:
        self._loop.call_soon_threadsafe(self._arrivals.put_nowait, item)


def _decoded(record: Record) -> Envelope[Event] | None:
    try:
        return decoded(record)
    except Undecodable as error:
        logger.error("record_undecodable", reason=str(error))  # noqa: TRY400 - the reason says it all
        return None


def by_priority(batch: Batch) -> list[Envelope[Event]]:
    """The batch with requests of a stricter priority first; order within one is kept."""

    def rank(envelope: Envelope[Event]) -> int:
        event = envelope.event
        return PRIORITIES.index(event.priority) if isinstance(event, GenerationRequested) else -1

    return sorted(batch, key=rank)
