"""The limits' process: `python -m projections limits`."""

import sys

from prometheus_client import REGISTRY

from projections.limits.commands import Owners
from projections.limits.metrics import LimitsMetrics
from projections.limits.settings import LimitsSettings
from projections.limits.step import LimitsStep, Span
from projections.redis.client import Store
from schemas.account import Accounts
from schemas.topics import ACCOUNTS, USAGE
from streams.log.compacted import CompactedReader
from streams.log.kafka.log import KafkaLog
from streams.log.log import Log, since
from streams.log.loop import Loop, LoopSettings, run
from streams.log.process import Process, main
from streams.log.steps import Partition

LOOK_S = 0.1


def serve(settings: LimitsSettings, process: Process) -> None:
    """Settle replies until the process is to stop."""
    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
    accounts = Accounts()
    reader = CompactedReader(log, ACCOUNTS.name, accounts.apply)
    store = Store(settings.redis_url)
    owners = Owners(accounts, settings.tiers)
    step = LimitsStep(
        store, settings.namespace, owners, lambda at, ms: span_of(log, at, ms), log.partitions(USAGE.name)
    )
    REGISTRY.register(LimitsMetrics(step))
    reader.start()
    # Whose buckets they are, and for how long back they matter, follows from the accounts.
    while not reader.complete and not process.stop.wait(LOOK_S):
        process.starting("reading the accounts")

    def turned(loop: Loop) -> None:
        process.turned(loop.lag(), detail=step.trouble, degraded=bool(step.trouble))

    if reader.complete:
        run(
            log,
            step,
            topics=[USAGE.name],
            group="limits",
            stop=process.stop,
            replica=settings.replica,
            settings=LoopSettings(expired=settings.offset_expired),
            on_turn=turned,
        )
    reader.close()
    log.close()
    store.close()


def span_of(log: Log, partition: Partition, since_ms: int) -> Span:
    """Where the records of a time begin, and where the partition ends now."""
    reader = log.reader([partition], since(since_ms))
    try:
        first, end = reader.positions()[partition], reader.ends()[partition]
    finally:
        reader.close()
    return Span(min(first, end), end)


def command(arguments: list[str]) -> int:
    """Run it; the exit code."""
    return main("projections-limits", LimitsSettings, serve, arguments)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
