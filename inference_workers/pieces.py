"""A generation's text on its way to the log: pieces in order, none skipped, together with those of the others.

Rules:

1. Pieces are numbered from 1 without gaps. A piece that the log did not take is never followed by another one: the
   generation is lost and handed back.
2. The first piece leaves at once. Later ones leave in bursts of all generations (`inference_workers.pace`), the pieces
   for one partition of the log one after the other: so a burst is one request for each partition, not several.
3. While the log has not acknowledged a generation's pieces for `HOLD_S`, its further text is held and leaves as one
   piece later: so few pieces are at risk, and memory is bounded by the text itself.
4. Text without tokens and tokens without text both wait for the other, or for the end.
"""

import asyncio
import hashlib
from collections.abc import Callable
from operator import attrgetter

from inference_workers.pace import Pace
from schemas.events import GenerationRequested, TokensGenerated
from streams.log.partitioner import partition_of
from streams.log.steps import Appended, LogFull, NotAppended, Output, Writer

HOLD_S = 1.0
RETRY_S = 0.02
FULL_S_MAX = 10.0
"""For how long a full local queue may refuse a generation's pieces before it counts as lost."""

_partition = attrgetter("partition")


class Pieces:
    """One generation's pieces.

    Args:
        partitions: how many the topic has that they go to.
        on_lost: called once, in the event loop, when a piece did not get into the log.
    """

    __slots__ = (
        "_bytes",
        "_digest",
        "_full_since_s",
        "_loop",
        "_on_lost",
        "_request",
        "_text",
        "_tokens",
        "_watched",
        "_watched_s",
        "_writer",
        "lost",
        "next_seq",
        "partition",
        "queued",
    )

    def __init__(
        self, writer: Writer, request: GenerationRequested, partitions: int, on_lost: Callable[[], None]
    ) -> None:
        self.partition = partition_of(str(getattr(request, TokensGenerated.KEY)), partitions)
        """Where in the log they go."""
        self._writer = writer
        self._request = request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._text: list[str] = []
        self._tokens = 0
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._watched: Appended | None = None
        self._watched_s = 0.0
        self._full_since_s: float | None = None
        self.next_seq = 1
        self.lost = False
        self.queued = False
        """Whether a burst will ask for its text (the burst's own mark)."""

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the pieces so far."""
        return self._bytes

    @property
    def text_digest(self) -> str:
        """As `GenerationEnded.text_digest`, of the pieces so far."""
        return self._digest.hexdigest()[:16]

    def add(self, text: str, tokens: int) -> None:
        """More text."""
        if text:
            self._text.append(text)
        self._tokens += tokens

    def flush(self, now_s: float) -> bool:
        """Send what is there; False: it has to be asked again, the log is slow."""
        if not self._text or self.lost:
            return True
        if self._watched is not None and now_s - self._watched_s > HOLD_S:
            if not self._watched.done():
                return False
            self._watched = None
        return self._send(now_s)

    async def finish(self) -> bool:
        """Send everything; False: the generation is lost."""
        while not self.lost and not self._send(self._loop.time()):  # noqa: ASYNC110 - see below
            await asyncio.sleep(RETRY_S)  # the client does not say when its queue has room again
        if self._watched is not None and not self.lost and self._loop.time() - self._watched_s > HOLD_S:
            try:
                await self._watched
            except NotAppended:
                self.lost = True
        return not self.lost

    def _send(self, now_s: float) -> bool:
        if not self._text:
            return True
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        request = self._request
        event = TokensGenerated(
            reply_id=request.reply_id,
            conversation_id=request.conversation_id,
            generation_id=request.generation_id,
            attempt=request.attempt,
            seq=self.next_seq,
            text=text,
            tokens=self._tokens,
        )
        try:
            appended = self._writer.append(Output(event=event), self.failed)
        except LogFull:
            return self._refused(now_s)
        except NotAppended:
            self._lose()
            return True
        self._full_since_s = None
        if self._watched is None or self._watched.done():
            self._watched = appended
            self._watched_s = now_s
        self.next_seq += 1
        self._tokens = 0
        self._text.clear()
        data = text.encode()
        self._digest.update(data)
        self._bytes += len(data)
        return True

    def _refused(self, now_s: float) -> bool:
        if self._full_since_s is None:
            self._full_since_s = now_s
        elif now_s - self._full_since_s > FULL_S_MAX:
            self._lose()
            return True
        return False

    def failed(self, _error: NotAppended) -> None:
        """Something of the generation did not get into the log; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._lose)

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._text.clear()
            self._on_lost()


class Burst:
    """Sends the pieces of all generations together, once a window."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(self._loop.time())
        self._ready: list[Pieces] = []
        self._scheduled = False
        self._last_s = 0.0

    def offer(self, pieces: Pieces) -> None:
        """These have text to send."""
        if pieces.queued:
            return
        now_s = self._loop.time()
        if pieces.next_seq == 1 and pieces.flush(now_s):
            self._pace.left(1, now_s)
            return
        pieces.queued = True
        self._ready.append(pieces)
        if not self._scheduled:
            self._schedule(max(now_s, self._last_s + self._pace.window_s), now_s)

    def _schedule(self, at_s: float, now_s: float) -> None:
        self._scheduled = True
        if at_s <= now_s:
            self._loop.call_soon(self._send)
        else:
            self._loop.call_at(at_s, self._send)

    def _send(self) -> None:
        self._scheduled = False
        now_s = self._loop.time()
        self._last_s = now_s
        ready, self._ready = self._ready, []
        ready.sort(key=_partition)
        for pieces in ready:
            if pieces.flush(now_s):
                pieces.queued = False
            else:
                self._ready.append(pieces)
        self._pace.left(len(ready) - len(self._ready), now_s)
        if self._ready:
            self._schedule(now_s + RETRY_S, now_s)
