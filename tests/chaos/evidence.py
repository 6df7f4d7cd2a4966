"""What a stack says about its attempts outside of its API: the log, ClickHouse's views, dispatch's metrics."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from schemas.codec import decode
from schemas.events import GenerationReset, GenerationStarted, WorkerLeased, WorkerRegistered
from schemas.topics import TOKENS, WORKERS
from streams.log.kafka.log import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Partition, Record
from tests.chaos.wreck import Stack

NAMESPACE = "turnlog"
READ_S = 60.0
VIEWS_S = 60.0
COUNTED = "turnlog_dispatch_attempts_lost_total"
KINDS = (b"GenerationReset", b"GenerationStarted", b"WorkerRegistered", b"WorkerLeased")
LEASED_MS = 1_500
"""So old the word of a worker about its free slots may be; within so long resets are of one loss."""
QUERY = """
SELECT s.reply_id AS reply_id, s.tier AS tier, s.attempt AS attempt, s.void_numbers AS numbers,
    s.void_reasons AS reasons, s.void_workers AS workers,
    m.attempts AS message_attempts, m.void_reasons AS message_reasons
FROM generation_stats AS s LEFT JOIN messages AS m
    ON m.account_id = s.account_id AND m.conversation_id = s.conversation_id AND m.message_id = s.reply_id
FORMAT JSONEachRow
"""


class Row(msgspec.Struct, frozen=True):
    """A reply as the views have it: `generation_stats`, and what `messages` says of the same."""

    reply_id: str
    tier: str
    attempt: int
    numbers: tuple[int, ...]
    reasons: tuple[str, ...]
    workers: tuple[str, ...]
    message_attempts: int
    message_reasons: tuple[str, ...]


class Lost(msgspec.Struct, frozen=True):
    """An attempt that the log voids."""

    reason: str
    at_ms: int


class Lease(msgspec.Struct, frozen=True):
    """What a worker said of its free slots."""

    at_ms: int
    inbox: int
    free_slots: int


class Life(msgspec.Struct, frozen=True):
    """A worker process, from its registration to that of the next one in its inbox, if there is one."""

    name: str
    """Of the part."""
    began_ms: int
    over_ms: int | None


class Logged(msgspec.Struct, frozen=True):
    """What the log says."""

    lost: dict[tuple[str, int], Lost]
    """By reply and the attempt that began in place of it."""
    lives: dict[str, Life]
    """By the worker's instance."""
    leases: list[Lease] = []
    ran: dict[tuple[str, int], str] = {}
    """The instance that had an attempt of a reply."""

    def had_room(self, reply_id: str, attempt: int) -> bool:
        """Whether workers had said that they had slots for all that was lost with this attempt's predecessor."""
        lost = self.lost.get((reply_id, attempt))
        if lost is None:
            return False
        free = {one.inbox: one.free_slots for one in self.leases if lost.at_ms - LEASED_MS <= one.at_ms <= lost.at_ms}
        return sum(free.values()) >= sum(abs(other.at_ms - lost.at_ms) <= LEASED_MS for other in self.lost.values())


def logged(stack: Stack) -> Logged:
    """The resets, who had each attempt, the workers' lives and leases, of the whole log."""
    ran: dict[tuple[str, int], str] = {}
    lost: dict[tuple[str, int], Lost] = {}
    registered: dict[int, list[tuple[str, int]]] = {}
    leases: list[Lease] = []
    for record in _records(stack, (TOKENS.name, WORKERS.name)):
        match decode(record.value, record.headers).event:
            case GenerationReset() as event:
                lost.setdefault((event.reply_id, event.attempt), Lost(event.reason, record.timestamp_ms))
            case GenerationStarted() as event:
                ran.setdefault((event.reply_id, event.attempt), event.worker)
            case WorkerRegistered() as event:
                registered.setdefault(event.inbox, []).append((event.instance, record.timestamp_ms))
            case WorkerLeased() as event:
                leases.append(Lease(record.timestamp_ms, event.inbox, 0 if event.draining else event.free_slots))
            case _:
                pass
    lives: dict[str, Life] = {}
    for inbox, those in registered.items():
        for (instance, began_ms), following in zip(those, [*those[1:], None], strict=True):
            lives[instance] = Life(f"worker-{inbox}", began_ms, following[1] if following else None)
    return Logged(lost, lives, leases, ran)


def _records(stack: Stack, topics: Sequence[str]) -> list[Record]:
    """Those of the types that are looked for."""
    log = KafkaLog(stack.parts()["kafka"]["address"], NAMESPACE, "chaos")
    try:
        partitions = [Partition(topic, number) for topic in topics for number in range(log.partitions(topic))]
        reader = log.reader(partitions, BEGINNING)
        ends, found = reader.ends(), []
        deadline = time.monotonic() + READ_S
        while any(reader.positions().get(one, 0) < end for one, end in ends.items()):
            if time.monotonic() > deadline:
                raise AssertionError(f"the log cannot be read within {READ_S:.0f} s")
            for record in reader.poll(0.2):
                kind = dict(record.headers).get("ce_type") or b""
                if any(name in kind for name in KINDS):
                    found.append(record)
        return found
    finally:
        log.close()


def rows(stack: Stack, wanted: set[str]) -> dict[str, Row]:
    """By reply, once the views have all that are wanted."""
    deadline = time.monotonic() + VIEWS_S
    while True:
        url = f"{stack.parts()['clickhouse']['address']}/?database={NAMESPACE}&query={quote(QUERY)}"
        lines = httpx.post(url, timeout=30.0).raise_for_status().text.splitlines()
        found = {row.reply_id: row for row in (msgspec.json.decode(line, type=Row) for line in lines)}
        if wanted <= found.keys() or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def counted(stack: Stack) -> Counter[str]:
    """Attempts that came to nothing, by reason, as the metrics of dispatch count them."""
    counts: Counter[str] = Counter()
    for name, part in stack.parts().items():
        if name.startswith("streams-dispatch"):
            for family in text_string_to_metric_families(httpx.get(part["metrics"], timeout=10.0).text):
                for sample in family.samples:
                    if sample.name == COUNTED:
                        counts[sample.labels["reason"]] += round(sample.value)
    return counts


def shown(counts: Counter[str]) -> str:
    """In one line."""
    return json.dumps(dict(sorted(counts.items())))
