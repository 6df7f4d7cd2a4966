"""The processes of this package: `python -m projections buffer|views [--check]`."""

import sys

from prometheus_client import REGISTRY

from projections.buffer.commands import Lifetimes
from projections.buffer.replies import Limits
from projections.buffer.step import BufferStep
from projections.clickhouse.client import Database
from projections.metrics import BufferMetrics, ViewsMetrics
from projections.redis.client import Store
from projections.settings import BufferSettings, ViewsSettings
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from streams.log.kafka.log import KafkaLog
from streams.log.loop import Loop, LoopSettings, run
from streams.log.process import BAD_SETTINGS, Process, main


def serve_buffer(settings: BufferSettings, process: Process) -> None:
    """Write the stream buffers until the process is to stop."""
    store = Store(settings.redis_url)
    step = BufferStep(
        store,
        settings.namespace,
        Lifetimes(open_ms=settings.buffer_open_s * 1000, retention_ms=settings.buffer_retention_s * 1000),
        Limits(
            frames_max=settings.buffer_frames_max,
            bytes_max=settings.buffer_bytes_max,
            open_max=settings.buffer_open_max,
            open_ms=settings.buffer_open_s * 1000,
        ),
    )
    REGISTRY.register(BufferMetrics(step))
    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)

    def turned(loop: Loop) -> None:
        process.turned(loop.lag(), detail=step.trouble, degraded=bool(step.trouble))

    run(
        log,
        step,
        topics=["tokens"],
        group="buffer",
        stop=process.stop,
        replica=settings.replica,
        settings=LoopSettings(
            gather_s=settings.buffer_gather_ms / 1000,
            gather_above=4,
            expired=settings.offset_expired,
        ),
        on_turn=turned,
    )
    log.close()
    store.close()


def serve_views(settings: ViewsSettings, process: Process) -> None:
    """Write the views until the process is to stop."""
    database = Database(settings.clickhouse_url, settings.database)
    step = ViewsStep(database, Batch(rows=settings.views_batch_rows), Pace())
    REGISTRY.register(ViewsMetrics(step))
    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)

    def turned(loop: Loop) -> None:
        process.turned(loop.lag(), detail=step.trouble, degraded=bool(step.trouble))

    run(
        log,
        step,
        topics=["messages", "usage"],
        group="views",
        stop=process.stop,
        replica=settings.replica,
        settings=LoopSettings(records_max=10_000, expired=settings.offset_expired),
        on_turn=turned,
    )
    log.close()
    database.close()


def command(arguments: list[str]) -> int:
    """Run one of them; the exit code."""
    match arguments:
        case ["buffer", *rest]:
            return main("projections-buffer", BufferSettings, serve_buffer, rest)
        case ["views", *rest]:
            return main("projections-views", ViewsSettings, serve_views, rest)
        case _:
            sys.stderr.write("usage: python -m projections buffer|views [--check]\n")
            return BAD_SETTINGS


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
