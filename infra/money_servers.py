"""Where commands about money find the servers: in the environment, else in the stack that runs on the data folder."""

from __future__ import annotations

from pathlib import Path

from infra.cli_options import settings_from
from infra.errors import StackError
from infra.settings import StackSettings


def kafka_of(data: Path | None) -> tuple[str, str]:
    """Kafka's address and the namespace. Raises StackError."""
    settings = settings_from(StackSettings, {"data": data})
    found = settings.kafka_bootstrap or _of_stack(settings, "kafka", "TURNLOG_KAFKA_BOOTSTRAP")
    return found, settings.namespace


def clickhouse_of(data: Path | None) -> tuple[str, str]:
    """ClickHouse's address and the namespace. Raises StackError."""
    settings = settings_from(StackSettings, {"data": data})
    found = settings.clickhouse_url or _of_stack(settings, "clickhouse", "TURNLOG_CLICKHOUSE_URL")
    return found, settings.namespace


def redis_of(data: Path | None) -> str:
    """Redis's address. Raises StackError."""
    settings = settings_from(StackSettings, {"data": data})
    return settings.redis_url or _of_stack(settings, "redis", "TURNLOG_REDIS_URL")


def _of_stack(settings: StackSettings, part: str, variable: str) -> str:
    from infra.data_folder import DataFolder
    from infra.stack import read_snapshot

    folder = DataFolder(settings.data.absolute())
    snapshot = read_snapshot(folder.snapshot)
    parts = snapshot["parts"] if snapshot else []
    address = next((str(one["address"]) for one in parts if one["name"] == part), None)
    if address is None:
        raise StackError(
            f"No stack runs on {folder.path}: start `turnlog up`, name another folder with --data, or set {variable}."
        )
    return address
