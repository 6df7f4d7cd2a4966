"""From an output to the record that is written, and from a record to what it says: the same on every log."""

from typing import NamedTuple

from schemas.codec import Envelope, decode, encode
from schemas.events import Event
from streams.log.steps import Output, Record
from streams.log.trace import child


class Encoded(NamedTuple):
    """A record to be written. `partition` None: where its key belongs."""

    topic: str
    key: str
    value: bytes
    headers: list[tuple[str, bytes]]
    partition: int | None


def encoded(output: Output, source: str, now_ms: int) -> Encoded:
    """The record of an output.

    Raises:
        ValueError: the event has no topic of its own and the output names none.
    """
    event = output.event
    topic = output.topic or event.TOPIC
    if topic is None:
        raise ValueError(f"{type(event).__name__} has no topic of its own: name one")
    key = event.key() if output.key is None else output.key
    value, headers = encode(_envelope(output, event, source, now_ms))
    return Encoded(topic, key, value, headers, output.partition)


def decoded(record: Record) -> Envelope[Event]:
    """What a record says. Raises `Undecodable`, which names the record's place."""
    return decode(record.value, record.headers, topic=record.topic, partition=record.partition, offset=record.offset)


def _envelope(output: Output, event: Event, source: str, now_ms: int) -> Envelope[Event]:
    if not event.TIMED:
        return Envelope(event=event, source=source)
    cause = output.cause
    return Envelope(
        event=event,
        source=source,
        time_ms=now_ms,
        causation_id=None if cause is None else cause.id,
        traceparent=child(cause.traceparent if cause is not None else output.traceparent),
    )
