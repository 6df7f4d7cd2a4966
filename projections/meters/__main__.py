"""The meters' process: `python -m projections meters`."""

import sys

import structlog
from prometheus_client import REGISTRY

from projections.meters.meter import Meter
from projections.meters.metrics import MetersMetrics
from projections.meters.settings import MetersSettings
from projections.meters.step import GROUP, MetersStep
from schemas.topics import USAGE
from streams.log.kafka.log import KafkaLog
from streams.log.log import END
from streams.log.loop import Loop, LoopSettings, run
from streams.log.process import BAD_SETTINGS, Process, main

log = structlog.get_logger()


def serve(settings: MetersSettings, process: Process) -> None:
    """Tell the provider until the process is to stop."""
    kafka = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
    # What was used before meters were switched on is not metered, unless the settings say from when on it is.
    if settings.meter_since is None and kafka.begin(GROUP, USAGE.name, END):
        log.info("meters_begin", since="now")
    step = MetersStep(
        _meter(settings),
        settings.rules(),
        kafka.writer("projections/meters"),
        at_once=settings.meter_at_once,
        waiting_max=settings.meter_waiting_max,
    )
    REGISTRY.register(MetersMetrics(step))

    def turned(loop: Loop) -> None:
        process.turned(loop.lag(), detail=step.trouble, degraded=bool(step.trouble))

    run(
        kafka,
        step,
        topics=[USAGE.name],
        group=GROUP,
        stop=process.stop,
        replica=settings.replica,
        settings=LoopSettings(poll_s=0.05, records_max=500, expired=settings.offset_expired),
        on_turn=turned,
    )
    step.close()
    kafka.close()


def _meter(settings: MetersSettings) -> Meter:
    key = settings.meter_key.get_secret_value()
    if settings.meter == "openmeter":
        from projections.meters.openmeter import OpenMeter

        return OpenMeter(key, settings.meter_url or "", settings.meter_timeout_s)
    try:
        from projections.meters.stripe_meter import StripeMeter
    except ImportError:
        log.critical("the package `stripe` is missing: pip install 'turnlog[stripe]'")
        raise SystemExit(BAD_SETTINGS) from None
    return StripeMeter(key, settings.meter_url, settings.meter_timeout_s)


def command(arguments: list[str]) -> int:
    """Run it; the exit code."""
    return main("projections-meters", MetersSettings, serve, arguments)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
