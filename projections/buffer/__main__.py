"""The stream buffer's process: `python -m projections buffer`."""

import sys

from prometheus_client import REGISTRY

from projections.buffer.commands import Lifetimes
from projections.buffer.metrics import BufferMetrics
from projections.buffer.replies import Limits
from projections.buffer.settings import BufferSettings
from projections.buffer.step import BufferStep
from projections.redis.client import Store
from streams.log.kafka.log import KafkaLog
from streams.log.loop import Loop, LoopSettings, run
from streams.log.process import Process, main


def serve(settings: BufferSettings, process: Process) -> None:
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


def command(arguments: list[str]) -> int:
    """Run it; the exit code."""
    return main("projections-buffer", BufferSettings, serve, arguments)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
