"""Appends an operator's events to the log and waits until Kafka has them."""

from __future__ import annotations

from collections.abc import Sequence

from infra.errors import StackError
from schemas.events import Event

TIMEOUT_S = 30.0
SOURCE = "infra/turnlog"
CLIENT = "turnlog-infra"


def append(bootstrap: str, namespace: str, events: Sequence[Event]) -> None:
    """Append events in order; they are durable when it returns. Raises StackError."""
    from streams.log.kafka import KafkaLog
    from streams.log.steps import LogError, Output

    log = KafkaLog(bootstrap, namespace, CLIENT)
    try:
        writer = log.writer(SOURCE, delivery_timeout_s=TIMEOUT_S)
        appended = [writer.append(Output(event=event)) for event in events]
        for one in appended:
            one.result(TIMEOUT_S)
    except (LogError, TimeoutError) as failure:
        raise StackError(f"Kafka at {bootstrap} did not take the change: {failure}") from failure
    finally:
        log.close()
