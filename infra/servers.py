"""The three servers as parts: those that the user already has are used, the others are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from infra.clickhouse_server import ClickHouseServer
from infra.data_folder import DataFolder
from infra.kafka_admin import kafka_answers
from infra.kafka_server import KafkaServer
from infra.parts import Part, Stage
from infra.ports import HOST, choose
from infra.probes import http_answers, redis_answers
from infra.progress import Tell
from infra.redis_server import RedisServer
from infra.settings import StackSettings

MALLOC = {"MALLOC_ARENA_MAX": "2"}
KAFKA_GRACE_S = 30.0
KAFKA_START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Addresses:
    """Where the processes find the servers."""

    kafka_bootstrap: str
    redis_url: str
    clickhouse_url: str

    def environment(self) -> dict[str, str]:
        """The settings that every process knows them by."""
        return {
            "TURNLOG_KAFKA_BOOTSTRAP": self.kafka_bootstrap,
            "TURNLOG_REDIS_URL": self.redis_url,
            "TURNLOG_CLICKHOUSE_URL": self.clickhouse_url,
        }


@dataclass(frozen=True)
class Servers:
    """The servers of one stack; None where the user has his own."""

    addresses: Addresses
    kafka: KafkaServer | None
    redis: RedisServer | None
    clickhouse: ClickHouseServer | None


def plan_servers(settings: StackSettings, folder: DataFolder) -> Servers:
    """Decide which servers are started and on which ports. Raises PortTaken."""
    ports = _choose_ports(settings, folder)
    kafka = redis = clickhouse = None
    if settings.kafka_bootstrap is None:
        kafka = KafkaServer(
            folder.path / "kafka", ports["kafka"], ports["kafka-controller"], heap_mb=settings.kafka_heap_mb
        )
    if settings.redis_url is None:
        redis = RedisServer(folder.path / "redis", ports["redis"], memory_mb=settings.redis_memory_mb)
    if settings.clickhouse_url is None:
        clickhouse = ClickHouseServer(
            folder.path / "clickhouse",
            ports["clickhouse"],
            ports["clickhouse-native"],
            memory_mb=settings.clickhouse_memory_mb,
        )
    addresses = Addresses(
        kafka_bootstrap=kafka.bootstrap if kafka else str(settings.kafka_bootstrap),
        redis_url=redis.url if redis else str(settings.redis_url),
        clickhouse_url=clickhouse.url if clickhouse else str(settings.clickhouse_url),
    )
    return Servers(addresses, kafka, redis, clickhouse)


def server_parts(servers: Servers, folder: DataFolder, env: Mapping[str, str], tell: Tell) -> list[Callable[[], Part]]:
    """Functions that make the three parts; each may take a while, and raises StackError."""
    return [
        partial(_kafka_part, servers, folder, env, tell),
        partial(_redis_part, servers, folder, env),
        partial(_clickhouse_part, servers, folder, env, tell),
    ]


def without_credentials(url: str) -> str:
    """A URL fit for showing."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _choose_ports(settings: StackSettings, folder: DataFolder) -> dict[str, int]:
    remembered = folder.remembered_ports()
    wanted: dict[str, tuple[int, str]] = {}
    if settings.kafka_bootstrap is None:
        wanted["kafka"] = (settings.kafka_port, "TURNLOG_KAFKA_PORT")
        wanted["kafka-controller"] = (0, "")
    if settings.redis_url is None:
        wanted["redis"] = (settings.redis_port, "TURNLOG_REDIS_PORT")
    if settings.clickhouse_url is None:
        wanted["clickhouse"] = (settings.clickhouse_port, "TURNLOG_CLICKHOUSE_PORT")
        wanted["clickhouse-native"] = (settings.clickhouse_native_port, "TURNLOG_CLICKHOUSE_NATIVE_PORT")
    ports: dict[str, int] = {}
    for part, (port, setting) in wanted.items():
        chosen = choose(port, remembered.get(part), part=part, setting=setting)
        while chosen in ports.values():
            chosen = choose(0, None, part=part, setting=setting)
        ports[part] = chosen
    folder.remember_ports(ports)
    return ports


def _kafka_part(servers: Servers, folder: DataFolder, env: Mapping[str, str], tell: Tell) -> Part:
    return Part(
        name="kafka",
        kind="kafka",
        stage=Stage.SERVERS,
        command=servers.kafka.command(tell) if servers.kafka else None,
        log=folder.log("kafka"),
        probe=kafka_answers(servers.addresses.kafka_bootstrap),
        address=servers.addresses.kafka_bootstrap,
        env={**env, **MALLOC},
        start_timeout_s=KAFKA_START_TIMEOUT_S,
        grace_s=KAFKA_GRACE_S,
    )


def _redis_part(servers: Servers, folder: DataFolder, env: Mapping[str, str]) -> Part:
    url = urlsplit(servers.addresses.redis_url)
    return Part(
        name="redis",
        kind="redis",
        stage=Stage.SERVERS,
        command=servers.redis.command() if servers.redis else None,
        log=folder.log("redis"),
        probe=redis_answers(url.hostname or HOST, url.port or 6379),
        address=without_credentials(servers.addresses.redis_url),
        env={**env, **MALLOC},
    )


def _clickhouse_part(servers: Servers, folder: DataFolder, env: Mapping[str, str], tell: Tell) -> Part:
    url = urlsplit(servers.addresses.clickhouse_url)
    path = "/ping" if servers.clickhouse is None else "/?query=SELECT%201"
    return Part(
        name="clickhouse",
        kind="clickhouse",
        stage=Stage.SERVERS,
        command=servers.clickhouse.command(tell) if servers.clickhouse else None,
        log=folder.log("clickhouse"),
        probe=http_answers(url.hostname or HOST, url.port or 8123, path, tls=url.scheme == "https"),
        address=without_credentials(servers.addresses.clickhouse_url),
        env={**env, **MALLOC},
    )
