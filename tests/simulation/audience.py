"""The readers: each follows one reply to its end, through any API process, and keeps what docs/protocol.md says.

They come before the first token, in between and after the end, several to a reply. Their connections break, also in the
middle of an event, and they resume with the last offset that they have; a cursor is used again by another reader. What
each of them has is a `Read`, which the checker compares.
"""

import random
from collections.abc import Callable, Sequence

from api.reading import HEARTBEAT, Reader
from api.tails import END_MARK
from schemas.ids import Identities
from tests.simulation.frames import Read
from tests.simulation.front import PATIENCE, Front, Opened
from tests.simulation.store import MemoryStore
from tests.simulation.virtual import Task

PROMPT_MS = 5_000
"""A reader that is connected has what the buffer has within this time (where no push was lost)."""
STEP_MS_MAX = 500
CHUNKS = 4
AFTER_THE_END = (204, 404)


class Follower:
    """One reader."""

    def __init__(self, audience: "Audience", account_id: str, read: Read) -> None:
        self._audience = audience
        self._account_id = account_id
        self.read = read
        self.cursor = read.cursor
        self.done = False
        self.late = ""
        """What the buffer had, and this reader did not get, for too long."""
        self.after_end: int | None = None
        """What was answered to the cursor of the end."""
        self._ended = bool(read.frames) and END_MARK in read.frames[-1]
        self._front: Front | None = None
        self._task: Task | None = None
        self._reader: Reader | None = None
        self._not_before_ms = 0
        self._sent_ms = 0
        self._opened_ms = 0
        self._stepped_ms = 0
        self._behind_ms = 0

    def step(self, now_ms: int) -> None:
        """Go on, as far as there is something to go on with."""
        front = self._front
        if front is None:
            self._resume(now_ms)
            return
        if not front.alive:
            self._leave(now_ms)
            return
        if self._reader is None:
            self._opening(now_ms)
        else:
            self._reading(front, now_ms)

    def _resume(self, now_ms: int) -> None:
        front = self._audience.somewhere()
        if now_ms < self._not_before_ms or front is None:
            return
        self._front = front
        self._task = front.open(self._audience.identities, self._account_id, self.read.reply_id, self.cursor)
        self._opened_ms = self._sent_ms = now_ms

    def _opening(self, now_ms: int) -> None:
        task = self._task
        if task is None or not task.step():
            return
        answer = task.result
        self._task = None
        if isinstance(answer, Opened):
            if self._ended:  # the buffer was lost and there is nothing stored yet: it waits, and so could we
                answer.reader.close()
                self._over()
                return
            self._reader = answer.reader
            self._behind_ms, self._stepped_ms = 0, now_ms
            if answer.first:
                self._take(answer.first, now_ms)
        elif self._ended:
            self.after_end = answer
            self._over()
        elif answer in (404, 410, 204):
            self.read.told = {404: "deleted", 410: "gone", 204: ""}[answer]
            self._over()
        else:
            self._leave(now_ms)

    def _reading(self, front: Front, now_ms: int) -> None:
        reader = self._reader
        if reader is None:
            return
        if now_ms - self._sent_ms >= PATIENCE.heartbeat_s * 1000:
            self._sent_ms = now_ms
            reader.beat()
        before = self.cursor
        for _ in range(CHUNKS):
            if self._task is None:
                self._task = Task(front.loop, reader.next)
            if not self._task.step():
                break
            chunk: bytes | None = self._task.result
            self._task = None
            if chunk is None:
                self._leave(now_ms)
                return
            self._take(chunk, now_ms)
            if self._front is None or self.done:
                return
        self._measure(front, now_ms, moved=self.cursor > before)

    def _take(self, chunk: bytes, now_ms: int) -> None:
        self._sent_ms = now_ms
        if chunk == HEARTBEAT:
            return
        upto = self._audience.cuts(len(chunk))
        whole, _, _ = chunk[:upto].rpartition(b"\n\n")
        for frame in whole.split(b"\n\n") if whole else ():
            self.read.frames.append(frame + b"\n\n")
            self.cursor = int(frame[4 : frame.index(b"\n")])
            self._audience.taken += 1
        self._ended = bool(self.read.frames) and END_MARK in self.read.frames[-1]
        if self._ended or upto < len(chunk):
            again = self._ended and self._audience.rng.random() < 0.3
            self._leave(now_ms)
            self.done = self._ended and not again

    def _measure(self, front: Front, now_ms: int, *, moved: bool) -> None:
        """How long it lacks what is there."""
        step_ms = min(now_ms - self._stepped_ms, STEP_MS_MAX)
        self._stepped_ms = now_ms
        store = self._audience.store
        there = len(store.frames(self.read.reply_id))
        if moved or store.down or not front.connection.connected or self.cursor >= there:
            self._behind_ms = 0
            return
        self._behind_ms += step_ms
        patience_ms = PROMPT_MS
        if front.connection.lost_ms >= self._opened_ms:
            patience_ms += round(PATIENCE.heartbeat_s * 1000)
        if self._behind_ms > patience_ms:
            self.late = f"{self.read.reply_id} waits at {self.cursor} for {self._behind_ms} ms, {there} are there"

    def _leave(self, now_ms: int) -> None:
        self._over()
        self.done = False
        self._not_before_ms = now_ms + self._audience.rng.choice((0, 50, 500))

    def _over(self) -> None:
        if self._task is not None:
            self._task.close()
        if self._reader is not None:
            self._reader.close()
        self._front = self._task = self._reader = None
        self.done = True


class Audience:
    """All readers. `act` may bring a new one; `step` lets those go on that are not done."""

    def __init__(self, store: MemoryStore, identities: Identities, rng: random.Random) -> None:
        self.store = store
        self.identities = identities
        self.rng = rng
        self.fronts: list[Callable[[], Front | None]] = []
        self.faults = True
        self.taken = 0
        """Frames that arrived somewhere."""
        self.followers: list[Follower] = []
        self._going: list[Follower] = []

    @property
    def going(self) -> Sequence[Follower]:
        """Those that are not done."""
        return self._going

    def somewhere(self) -> Front | None:
        """An API process that answers."""
        there = [front for front in (find() for find in self.fronts) if front is not None and front.alive]
        return self.rng.choice(there) if there else None

    def cuts(self, size: int) -> int:
        """How many bytes of a chunk arrive before the connection breaks; all of them where it does not."""
        return self.rng.randrange(size + 1) if self.faults and self.rng.random() < 0.08 else size

    def come(self, account_id: str, reply_id: str) -> None:
        """A reader of this reply: from the beginning, or with what another one has, or with another one's cursor."""
        known = [one for one in self.followers if one.read.reply_id == reply_id and one.read.frames]
        read = Read(reply_id=reply_id, who=f"reader {len(self.followers)}", frames=[])
        if known and self.rng.random() < 0.4:
            other = self.rng.choice(known).read
            upto = self.rng.randrange(len(other.frames) + 1)
            if self.rng.random() < 0.5:
                read.after, read.frames = other.after, other.frames[:upto]
            elif upto:
                cursor = other.frames[upto - 1]
                read.after = int(cursor[4 : cursor.index(b"\n")])
        follower = Follower(self, account_id, read)
        self.followers.append(follower)
        self._going.append(follower)

    def step(self, now_ms: int, front: Front) -> None:
        """Let the readers of one API process go on, and those that have none."""
        for follower in self._going:
            if follower._front is front or follower._front is None or not follower._front.alive:
                follower.step(now_ms)
        self._going = [follower for follower in self._going if not follower.done]
