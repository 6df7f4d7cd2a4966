"""`python -m streams turns|dispatch|settlement|demand [--check]`: one process of the streams."""

import sys
import time
from collections.abc import Sequence

import structlog

from schemas.topics import CANCELLATIONS, CONVERSATIONS, MESSAGES, POOLS, REQUESTS, TOKENS, WORKERS, inference
from schemas.values import PRIORITIES
from streams.log import loop, transactions
from streams.log.kafka import KafkaLog
from streams.log.loop import LoopSettings
from streams.log.process import BAD_SETTINGS, Process, main
from streams.log.transactions import TransactionalSettings
from streams.metrics import Alarms, Numbers, Series
from streams.settings import DemandSettings, DispatchSettings, SettlementSettings, TurnsSettings
from streams.settlement.rules import Alarm, Tariff


def turns(settings: TurnsSettings, process: Process) -> None:
    """Turns, until it shall stop."""
    from streams.turns.step import NUMBERS, Turns

    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
    step = Turns(settings.policy())
    numbers = Numbers(NUMBERS, step.numbers)

    def turned(running: transactions.TransactionalLoop) -> None:
        process.turned(running.lag())
        numbers.refresh()

    transactions.run(
        log,
        step,
        topics=(MESSAGES.name, CANCELLATIONS.name),
        state_topic=CONVERSATIONS.name,
        group="turns",
        replica=settings.replica,
        stop=process.stop,
        settings=TransactionalSettings(expired=settings.offset_expired),
        on_turn=turned,
        on_progress=lambda: process.starting("restoring conversations"),
    )
    log.close()


def dispatch(settings: DispatchSettings, process: Process) -> None:
    """Dispatch, until it shall stop."""
    from streams.dispatch.numbers import NUMBERS
    from streams.dispatch.step import Dispatch

    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
    pools = settings.pools()
    inboxes = min(log.partitions(inference(pool, priority).name) for pool in pools for priority in PRIORITIES)
    step = Dispatch(frozenset(pools), settings.limits(inboxes), settings.models)
    numbers = Numbers(NUMBERS, step.numbers)

    def turned(running: transactions.TransactionalLoop) -> None:
        process.turned(running.lag())
        numbers.refresh()

    transactions.run(
        log,
        step,
        topics=(REQUESTS.name, WORKERS.name),
        state_topic=POOLS.name,
        group="dispatch",
        replica=settings.replica,
        stop=process.stop,
        settings=TransactionalSettings(expired=settings.offset_expired),
        on_turn=turned,
        on_progress=lambda: process.starting("restoring pools"),
    )
    log.close()


def settlement(settings: SettlementSettings, process: Process) -> None:
    """Settlement, until it shall stop."""
    from streams.settlement.step import NUMBERS, Limits, Settle

    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
    logger = structlog.get_logger("streams.settlement")
    alarms = Alarms()

    def alarm(raised: Alarm) -> None:
        alarms.raised(raised)
        logger.error("alarm", code=raised.code, detail=raised.detail)

    limits = Limits(
        abandoned_ms=round(settings.abandoned_s * 1000),
        open_max=settings.open_replies_max,
        open_chars_max=settings.open_chars_max,
    )
    step = Settle(
        log.writer("streams/settlement"), Tariff(models=settings.models, prices=settings.prices), limits, alarm
    )
    numbers = Numbers(NUMBERS, step.numbers)

    def turned(running: loop.Loop) -> None:
        process.turned(running.lag())
        numbers.refresh()

    loop.run(
        log,
        step,
        topics=(TOKENS.name,),
        group="settlement",
        replica=settings.replica,
        stop=process.stop,
        # Nobody waits for a stored end in milliseconds: under load it is cheaper to take many records at a time.
        settings=LoopSettings(gather_s=0.03, gather_above=4, held_ms=50, expired=settings.offset_expired),
        on_turn=turned,
    )
    log.close()


def demand(settings: DemandSettings, process: Process) -> None:
    """Demand, until it shall stop."""
    from streams.demand import app
    from streams.demand.fleet import Fleet
    from streams.demand.latest import NUMBERS, Latest

    log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
    partitions = log.partitions(REQUESTS.name)
    log.close()
    latest = Latest()
    Series(NUMBERS, lambda: latest.numbers(time.time_ns() // 1_000_000))
    app.run(
        app.Settings(
            bootstrap=settings.kafka_bootstrap,
            namespace=settings.namespace,
            partitions=partitions,
            replica=settings.replica,
            rules=settings.rules(),
            fleets=tuple(Fleet(model.pool, model.name) for model in settings.models),
            folder=settings.demand_folder,
        ),
        process.stop,
        said=latest.said,
        on_turn=process.turned,
    )


def chosen(arguments: Sequence[str]) -> int:
    """Runs what the first argument names; its exit code."""
    role, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    match role:
        case "turns":
            return main("streams-turns", TurnsSettings, turns, rest)
        case "dispatch":
            return main("streams-dispatch", DispatchSettings, dispatch, rest)
        case "settlement":
            return main("streams-settlement", SettlementSettings, settlement, rest)
        case "demand":
            return main("streams-demand", DemandSettings, demand, rest)
        case _:
            sys.stderr.write("usage: python -m streams turns|dispatch|settlement|demand [--check]\n")
            return BAD_SETTINGS


if __name__ == "__main__":
    sys.exit(chosen(sys.argv[1:]))
