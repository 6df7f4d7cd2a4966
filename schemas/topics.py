"""The topics: name, key, partitions, retention. Declared here only; provisioning follows this.

Names are logical; the Kafka adaptor puts `<namespace>.` before them. Raising a partition count re-maps keys and
is refused by provisioning: it takes a new topic and a rebuild.
"""

from typing import Literal

import msgspec

from schemas.values import PRIORITIES

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FOREVER = -1

Cleanup = Literal["delete", "compact"]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. `partitions` is the local default; `partitions_production` what a large deployment starts with."""

    name: str
    key: str
    partitions: int
    partitions_production: int
    retention_ms: int
    cleanup: Cleanup = "delete"
    transactional: bool = False
    """Written in transactions: its readers must be `read_committed`."""
    description: str


MESSAGES = Topic(
    name="messages",
    key="conversation_id",
    partitions=8,
    partitions_production=64,
    retention_ms=FOREVER,
    description="What people did in their conversations, and the replies they got.",
)
CANCELLATIONS = Topic(
    name="cancellations",
    key="conversation_id",
    partitions=8,
    partitions_production=64,
    retention_ms=7 * DAY_MS,
    description="Replies that shall stop. Same partitions as messages; every worker reads all of it.",
)
REQUESTS = Topic(
    name="requests",
    key="pool",
    partitions=4,
    partitions_production=64,
    retention_ms=DAY_MS,
    transactional=True,
    description="What turns admitted, declined or cancelled, for the dispatch of a pool.",
)
WORKERS = Topic(
    name="workers",
    key="pool",
    partitions=4,
    partitions_production=64,
    retention_ms=DAY_MS,
    description="Registrations, leases and finished generations. Same partitions as requests.",
)
TOKENS = Topic(
    name="tokens",
    key="conversation_id",
    partitions=8,
    partitions_production=128,
    retention_ms=3 * DAY_MS,
    description="What the readers of a reply see, in the order that decides what counts.",
)
USAGE = Topic(
    name="usage",
    key="account_id",
    partitions=4,
    partitions_production=64,
    retention_ms=396 * DAY_MS,
    description="What each reply used and costs. A product of its own: read it with any CloudEvents consumer.",
)
CONVERSATIONS = Topic(
    name="conversations",
    key="conversation_id/…",
    partitions=8,
    partitions_production=64,
    retention_ms=FOREVER,
    cleanup="compact",
    transactional=True,
    description="State records of turns, in the partition of their messages.",
)
POOLS = Topic(
    name="pools",
    key="pool/reply_id/…",
    partitions=4,
    partitions_production=64,
    retention_ms=FOREVER,
    cleanup="compact",
    transactional=True,
    description="State records of dispatch, in the partition of their requests.",
)
DEMAND = Topic(
    name="demand",
    key="pool/model/…",
    partitions=1,
    partitions_production=1,
    retention_ms=FOREVER,
    cleanup="compact",
    description="Demand and forecast per pool, model and tier; workers desired per pool and model.",
)
LOAD = Topic(
    name="load",
    key="pool/model",
    partitions=1,
    partitions_production=1,
    retention_ms=FOREVER,
    cleanup="compact",
    description="How full each pool is for each of its models; each API process holds the newest.",
)
ACCOUNTS = Topic(
    name="accounts",
    key="account_id/…",
    partitions=1,
    partitions_production=1,
    retention_ms=FOREVER,
    cleanup="compact",
    description="Accounts, tiers, keys and limits; each API process holds the fold of it.",
)

FIXED: tuple[Topic, ...] = (
    MESSAGES,
    CANCELLATIONS,
    REQUESTS,
    WORKERS,
    TOKENS,
    USAGE,
    CONVERSATIONS,
    POOLS,
    DEMAND,
    LOAD,
    ACCOUNTS,
)

INBOXES = 16
"""Partitions of a priority topic: workers of one pool on a small deployment (64 in production)."""


def inference(pool: str, priority: str) -> Topic:
    """The priority topic of a pool; its partitions are the workers' inboxes."""
    return Topic(
        name=f"inference.{pool}.{priority}",
        key="reply_id; partition = inbox",
        partitions=INBOXES,
        partitions_production=64,
        retention_ms=DAY_MS,
        transactional=True,
        description=f"Requests of priority {priority} for the workers of a pool.",
    )


def dead(topic: str) -> Topic:
    """Where records of a topic go that cannot be processed, with their error and origin in the headers."""
    return Topic(
        name=f"{topic}.dead",
        key="as the source",
        partitions=1,
        partitions_production=1,
        retention_ms=30 * DAY_MS,
        description=f"Records of {topic} that could not be processed.",
    )


PARKED = dead(REQUESTS.name)
"""Also where dispatch puts the replies that it gave up for having killed their workers."""


def all_topics(pools: tuple[str, ...]) -> tuple[Topic, ...]:
    """Every topic that a deployment with these pools has, dead letters included."""
    boxes = tuple(inference(pool, priority) for pool in pools for priority in PRIORITIES)
    consumed = tuple(dead(topic.name) for topic in FIXED if topic.cleanup == "delete")
    return FIXED + boxes + consumed
