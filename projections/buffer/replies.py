"""What the buffer knows of the replies of one partition: their folds, and the frames that are not in Redis yet. Pure.

1. Offsets come from `schemas.reply.apply`, the only fold. The piece that everybody expects (of the owner, the next
   number) is counted here without building the fold's next state, which is brought up to date before any other
   event; a property test holds the two equal. The text of a reply is not kept, only its length.
2. A reply is held from its opening until a grace after its end, by the log's time. The position to commit is the
   opening of the oldest one held, so that everything that may have been lost with Redis can be folded again.
3. A reply that outgrows its bound, is open for too long, or is the oldest when too many are open, is *cut*: its
   buffer is closed with status `cut` and takes nothing more. Its readers get an explicit answer that names the stored
   reply; the reply itself goes on. The bounds depend on the log only, so a replay cuts at the same frame.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator

import msgspec

from projections.buffer import keys
from projections.buffer.frames import delta_frame
from projections.redis.client import bulks
from schemas.events import Event, GenerationQueued, TokensGenerated
from schemas.reply import Openings, Reply, apply
from schemas.stream import Delta, Reset, frame


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds; see rule 3."""

    frames_max: int = 200_000
    """Frames of one reply."""
    bytes_max: int = 67_108_864
    """Bytes of one reply's frames."""
    open_max: int = 20_000
    """Replies held per partition."""
    open_ms: int = 21_600_000
    """How long a reply may be open."""
    grace_ms: int = 60_000
    """How long a reply is held after its end."""


class Held(msgspec.Struct):
    """A reply that is held. `frames` are those not in Redis yet; the first of them has the offset `base`."""

    reply: Reply
    """The fold, without what `next_seq`, `tokens` and `offset` have counted since."""
    opened_offset: int
    """Of its `GenerationQueued` in the partition."""
    opened_ms: int
    last_opening: int = 0
    """Of the last one, where it was written again."""
    keys: bytes = b""
    """The keys of its frames and head, packed for a call."""
    channel: bytes = b""
    """Its channel, packed for a call."""
    generation_id: str = ""
    """The owner whose next piece can be counted at once; empty where no piece is expected."""
    attempt: int = 1
    next_seq: int = 1
    tokens: int = 0
    offset: int = 0
    frames: list[bytes] = []
    base: int = 1
    size: int = 0
    """Bytes of all frames so far."""
    text_bytes: int = 0
    """UTF-8 bytes of the current attempt's text."""
    opening: bool = True
    """The head is not in Redis yet."""
    changed: bool = False
    """Status, attempt or model differ from what the head says."""
    head_ms: int = 0
    ended_ms: int | None = None
    cut: bool = False

    @property
    def closing(self) -> bool:
        """Whether its last frame is among the pending ones (or its cut)."""
        return self.ended_ms is not None or self.cut

    @property
    def status(self) -> str:
        """As the head says it."""
        if self.cut:
            return "cut"
        return self.reply.end.status if self.reply.end is not None else self.reply.phase


class Replies:
    """The replies of one partition, oldest first."""

    def __init__(self, start: int, limits: Limits, namespace: str) -> None:
        self.position = start
        """Offset of the record that comes next."""
        self.pending_bytes = 0
        self._limits = limits
        self._namespace = namespace
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._dirty: dict[str, Held] = {}
        self._ended: deque[tuple[int, str]] = deque()
        self._openings = Openings()

    def take(self, offset: int, timestamp_ms: int, event: Event) -> None:
        """The partition's next event."""
        self.position = offset + 1
        reply_id: str = getattr(event, "reply_id", "")
        held = self._held.get(reply_id)
        if held is None:
            self._open(reply_id, offset, timestamp_ms, event)
            return
        if (
            type(event) is TokensGenerated
            and event.seq == held.next_seq
            and event.generation_id == held.generation_id
            and event.attempt == held.attempt
            and event.generation_id
        ):
            text = event.text
            held.next_seq += 1
            held.tokens += event.tokens
            held.offset = number = held.offset + 1
            self._append(held, delta_frame(number, text))
            held.text_bytes += len(text) if text.isascii() else len(text.encode())
        elif type(event) is GenerationQueued:
            held.last_opening = offset
            return
        elif not held.cut:
            if not self._apply(held, event):
                return
            if held.reply.end is not None:
                held.ended_ms = timestamp_ms
        else:
            return
        self._dirty[reply_id] = held
        if (held.offset >= self._limits.frames_max or held.size > self._limits.bytes_max) and held.ended_ms is None:
            held.cut = True
            held.generation_id = ""

    def dirty(self) -> list[Held]:
        """Replies with something to write, by the order in which it came."""
        return list(self._dirty.values())

    def closing(self) -> bool:
        """Whether the last frame of a reply is among what has to be written."""
        return any(held.closing for held in self._dirty.values())

    def written(self) -> None:
        """All that was pending is in Redis."""
        for reply_id, held in self._dirty.items():
            held.base += len(held.frames)
            held.frames.clear()
            held.opening = held.changed = False
            if held.cut:
                self._let_go(reply_id)
            elif held.ended_ms is not None:
                self._ended.append((held.ended_ms + self._limits.grace_ms, reply_id))
        self._dirty.clear()
        self.pending_bytes = 0

    def forget(self, held: Held) -> None:
        """Its buffer is closed already: there is nothing more to do for it."""
        reply_id = held.reply.queued.reply_id
        if self._held.get(reply_id) is held:
            self._let_go(reply_id)
            self._dirty.pop(reply_id, None)

    def pass_time(self, now_ms: int) -> None:
        """Let go of what ended a grace ago, and cut what is open for too long."""
        while self._ended and self._ended[0][0] <= now_ms:
            self._let_go(self._ended.popleft()[1])
        for reply_id, held in self._oldest():
            if held.closing or held.opened_ms + self._limits.open_ms > now_ms:
                return
            self._cut(reply_id, held)

    def settled(self) -> int:
        """The offset to commit."""
        oldest = next((held.opened_offset for held in self._held.values()), self.position)
        return self._openings.checkpoint(oldest)

    def __len__(self) -> int:
        return len(self._held)

    def _let_go(self, reply_id: str) -> None:
        held = self._held.pop(reply_id, None)
        if held is not None:
            self._openings.ended(held.opened_offset, held.last_opening)

    def _oldest(self) -> Iterator[tuple[str, Held]]:
        return iter(self._held.items())

    def _open(self, reply_id: str, offset: int, timestamp_ms: int, event: Event) -> None:
        reply, _ = apply(None, event)
        if reply is None or not isinstance(event, GenerationQueued):
            return
        if len(self._held) >= self._limits.open_max:
            for oldest_id, oldest in self._oldest():
                if not oldest.closing:
                    self._cut(oldest_id, oldest)
                    break
        held = Held(
            reply=reply,
            opened_offset=offset,
            opened_ms=timestamp_ms,
            keys=bulks((keys.frames(self._namespace, reply_id), keys.head(self._namespace, reply_id))),
            channel=bulks((keys.live(self._namespace, reply_id),)),
        )
        self._held[reply_id] = self._dirty[reply_id] = held

    def _cut(self, reply_id: str, held: Held) -> None:
        held.cut = True
        held.generation_id = ""
        self._dirty[reply_id] = held

    def _apply(self, held: Held, event: Event) -> bool:
        """Whether anything changed."""
        before = msgspec.structs.replace(
            held.reply, next_seq=held.next_seq, tokens=held.tokens, offset=held.offset, pieces=()
        )
        after, seen = apply(before, event)
        if after is before or after is None:
            return False
        for number, stream_event in enumerate(seen, before.offset + 1):
            self._append(held, frame(number, stream_event))
            if isinstance(stream_event, Delta):
                held.text_bytes += len(stream_event.text.encode())
            elif isinstance(stream_event, Reset):
                held.text_bytes = 0
        if after.phase != before.phase or after.attempt != before.attempt or after.model != before.model:
            held.changed = True
        held.reply = after
        held.next_seq, held.tokens, held.offset = after.next_seq, after.tokens, after.offset
        held.attempt = after.attempt
        held.generation_id = after.generation_id if after.phase == "running" else ""
        return True

    def _append(self, held: Held, data: bytes) -> None:
        held.frames.append(data)
        held.size += len(data)
        self.pending_bytes += len(data)
