"""ClickHouse: a `clickhouse` binary of the machine, else the engine from its library in a child of its own."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from infra.clickhouse_library import library
from infra.ports import HOST
from infra.progress import Tell


@dataclass(frozen=True)
class ClickHouseServer:
    """Where the server keeps its data and listens."""

    folder: Path
    http_port: int
    tcp_port: int
    memory_mb: int

    @property
    def url(self) -> str:
        """Address for clients (HTTP)."""
        return f"http://{HOST}:{self.http_port}"

    def command(self, tell: Tell) -> tuple[str, ...]:
        """Command line of the server, fetching the library when it is missing. Raises ComponentUnavailable."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "config.xml"
        settings.write_text(self.configuration())
        if found := shutil.which("clickhouse"):
            return (found, "server", f"--config-file={settings}")
        child = (sys.executable, "-m", "infra.clickhouse_child", str(library(tell)), str(settings))
        return (*child, str(self.folder), str(self.http_port), str(self.tcp_port))

    def configuration(self) -> str:
        """Text of the settings file: little memory, the loopback interface, no logs of its own in tables."""
        return CONFIGURATION.format(
            folder=escape(str(self.folder)),
            host=HOST,
            http_port=self.http_port,
            tcp_port=self.tcp_port,
            memory=self.memory_mb * 1024 * 1024,
        )


CONFIGURATION = """\
<clickhouse>
    <logger>
        <level>warning</level><console_log_level>warning</console_log_level><console>1</console>
        <levels><logger><name>BackgroundSchedulePool/BgSchPool</name><level>error</level></logger></levels>
    </logger>
    <path>{folder}/</path>
    <listen_host>{host}</listen_host>
    <http_port>{http_port}</http_port>
    <tcp_port>{tcp_port}</tcp_port>
    <max_server_memory_usage>{memory}</max_server_memory_usage>
    <mark_cache_size>67108864</mark_cache_size>
    <primary_index_cache_size>67108864</primary_index_cache_size>
    <index_mark_cache_size>16777216</index_mark_cache_size>
    <compiled_expression_cache_size>16777216</compiled_expression_cache_size>
    <asynchronous_metrics_update_period_s>60</asynchronous_metrics_update_period_s>
    <profiles><default/></profiles>
    <users>
        <default>
            <password/>
            <networks><ip>127.0.0.1</ip><ip>::1</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
        </default>
    </users>
    <quotas><default/></quotas>
</clickhouse>
"""
