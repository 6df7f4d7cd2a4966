"""What provisioning and the supervisor ask of a Kafka cluster, through confluent-kafka's admin client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from infra.errors import PartFailed
from infra.parts import Health, Probe

REQUEST_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 2.0
LEADERS_TIMEOUT_S = 60.0
LEADER_POLL_S = 0.1


@dataclass(frozen=True)
class TopicOnServer:
    """A topic as the cluster has it; ``leaderless`` counts partitions that cannot be written now."""

    name: str
    partitions: int
    leaderless: int


class KafkaAdmin:
    """An admin connection. Every call blocks, and raises PartFailed when the cluster does not answer."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        silent = logging.getLogger("turnlog.kafka-admin")
        silent.propagate = False
        silent.addHandler(logging.NullHandler())
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": "turnlog-infra",
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
        }
        self._client = AdminClient(settings, logger=silent)

    def topics(self, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, TopicOnServer]:
        """All topics of the cluster, by name."""
        try:
            metadata = self._client.list_topics(timeout=timeout_s)
        except KafkaException as failure:
            raise PartFailed(f"Kafka at {self._bootstrap} does not answer ({failure.args[0].str()}).") from failure
        return {
            name: TopicOnServer(
                name=name,
                partitions=len(topic.partitions),
                leaderless=sum(1 for partition in topic.partitions.values() if partition.leader < 0),
            )
            for name, topic in metadata.topics.items()
        }

    def create_all(self, topics: list[tuple[str, int, Mapping[str, str]]], replication: int) -> None:
        """Create topics given as (name, partitions, settings); one that exists meanwhile is no error."""
        if not topics:
            return
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(settings))
            for name, partitions, settings in topics
        ]
        for name, created in self._client.create_topics(wanted, request_timeout=REQUEST_TIMEOUT_S).items():
            try:
                created.result()
            except KafkaException as failure:
                if failure.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise PartFailed(f"Kafka refused to create {name}: {failure.args[0].str()}.") from failure

    def settings(self, topics: list[str]) -> dict[str, dict[str, str]]:
        """The settings in force, by topic."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        if not wanted:
            return {}
        found = self._client.describe_configs(wanted, request_timeout=REQUEST_TIMEOUT_S)
        try:
            return {
                resource.name: {entry.name: entry.value or "" for entry in future.result().values()}
                for resource, future in found.items()
            }
        except KafkaException as failure:
            raise PartFailed(f"Kafka did not tell its topics' settings: {failure.args[0].str()}.") from failure

    def change_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Set these settings of a topic and leave its others."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        (changed,) = self._client.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S).values()
        try:
            changed.result()
        except KafkaException as failure:
            raise PartFailed(f"Kafka refused the settings of {topic}: {failure.args[0].str()}.") from failure

    def delete(self, topics: list[str]) -> None:
        """Delete topics; one that is gone is no error."""
        if not topics:
            return
        for name, deleted in self._client.delete_topics(topics, request_timeout=REQUEST_TIMEOUT_S).items():
            try:
                deleted.result()
            except KafkaException as failure:
                if failure.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise PartFailed(f"Kafka refused to delete {name}: {failure.args[0].str()}.") from failure

    def await_leaders(self, topics: frozenset[str], timeout_s: float = LEADERS_TIMEOUT_S) -> None:
        """Return when every partition of the topics can be written."""
        deadline = time.monotonic() + timeout_s
        while True:
            known = self.topics()
            lacking = [name for name in topics if name not in known or known[name].leaderless]
            if not lacking:
                return
            if time.monotonic() > deadline:
                raise PartFailed(f"Kafka has no leader for {', '.join(sorted(lacking))} after {timeout_s:.0f} s.")
            time.sleep(LEADER_POLL_S)


def kafka_answers(bootstrap: str) -> Probe:
    """Ready when the broker answers and every partition has a leader."""
    admin: list[KafkaAdmin] = []

    def look() -> Health:
        if not admin:
            admin.append(KafkaAdmin(bootstrap))
        try:
            topics = admin[0].topics(PROBE_TIMEOUT_S)
        except PartFailed as failure:
            return Health("starting", str(failure))
        leaderless = [topic.name for topic in topics.values() if topic.leaderless]
        if leaderless:
            return Health("starting", f"no leader yet for partitions of {len(leaderless)} topics")
        return Health("ready")

    async def probe() -> Health:
        return await asyncio.to_thread(look)

    return probe
