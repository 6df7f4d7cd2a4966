"""Which topics to create or change so that a cluster has what schemas.topics declares. Pure.

A partition count is never changed: it decides which partition a key is in, so raising it would
split the history of every conversation. That takes a new topic and a rebuild, and is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import FOREVER, Topic

SEGMENT_BYTES = 64 * 1024 * 1024
COMPACTED_SEGMENT_MS = 6 * 3_600_000


@dataclass(frozen=True)
class Declared:
    """A topic under its full name, as it shall be."""

    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Present:
    """A topic as the cluster has it."""

    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """What to do; ``refusals`` are sentences, and when there is one nothing may be done."""

    create: tuple[Declared, ...]
    change: tuple[Declared, ...]
    refusals: tuple[str, ...]


def declare(topics: tuple[Topic, ...], *, namespace: str, production: bool, replication: int) -> tuple[Declared, ...]:
    """The topics of one namespace with their counts and settings."""
    return tuple(
        Declared(
            name=f"{namespace}.{topic.name}",
            partitions=topic.partitions_production if production else topic.partitions,
            settings=settings_of(topic, production=production, replication=replication),
        )
        for topic in topics
    )


def settings_of(topic: Topic, *, production: bool, replication: int) -> dict[str, str]:
    """Kafka's settings for a topic."""
    settings = {
        "cleanup.policy": topic.cleanup,
        "retention.ms": str(topic.retention_ms if topic.cleanup == "delete" else FOREVER),
        "max.message.bytes": str(RECORD_BYTES_MAX + 64 * 1024),
        "min.insync.replicas": str(max(1, replication - 1)),
    }
    if topic.cleanup == "compact":
        settings["segment.ms"] = str(COMPACTED_SEGMENT_MS)
    if not production:
        settings["segment.bytes"] = str(SEGMENT_BYTES)
    return settings


def plan(declared: tuple[Declared, ...], present: Mapping[str, Present]) -> Plan:
    """Compare what shall be with what is."""
    create, change, refusals = [], [], []
    for topic in declared:
        found = present.get(topic.name)
        if found is None:
            create.append(topic)
        elif found.partitions != topic.partitions:
            refusals.append(
                f"{topic.name} has {found.partitions} partitions and {topic.partitions} are declared; changing the "
                "number would move keys to other partitions. Keep the number, or provision another namespace "
                "(TURNLOG_NAMESPACE) and rebuild there."
            )
        else:
            different = {
                name: value for name, value in topic.settings.items() if found.settings.get(name, value) != value
            }
            if different:
                change.append(Declared(topic.name, topic.partitions, different))
    return Plan(tuple(create), tuple(change), tuple(refusals))
