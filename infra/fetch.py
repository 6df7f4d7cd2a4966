"""Brings everything that the local stack needs onto the machine, before it is needed."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from infra import clickhouse_library, kafka_jars
from infra.errors import StackError
from infra.java import java
from infra.progress import Tell
from infra.redis_server import binary
from infra.settings import StackSettings


def is_complete(settings: StackSettings) -> bool:
    """Whether `up` needs no download. Looks at the cache only."""
    kafka = settings.kafka_bootstrap is not None or kafka_jars.is_fetched()
    clickhouse = (
        settings.clickhouse_url is not None or shutil.which("clickhouse") is not None or clickhouse_library.is_fetched()
    )
    return kafka and clickhouse


def fetch(settings: StackSettings, tell: Tell) -> None:
    """Download what is missing, side by side. Raises the first StackError, after the others are done."""
    jobs: list[Future[Any]] = []
    with ThreadPoolExecutor(3) as pool:
        if settings.kafka_bootstrap is None:
            jobs += [pool.submit(java), pool.submit(kafka_jars.class_path, tell)]
        if settings.clickhouse_url is None and shutil.which("clickhouse") is None:
            jobs.append(pool.submit(clickhouse_library.library, tell))
        if settings.redis_url is None:
            jobs.append(pool.submit(binary))
    failures = [failure for job in jobs if isinstance(failure := job.exception(), StackError)]
    for job in jobs:
        if not isinstance(job.exception(), StackError):
            job.result()
    if failures:
        raise failures[0]
