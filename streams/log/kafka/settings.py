"""What librdkafka is told, and why. https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"""

import logging
from typing import Any

from schemas.limits import RECORD_BYTES_MAX
from streams.log.kafka.noise import Seldom

Settings = dict[str, Any]

REQUEST_TIMEOUT_S = 10.0
"""For one question to the brokers."""
PATIENCE_S = 30.0
"""How long a question is asked again before the process gives up and is started anew: a lone broker that was
killed needs about 13 seconds."""
SESSION_MS = 6_000
"""After this silence a member's partitions go to others; the least that brokers allow as they are shipped."""
TRANSACTION_MS = 10_000
HELD_BYTES = 262_144
"""More than this is not held back."""
STATISTICS_MS = 500
STANDING_MS = 2_000
"""Who only wants to know whether it is in its group asks more seldom."""
SILENCE_MS = 1_500
"""A broker that we fetch from answers every `fetch.wait.max.ms`; silent for this long it counts as unreachable."""

LOGGER = logging.getLogger("turnlog.kafka")
LOGGER.addFilter(Seldom())


def client(bootstrap: str, client_id: str) -> Settings:
    """Common to all clients."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "socket.timeout.ms": 10_000,
        "socket.nagle.disable": True,
        # Default 10 s: after a broker's restart everybody would come back that much later.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        # By default (rebootstrap) librdkafka 2.16 throws its brokers away when all of them are down. A transactional
        # producer may then never find its partitions again: it hung for good after the SIGKILL of a lone broker.
        "metadata.recovery.strategy": "none",
        "allow.auto.create.topics": False,
        "logger": LOGGER,
    }


def producer(base: Settings, *, linger_ms: float, delivery_timeout_s: float) -> Settings:
    """Idempotent, ordered, acknowledged by all replicas; a key is where Java clients would put it."""
    return base | {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "linger.ms": linger_ms,
        "delivery.timeout.ms": int(delivery_timeout_s * 1000),
        "request.timeout.ms": min(10_000, int(delivery_timeout_s * 1000)),
        "message.max.bytes": RECORD_BYTES_MAX,
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": 131_072,
        "retry.backoff.ms": 20,
        "compression.type": "none",
    }


def transactional(base: Settings, transactional_id: str) -> Settings:
    """A transactional producer."""
    return producer(base, linger_ms=0, delivery_timeout_s=TRANSACTION_MS / 1000) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_MS,
        # The coordinator refuses a request while it still writes down the one before ("concurrent transactions"); with
        # the default of 100 ms that is the greatest part of a stage's time under load.
        "retry.backoff.ms": 2,
        "retry.backoff.max.ms": 50,
    }


def consumer(base: Settings, group: str, *, committed_only: bool, held_ms: int = 0) -> Settings:
    """A consumer that decides about its offsets itself. `held_ms`: the brokers may hold records back for so long."""
    held: Settings = {"fetch.min.bytes": HELD_BYTES, "fetch.wait.max.ms": held_ms} if held_ms else {}
    return base | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Never jump: where to begin is always given, and an offset that is gone is an error.
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        # A partition that is new to a consumer waits for the fetch in flight: at the default of 500 ms that was the
        # longest part of a restart. An idle consumer asks five times a second instead of twice.
        "fetch.wait.max.ms": 200,
        "fetch.message.max.bytes": RECORD_BYTES_MAX,
        # pause() throws away what was fetched ahead, so little is fetched ahead.
        "queued.min.messages": 2_000,
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 10,
        **held,
    }


def member(settings: Settings, instance: str, *, together: bool) -> Settings:
    """A member of a group with a fixed name: its next life takes its place with no rebalance."""
    common = settings | {
        "group.instance.id": instance,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 1_000,
        "max.poll.interval.ms": 120_000,
        "statistics.interval.ms": STATISTICS_MS if together else STANDING_MS,
    }
    if not together:
        return common | {"partition.assignment.strategy": "cooperative-sticky"}
    # The transactional loop: it needs to know whether the brokers answer (statistics), and when it has reached the
    # end of a partition whose last record is the mark of a transaction (end-of-partition events).
    return common | {
        "partition.assignment.strategy": "range",
        "enable.partition.eof": True,
    }
