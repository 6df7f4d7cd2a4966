"""`python -m inference_workers`: one worker, for one replica of one model."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import structlog
import uvloop
from msgspec.structs import asdict
from prometheus_client import REGISTRY

from inference_workers.engine import EngineDead, EngineUnavailable
from inference_workers.metrics import EngineMetrics
from inference_workers.registry import check, make
from inference_workers.settings import WorkerSettings
from inference_workers.worker import Exit, Worker
from schemas.ids import instance_id
from schemas.topics import inference
from schemas.values import PRIORITIES
from streams.log.kafka import KafkaLog
from streams.log.process import FAILED, Process, main
from streams.log.steps import Fenced

logger = structlog.get_logger("inference_workers")

SHUTDOWN_S = 1.0
STARTING_EVERY_S = 1.0

STARTED = 0
"""Where numbers of signals are written: no signal's."""


def serve(settings: WorkerSettings, process: Process) -> None:
    """Run the worker to its end.

    Raises:
        Fenced: another worker has taken the inbox.
        SystemExit: the engine cannot be used, or has died: this process has to be replaced.
    """
    try:
        ended = uvloop.run(_serve(settings, process))
    except (EngineUnavailable, EngineDead, ValueError) as error:
        logger.critical("engine_unavailable", engine=settings.engine, reason=str(error))
        process.turned(detail=str(error), degraded=True)
        raise SystemExit(FAILED) from error
    if ended == "superseded":
        raise Fenced(f"another worker has taken inbox {settings.replica} of the pool {settings.pool}")
    if ended != "drained":
        logger.critical("engine_failed", engine=settings.engine, reason=ended)
        raise SystemExit(FAILED)


async def _serve(settings: WorkerSettings, process: Process) -> Exit:
    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, f"worker-{settings.pool}-{settings.replica}")
    inboxes = log.partitions(inference(settings.pool, PRIORITIES[0]).name)
    if settings.replica >= inboxes:
        raise ValueError(f"TURNLOG_REPLICA is {settings.replica}, and the pool {settings.pool} has {inboxes} inboxes")
    engine = make(settings)
    with starting(process, f"starting the engine {settings.engine}"):
        await engine.start()
    metrics = EngineMetrics(settings.pool, engine.info().model, REGISTRY)

    def heartbeat(detail: str) -> None:
        process.turned(detail=detail)
        metrics.take(asdict(engine.stats()) | {"unanswered_aborts": worker.unanswered_aborts})

    worker = Worker(
        log=log,
        engine=engine,
        pool=settings.pool,
        inbox=settings.replica,
        instance=instance_id(),
        policy=settings.policy(),
        heartbeat=heartbeat,
    )
    gc.collect()
    gc.freeze()  # what is loaded stays: collections look at new objects only, and pauses stay short
    try:
        return await worker.run(process.stop)
    finally:
        await engine.shutdown(SHUTDOWN_S)
        await asyncio.to_thread(log.close)


@contextlib.contextmanager
def starting(process: Process, detail: str) -> Iterator[None]:
    """Say every second that it is starting: loading a model takes minutes, and may hold the event loop.

    Told to stop meanwhile, the process ends at once, from a thread of its own: the load cannot be broken off, and may
    hold the main thread, in which a signal's handler would wait for it. Nothing is lost: it has not registered yet.
    So the signal is taken where it arrives first, at the file descriptor to which the interpreter writes it.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    heard.settimeout(STARTING_EVERY_S)

    def say() -> None:
        while not process.stop.is_set():
            try:
                signals = heard.recv(64)
            except TimeoutError:
                process.starting(detail)
                continue
            if STARTED in signals:
                return
            if signal.SIGTERM in signals or signal.SIGINT in signals:
                process.stop.set()
        leave(process)

    process.starting(detail)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    saying = threading.Thread(target=say, name="starting", daemon=True)
    saying.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        told.send(bytes([STARTED]))
        saying.join()
        heard.close()
        told.close()


def leave(process: Process) -> NoReturn:
    """End the process here and now, in order as far as anybody can see."""
    process.turned(detail="told to stop while it started")
    logger.info("stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main("worker", WorkerSettings, serve, sys.argv[1:], also=check))
