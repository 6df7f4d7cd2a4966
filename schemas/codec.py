"""Events to records and back: CloudEvents 1.0 in Kafka's binary mode, JSON values.

Headers of a record (all UTF-8): `ce_specversion`, `ce_type` (`turnlog.<Event>.v<N>`), `ce_source`, `ce_id`,
`content-type`, and, except on the token path (`Event.TIMED`), `ce_time`, `ce_causationid` and `traceparent`.
See https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/kafka-protocol-binding.md

Rules:

1. Decoding checks the types of all members; unknown members are ignored, and put back when the decoded
   envelope is encoded again, so an older program in the middle of a chain loses nothing of a newer one's.
2. An older version of an event is decoded with its upcast (`UPCASTS`), so that readers know one shape only.
3. A record that cannot be decoded gives `Undecodable`, which names topic, partition, offset and member.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from schemas.events import EVENTS, Event

Headers = Sequence[tuple[str, bytes]]

PREFIX = "turnlog."
CONTENT_TYPE = b"application/json"

E_co = TypeVar("E_co", bound=Event, covariant=True)


class Undecodable(Exception):
    """A record that no reader can make sense of; it goes to the dead letters with this as its reason."""

    def __init__(self, *, topic: str, partition: int, offset: int, field: str, reason: str) -> None:
        super().__init__(f"{topic}[{partition}]@{offset}: {field}: {reason}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.field = field
        self.reason = reason


class Envelope(msgspec.Struct, Generic[E_co], frozen=True, kw_only=True):
    """An event with what CloudEvents says about it. `raw` is the value that it was decoded from, if it was."""

    event: E_co
    source: str
    time_ms: int | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    raw: bytes | None = None

    @property
    def id(self) -> str:
        """The event's identity (`ce_id`)."""
        return self.event.identity()


def type_name(cls: type[Event]) -> str:
    """The type on the wire, such as `turnlog.MessageSubmitted.v1`."""
    return f"{PREFIX}{cls.__name__}.v{cls.VERSION}"


Upcast = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTS: Mapping[str, tuple[type[Event], Upcast]] = {}
"""Type on the wire of an older version -> (today's class, function from its members to today's)."""

_TYPES: dict[bytes, type[Event]] = {type_name(cls).encode(): cls for cls in EVENTS}
_TYPE_BYTES: dict[type[Event], bytes] = {cls: name for name, cls in _TYPES.items()}
_DECODERS: dict[type[Event], msgspec.json.Decoder[Any]] = {cls: msgspec.json.Decoder(cls) for cls in EVENTS}
_MEMBERS: dict[type[Event], frozenset[str]] = {
    cls: frozenset(field.encode_name for field in msgspec.structs.fields(cls)) for cls in EVENTS
}
_ENCODER = msgspec.json.Encoder()
_FIELD = re.compile(r"`?\$\.?([\w.\[\]]*)`?|(?:field|member) `(\w+)`")


def encode(envelope: Envelope[Event]) -> tuple[bytes, list[tuple[str, bytes]]]:
    """The record's value and headers."""
    event = envelope.event
    cls = type(event)
    value = _ENCODER.encode(event)
    if envelope.raw is not None:
        value = _with_unknown_members(cls, value, envelope.raw)
    headers: list[tuple[str, bytes]] = [
        ("ce_specversion", b"1.0"),
        ("ce_type", _TYPE_BYTES[cls]),
        ("ce_source", envelope.source.encode()),
        ("ce_id", event.identity().encode()),
    ]
    if cls.TIMED:
        headers.append(("content-type", CONTENT_TYPE))
        if cls.KEY == "account_id":
            headers.append(("ce_subject", str(getattr(event, "account_id", "")).encode()))
        if envelope.time_ms is not None:
            headers.append(("ce_time", _rfc3339(envelope.time_ms).encode()))
        if envelope.causation_id is not None:
            headers.append(("ce_causationid", envelope.causation_id.encode()))
        if envelope.traceparent is not None:
            headers.append(("traceparent", envelope.traceparent.encode()))
    return value, headers


def decode(
    value: bytes | None, headers: Headers, *, topic: str = "", partition: int = -1, offset: int = -1
) -> Envelope[Event]:
    """The envelope that a record holds.

    Raises:
        Undecodable: unknown type, value that is no JSON object of that type, or a missing header.
    """

    def bad(field: str, reason: str) -> Undecodable:
        return Undecodable(topic=topic, partition=partition, offset=offset, field=field, reason=reason)

    named = dict(headers)
    wire_type = named.get("ce_type")
    if wire_type is None:
        raise bad("ce_type", "header is missing")
    if value is None:
        raise bad("value", "record has no value")
    try:
        cls = _TYPES.get(wire_type)
        event = _DECODERS[cls].decode(value) if cls is not None else _upcast(wire_type, value)
        if event is None:
            raise bad("ce_type", f"unknown type {wire_type[:100]!r}")
        return Envelope(
            event=event,
            source=named.get("ce_source", b"").decode(),
            time_ms=_milliseconds(named.get("ce_time")),
            causation_id=_text(named.get("ce_causationid")),
            traceparent=_text(named.get("traceparent")),
            raw=value,
        )
    except msgspec.ValidationError as error:
        match = _FIELD.search(str(error))
        field = next((group for group in match.groups() if group), "value") if match else "value"
        raise bad(field, str(error)) from error
    except msgspec.DecodeError as error:
        raise bad("value", str(error)) from error
    except ValueError as error:
        raise bad("headers", str(error)) from error


def _upcast(wire_type: bytes, value: bytes) -> Event | None:
    entry = UPCASTS.get(wire_type.decode())
    if entry is None:
        return None
    cls, upcast = entry
    return msgspec.convert(upcast(msgspec.json.decode(value)), cls)


def _with_unknown_members(cls: type[Event], value: bytes, raw: bytes) -> bytes:
    members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    unknown = {name: member for name, member in members.items() if name not in _MEMBERS[cls]}
    if not unknown:
        return value
    known = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    return _ENCODER.encode(known | unknown)


def _rfc3339(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def _milliseconds(header: bytes | None) -> int | None:
    if header is None:
        return None
    return round(datetime.fromisoformat(header.decode()).timestamp() * 1000)


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode()


def to_json(value: object) -> bytes:
    """The JSON of a value or event, as it stands in records, frames and hashes."""
    return _ENCODER.encode(value)


def hot_encode(envelope: Envelope[Event]) -> bytes:
    """One self-contained JSON object of an event, for stores without headers: `{"type", "data"}`."""
    return _ENCODER.encode({"type": type_name(type(envelope.event)), "data": envelope.event})


def hot_decode(data: bytes) -> Event:
    """The event of `hot_encode`.

    Raises:
        Undecodable: as `decode`.
    """
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(parts["type"], type=str)
        return decode(bytes(parts["data"]), [("ce_type", kind.encode())]).event
    except (msgspec.DecodeError, KeyError) as error:
        raise Undecodable(topic="", partition=-1, offset=-1, field="value", reason=str(error)) from error


def event_class(name: str) -> type[Event]:
    """The class of an event by its name, today's version."""
    return next(cls for cls in EVENTS if cls.__name__ == name)
