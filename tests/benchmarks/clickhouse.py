"""A ClickHouse server for benchmarks that need nothing else."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.projections.clickhouse import ClickHouse


@contextlib.contextmanager
def server(memory_mb: int = 8_192) -> Iterator[str]:
    """The address of the server at TURNLOG_CLICKHOUSE_URL, else of one of its own, which ends with the block."""
    given = os.environ.get("TURNLOG_CLICKHOUSE_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        own = ClickHouse(Path(folder), memory_mb=memory_mb)
        own.start()
        try:
            yield own.url
        finally:
            own.kill()
