"""The views' process: `python -m projections views`."""

import sys
import time

from prometheus_client import REGISTRY

from projections.clickhouse.client import Database
from projections.views.metrics import ViewsMetrics
from projections.views.pace import Pace
from projections.views.settings import ViewsSettings
from projections.views.step import Batch, ViewsStep
from streams.log.kafka.log import KafkaLog
from streams.log.loop import ALWAYS, Loop, LoopSettings, run
from streams.log.process import Process, main
from streams.log.status import Standstill


def serve(settings: ViewsSettings, process: Process) -> None:
    """Write the views until the process is to stop."""
    database = Database(settings.clickhouse_url, settings.database)
    step = ViewsStep(database, Batch(rows=settings.views_batch_rows), Pace())
    REGISTRY.register(ViewsMetrics(step))
    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)

    standstill = Standstill()

    def turned(loop: Loop) -> None:
        lag = loop.lag()
        trouble = step.trouble or standstill.seen(lag, loop.counts.commits, time.monotonic())
        process.turned(lag, detail=trouble, degraded=bool(trouble))

    run(
        log,
        step,
        topics=["messages", "usage"],
        group="views",
        stop=process.stop,
        replica=settings.replica,
        settings=LoopSettings(
            records_max=10_000,
            gather_s=settings.views_gather_ms / 1000,
            gather_above=ALWAYS,
            expired=settings.offset_expired,
        ),
        on_turn=turned,
    )
    log.close()
    database.close()


def command(arguments: list[str]) -> int:
    """Run it; the exit code."""
    return main("projections-views", ViewsSettings, serve, arguments)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
