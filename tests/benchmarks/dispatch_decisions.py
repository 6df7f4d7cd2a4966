"""What a decision of dispatch costs: one pool with a deep queue, its rules alone, without a log.

    python -m tests.benchmarks.dispatch_decisions [--decisions 3000] [--waiting 10000] [--accounts 1000] [--write]

64 workers with 16 slots each; 10,000 requests of 1,000 accounts wait, of 8 to 40 blocks each. In simulated time,
for each decision a generation finishes and another request is admitted; 64 leases a second come in between, with the
blocks that the workers cached. A decision costs all of that: the CPU time of `decide` and `committed` over the requests
given, with the encoding and decoding of their records. Three scenes:

- all slots are taken: what finishes gives its slot to the next request that waits, and the queue stays as deep;
- all workers have room, and have all of the prompt cached: 38 blocks that one account sends again and again;
- half of the slots are taken, and all workers have all 40 blocks of the prompt cached.

In the last two the queue is of another model, which no worker runs, so that what is admitted can be given at once: all
64 workers are compared, block by block. After the first scene the pool is restored from its records.
"""

import argparse
import gc
import itertools
import random
import sys
import time
from collections.abc import Iterator

import msgspec

from schemas.codec import decode
from schemas.events import (
    Event,
    GenerationAdmitted,
    GenerationFinished,
    GenerationRequested,
    WorkerLeased,
    WorkerRegistered,
)
from schemas.prefix import BLOCK_BYTES, blocks, packed, salt_of
from schemas.values import PromptMessage, Sampling, Usage
from streams.dispatch.limits import Limits
from streams.dispatch.load import Thresholds
from streams.dispatch.step import Dispatch
from streams.log.encoding import encoded
from streams.log.steps import Arrived, Output, Record
from tests.benchmarks.report import Result, Table, finish, options, percentile, result

WORKERS = 64
SLOTS = 16
KV_TOKENS = 400_000
RATE = 1_000
"""Decisions a second of simulated time, for the leases between them."""
BATCHES = (1, 16, 100)
WARM = 300
"""Decisions before anything is measured."""
BEGIN_MS = 1_764_434_400_000
NUMBER = 0
TARGET_MS = 1.0
RESTORE_S = 2.0


class Scene(msgspec.Struct, frozen=True):
    """What the workers are like. Without `hot_blocks` all slots are taken."""

    name: str
    title: str
    hot_blocks: int = 0
    """All is of one account and one prompt, which every worker has cached."""
    held: int = SLOTS
    """Slots taken of each worker."""


FULL = Scene("full", "all slots taken")
SCENES = (
    FULL,
    Scene("room", "all have room, 38 hot blocks", hot_blocks=38, held=1),
    Scene("half", "half of the slots taken, 40 warm blocks", hot_blocks=40, held=SLOTS // 2),
)


class Cost(msgspec.Struct):
    """What a run with one size of batch took, in CPU seconds a round."""

    batch: int
    scene: Scene = FULL
    given: int = 0
    rounds_s: list[float] = msgspec.field(default_factory=list)

    def each_s(self) -> float:
        """CPU of a decision."""
        return sum(self.rounds_s) / max(1, self.given)


def reading_s() -> float:
    """What reading the clock takes of the time that it tells: a system call, on some machines as long as a rule."""
    times = [time.process_time() for _ in range(1_000)]
    return (times[-1] - times[0]) / len(times)


class Pool:
    """The pool, its traffic, and the records that it would have left."""

    def __init__(self, waiting: int, accounts: int, scene: Scene = FULL) -> None:
        patient = Thresholds(shorten_ms=10**8, smaller_ms=2 * 10**8, refuse_ms=3 * 10**8)
        limits = Limits(thresholds=patient, inboxes=WORKERS, queue_max=waiting + max(BATCHES))
        self._make = lambda: Dispatch(frozenset({"default"}), limits)
        self._rng = random.Random(7)
        self._text = "".join(self._rng.choice("abcdefgh ijklmnop") for _ in range(200_000))
        self._accounts = accounts
        self._scene = scene
        self._hot = (PromptMessage(role="user", content=self._text[: scene.hot_blocks * BLOCK_BYTES]),)
        self._reading_s = reading_s()
        self._offset = 0
        self._numbers = itertools.count()
        self._now_ms = float(BEGIN_MS)
        self.step = self._make()
        self.step.restore(NUMBER, (), BEGIN_MS, 0)
        self.running: list[GenerationRequested] = []
        self._epochs: dict[int, int] = {}
        self._renewals = itertools.count()
        self.states: dict[str, bytes] = {}
        self.run([self._registered(inbox) for inbox in range(WORKERS)], Cost(0))
        placed = 0 if scene.hot_blocks else WORKERS * SLOTS
        for begun in range(0, waiting + placed, 500):
            self.run([self.queued() for _ in range(min(500, waiting + placed - begun))], Cost(0))
        for inbox in range(WORKERS):
            self.run([self._leased(inbox, whole=True)], Cost(0))
        for _ in range(scene.held * WORKERS - len(self.running)):
            self.run([self.admitted()], Cost(0))

    def run(self, events: list[Event], cost: Cost) -> None:
        """One round of the loop: records in, a decision, records out."""
        records = [self._record(event) for event in events]
        now_ms, flow_ms = round(self._now_ms), round(self._now_ms) - BEGIN_MS
        began = time.process_time()
        batch = [Arrived(record, decode(record.value, record.headers)) for record in records]
        decision = self.step.decide(NUMBER, batch, now_ms, flow_ms)
        self.step.committed(NUMBER, decision)
        self.step.written(NUMBER, decision)
        for output in (*decision.before, *decision.outputs, *decision.after, *decision.reports):
            encoded(output, "streams/dispatch", now_ms)
        cost.rounds_s.append(max(0.0, time.process_time() - began - self._reading_s))
        given = [output.event for output in decision.outputs if isinstance(output.event, GenerationRequested)]
        cost.given += len(given)
        self.running += given
        for state in decision.states:
            if state.value is None:
                self.states.pop(state.key, None)
            else:
                self.states[state.key] = state.value

    def measure(self, batch: int, decisions: int) -> Cost:
        """The steady state, for so many decisions."""
        traffic = self._traffic()
        self._decide(traffic, batch, Cost(batch), WARM)
        cost = Cost(batch, self._scene)
        gc.collect()
        self._decide(traffic, batch, cost, decisions)
        return cost

    def restore_s(self) -> float:
        """CPU seconds of a restart, from its records to the pool."""
        records = [Record("pools", NUMBER, n, key, value, (), 0) for n, (key, value) in enumerate(self.states.items())]
        step = self._make()
        gc.collect()
        began = time.process_time()
        step.restore(NUMBER, records, BEGIN_MS, 0)
        took = time.process_time() - began
        restored, before = step.shard(NUMBER).pools["default"], self.step.shard(NUMBER).pools["default"]
        assert restored.waiting == before.waiting
        return took

    def waiting(self) -> int:
        """How many wait."""
        return self.step.shard(NUMBER).pools["default"].waiting

    def _decide(self, traffic: Iterator[Event], batch: int, cost: Cost, decisions: int) -> None:
        while cost.given < decisions:
            self.run(list(itertools.islice(traffic, batch)), cost)

    def _traffic(self) -> Iterator[Event]:
        """A finish and an admission for each decision, and leases."""
        leases = 0.0
        while True:
            self._now_ms += 1_000 / RATE
            leases += WORKERS / RATE
            yield self._finished()
            yield self.admitted()
            if leases >= 1:
                leases -= 1
                yield self._leased(next(self._renewals) % WORKERS)

    def _record(self, event: Event) -> Record:
        made = encoded(Output(event=event), "bench", round(self._now_ms))
        self._offset += 1
        if isinstance(event, WorkerRegistered):
            self._epochs[event.inbox] = self._offset
        return Record(made.topic, NUMBER, self._offset, made.key, made.value, made.headers, round(self._now_ms))

    def admitted(self) -> GenerationAdmitted:
        """The next request to be served."""
        if not self._scene.hot_blocks:
            return self.queued()
        return self._admission(0, self._hot, self._scene.hot_blocks * BLOCK_BYTES, "model")

    def queued(self) -> GenerationAdmitted:
        """A request of some account, of 8 to 40 blocks: a system prompt of the account's, and what was said."""
        account = self._rng.randrange(self._accounts)
        size = self._rng.randint(8, 40) * BLOCK_BYTES - 2 * BLOCK_BYTES
        begin = self._rng.randrange(len(self._text) - size)
        said = [self._text[begin + at : begin + at + 700] for at in range(0, size, 700)]
        turns = [PromptMessage(role="assistant" if n % 2 else "user", content=text) for n, text in enumerate(said)]
        system = PromptMessage(role="system", content=self._text[account : account + 2 * BLOCK_BYTES])
        return self._admission(account, (system, *turns), size, "other" if self._scene.hot_blocks else "model")

    def _admission(self, account: int, prompt: tuple[PromptMessage, ...], size: int, model: str) -> GenerationAdmitted:
        number, paid = next(self._numbers), account % 5 == 0
        return GenerationAdmitted(
            pool="default",
            priority="paid" if paid else "free",
            reply_id=f"rep_{number:08}",
            message_id=f"msg_{number:08}",
            conversation_id=f"conv_{number % 20_000:06}",
            account_id=f"acc_{account:05}",
            tier="paid" if paid else "free",
            model=model,
            prompt=prompt,
            prompt_tokens_estimate=size // 4,
            sampling=Sampling(max_output_tokens=512),
            submitted_at_ms=round(self._now_ms),
            deadline_at_ms=round(self._now_ms) + 900_000,
        )

    def _finished(self) -> GenerationFinished:
        at = self._rng.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        request = self.running.pop()
        inbox = next(inbox for inbox, epoch in self._epochs.items() if epoch == request.epoch)
        return GenerationFinished(
            pool="default",
            inbox=inbox,
            epoch=request.epoch,
            reply_id=request.reply_id,
            generation_id=request.generation_id,
            attempt=request.attempt,
            status="completed",
            usage=Usage(input_tokens=3_000, output_tokens=self._rng.randint(10, 512)),
        )

    @staticmethod
    def _registered(inbox: int) -> WorkerRegistered:
        return WorkerRegistered(
            pool="default",
            instance=f"worker {inbox}",
            inbox=inbox,
            model="model",
            slots=SLOTS,
            kv_tokens=KV_TOKENS,
            context_tokens=32_768,
        )

    def _leased(self, inbox: int, *, whole: bool = False) -> WorkerLeased:
        """With 40 blocks more and 40 less, of 3,000 that are cached; the hot ones stay."""
        hot = blocks(salt_of("acc_00000"), self._hot) if whole else ()
        return WorkerLeased(
            pool="default",
            instance=f"worker {inbox}",
            inbox=inbox,
            epoch=self._epochs[inbox],
            renewal=1,
            free_slots=SLOTS,
            free_kv_tokens=KV_TOKENS,
            prefixes=packed([*hot, *(self._rng.getrandbits(32) for _ in range(3_000 if whole else 40))]),
            dropped=packed([self._rng.getrandbits(32) for _ in range(0 if whole else 40)]),
            whole=whole,
        )


def report(costs: list[Cost], waiting: int, accounts: int, restore_s: float, restored: int) -> Result:
    """The tables and targets."""
    rows = tuple(
        (
            cost.scene.title,
            f"{cost.batch}",
            f"{cost.each_s() * 1000:.2f} ms",
            f"{1 / cost.each_s():,.0f}",
            f"{percentile(cost.rounds_s, 0.5) * 1000:.2f} ms",
            f"{percentile(cost.rounds_s, 0.99) * 1000:.2f} ms",
        )
        for cost in costs
    )
    columns = ("workers", "records a round", "CPU a decision", "decisions a CPU second", "a round, p50", "a round, p99")
    worst = max(cost.each_s() for cost in costs)
    return result(
        "dispatch_decisions",
        f"{WORKERS} workers of {SLOTS} slots, {waiting:,} requests of {accounts:,} accounts wait; for each decision a "
        f"generation finishes and a request is admitted. Where workers have room, the queue is of another model. CPU "
        f"time of one process, without the log.",
        [
            Table("A decision", columns, rows),
            Table("A restart", ("requests", "CPU"), ((f"{restored:,}", f"{restore_s:.2f} s"),)),
        ],
        {
            **{f"cpu_ms_{cost.scene.name}_batch_{cost.batch}": cost.each_s() * 1000 for cost in costs},
            "restore_s": restore_s,
        },
        {
            f"a decision takes at most {TARGET_MS:.0f} ms of CPU": worst * 1000 <= TARGET_MS,
            "1,000 decisions a second in one process": worst <= 1 / 1_000,
            f"a pool with 10,000 waiting requests is restored within {RESTORE_S:.0f} s": restore_s <= RESTORE_S,
        },
    )


def main() -> int:
    """Exit code 1 when a target was missed."""
    parser = options(__doc__)
    parser.add_argument("--decisions", type=int, default=3_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--accounts", type=int, default=1_000)
    chosen: argparse.Namespace = parser.parse_args()
    pool = Pool(chosen.waiting, chosen.accounts)
    waiting = pool.waiting()
    costs = [pool.measure(batch, chosen.decisions) for batch in BATCHES]
    restored, restore_s = len(pool.step.shard(NUMBER).pools["default"].requests), pool.restore_s()
    for scene in SCENES[1:]:
        pool = Pool(chosen.waiting, chosen.accounts, scene)
        costs += [pool.measure(batch, chosen.decisions) for batch in BATCHES]
    return finish(report(costs, waiting, chosen.accounts, restore_s, restored), chosen)


if __name__ == "__main__":
    sys.exit(main())
