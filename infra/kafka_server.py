"""A single Kafka broker in KRaft mode: its settings, its storage, its process."""

from __future__ import annotations

import base64
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from infra.errors import PartFailed
from infra.java import java
from infra.kafka_jars import class_path
from infra.ports import HOST
from infra.progress import Tell

FORMAT_TIMEOUT_S = 120

LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = STDOUT
appender.out.type = Console
appender.out.name = STDOUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
"""

# Small pools of threads and buffers, because one machine runs everything.
SMALL = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 4,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 1,
}

# A killed member, writer or broker must be missed quickly: the work of a conversation waits for it.
# (Kafka's defaults keep the partitions of a killed member of the new group protocol for 45 s.)
QUICK_FAILOVER = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 2000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.session.timeout.ms": 2000,
    "group.consumer.heartbeat.interval.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}

# Our client registers each partition before it writes there, and takes a new epoch when it cannot know what became of
# a write; checking it again costs a quarter of a transaction's time. See docs/decisions/0012.
QUICK_TRANSACTIONS = {"transaction.partition.verification.enable": "false"}

ONE_NODE = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}

# Topics are declared in schemas.topics. Offsets must outlive a long pause of a local deployment.
KEPT = {
    "auto.create.topics.enable": "false",
    "offsets.retention.minutes": 60 * 24 * 365,
    "message.max.bytes": 8 * 1024 * 1024,
}


@dataclass(frozen=True)
class KafkaServer:
    """Where the broker keeps its data and listens."""

    folder: Path
    port: int
    controller_port: int
    heap_mb: int

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"

    @property
    def storage(self) -> Path:
        """Folder of the log segments."""
        return self.folder / "data"

    def properties(self) -> str:
        """Text of the broker's settings file."""
        own = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "listeners": f"BROKER://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"BROKER://{HOST}:{self.port}",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.storage,
        }
        settings = own | ONE_NODE | SMALL | QUICK_FAILOVER | QUICK_TRANSACTIONS | KEPT
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def command(self, tell: Tell) -> tuple[str, ...]:
        """Command line of the broker; fetches what is missing and formats the storage the first time.

        Raises ComponentUnavailable or PartFailed.
        """
        runtime = (str(java()), *java_options(self.folder, class_path(tell)))
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "server.properties"
        settings.write_text(self.properties())
        (self.folder / "log4j2.properties").write_text(LOGGING)
        if not (self.storage / "meta.properties").exists():
            _format(runtime, settings)
        heap = (f"-Xmx{self.heap_mb}m", "-Xms48m", "-XX:MaxMetaspaceSize=128m", "-XX:ReservedCodeCacheSize=48m")
        return (runtime[0], *heap, *runtime[1:], "kafka.Kafka", str(settings))


def java_options(folder: Path, jars: str) -> tuple[str, ...]:
    """Options that keep the virtual machine small and quick to start."""
    return (
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xss512k",
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={folder}/hs_err_%p.log",
        f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
        "-cp",
        jars,
    )


def _format(runtime: tuple[str, ...], settings: Path) -> None:
    command = (*runtime, "kafka.tools.StorageTool", "format", "-t", new_cluster_id(), "-c", str(settings))
    result = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
    if result.returncode != 0:
        reason = (result.stderr or result.stdout).strip().splitlines()
        raise PartFailed(f"Kafka could not format its storage: {reason[-1] if reason else 'no reason given'}")


def new_cluster_id() -> str:
    """A random id as Kafka makes them. None that begins like an option: the storage tool would take it for one."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
