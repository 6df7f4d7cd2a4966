"""Events to records and back: CloudEvents 1.0 in Kafka's binary mode, JSON values.

Headers of a record (all UTF-8): `ce_specversion`, `ce_type` (`turnlog.<Event>.v<N>`), `ce_source`, `ce_id`,
`content-type`, and, except on the token path (`Event.TIMED`), `ce_time`, `ce_causationid` and `traceparent`.
See https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/kafka-protocol-binding.md

Rules:

1. Decoding checks the types of all members; unknown members (at any depth) are ignored, and put back when the
   decoded envelope is encoded again, so an older program in the middle of a chain loses nothing of a newer one's.
2. An older version of an event is decoded with its upcast (`UPCASTS`), so that readers know one shape only; it is
   encoded again as today's.
3. A record that cannot be decoded gives `Undecodable`, which names topic, partition, offset and member, and nothing
   else is ever raised, whatever the bytes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from schemas.events import EVENTS, Event

Headers = Sequence[tuple[str, bytes | None]]

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


class Envelope(msgspec.Struct, Generic[E_co], frozen=True, kw_only=True, gc=False):
    """An event with what CloudEvents says about it. `raw` is the value of today's version that it came from, if any."""

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

UPCASTS: Mapping[str, tuple[type[Event], Upcast]] = {
    f"{PREFIX}{cls.__name__}.v{version}": (cls, lambda members: members)
    for cls in EVENTS
    for version in range(1, cls.VERSION)
}
"""Type on the wire of an older version -> (today's class, function from its members to today's).

So far later versions have more members, all with defaults: the function is the same for all."""

_TYPES: dict[bytes, type[Event]] = {type_name(cls).encode(): cls for cls in EVENTS}
_TYPE_BYTES: dict[type[Event], bytes] = {cls: name for name, cls in _TYPES.items()}
_DECODERS: dict[type[Event], msgspec.json.Decoder[Any]] = {cls: msgspec.json.Decoder(cls) for cls in EVENTS}
_MEMBERS: dict[type[Event], frozenset[str]] = {
    cls: frozenset(field.encode_name for field in msgspec.structs.fields(cls)) for cls in EVENTS
}
_ENCODER = msgspec.json.Encoder()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
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
            headers.append(("ce_time", rfc3339(envelope.time_ms).encode()))
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

    named = dict(headers)
    wire_type = named.get("ce_type")
    try:
        cls = _TYPES.get(wire_type or b"")
        event = _event(cls, wire_type, value)
        if cls is not None and not cls.TIMED:
            # The token path: these headers are not written, so they are not looked for.
            return Envelope(event=event, source=_text(named, "ce_source") or "", raw=value)
        return Envelope(
            event=event,
            source=_text(named, "ce_source") or "",
            time_ms=_milliseconds(_text(named, "ce_time")),
            causation_id=_text(named, "ce_causationid"),
            traceparent=_text(named, "traceparent"),
            raw=value if cls is not None else None,
        )
    except _Bad as bad:
        raise Undecodable(
            topic=topic, partition=partition, offset=offset, field=bad.name, reason=bad.reason
        ) from bad.__cause__


def _event(cls: type[Event] | None, wire_type: bytes | None, value: bytes | None) -> Event:
    if wire_type is None:
        raise _Bad("ce_type", "header is missing")
    if value is None:
        raise _Bad("value", "record has no value")
    try:
        event: Event | None = _DECODERS[cls].decode(value) if cls is not None else _upcast(wire_type, value)
    except msgspec.ValidationError as error:
        match = _FIELD.search(str(error))
        field = next((group for group in match.groups() if group), "value") if match else "value"
        raise _Bad(field, str(error)) from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _Bad("value", str(error)) from error
    if event is None:
        raise _Bad("ce_type", f"unknown type {wire_type[:100]!r}")
    return event


class _Bad(Exception):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


def _upcast(wire_type: bytes, value: bytes) -> Event | None:
    entry = UPCASTS.get(wire_type.decode(errors="replace"))
    if entry is None:
        return None
    cls, upcast = entry
    members = msgspec.json.decode(value, type=dict[str, Any])
    try:
        today = upcast(members)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the older version that it says it is: {error!r}") from error
    return msgspec.convert(today, cls)


def _with_unknown_members(cls: type[Event], value: bytes, raw: bytes) -> bytes:
    try:
        came = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if came.keys() == _MEMBERS[cls] and not any(_nests(member) for member in came.values()):
            return value
        return _merged(value, raw.strip())
    except msgspec.DecodeError:
        # Decoding passes over the text of what it does not know; what is not UTF-8 there cannot be kept.
        return value


def _merged(known: bytes, came: bytes) -> bytes:
    """`known`, with the members of `came` that it lacks; lists are merged item by item where they are as long."""
    first = known[:1] + came[:1]
    if first == b"{{":
        today = msgspec.json.decode(known, type=dict[str, msgspec.Raw])
        before = msgspec.json.decode(came, type=dict[str, msgspec.Raw])
        members = {name: _merged_raw(member, before.get(name)) for name, member in today.items()}
        return _ENCODER.encode(members | {name: before[name] for name in before if name not in today})
    if first == b"[[":
        items = msgspec.json.decode(known, type=list[msgspec.Raw])
        others = msgspec.json.decode(came, type=list[msgspec.Raw])
        if len(items) == len(others):
            return _ENCODER.encode([_merged_raw(item, other) for item, other in zip(items, others, strict=True)])
    return known


def _merged_raw(known: msgspec.Raw, came: msgspec.Raw | None) -> msgspec.Raw:
    return known if came is None or not _nests(known) else msgspec.Raw(_merged(bytes(known), bytes(came).strip()))


def _nests(member: msgspec.Raw) -> bool:
    return bytes(member)[:1] in {b"{", b"["}


def rfc3339(time_ms: int) -> str:
    """A time, UTC, with milliseconds."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round((moment - _EPOCH) / _MILLISECOND)
    except (ValueError, OverflowError) as error:
        raise _Bad("ce_time", str(error)) from error


def _text(headers: Mapping[str, bytes | None], name: str) -> str | None:
    header = headers.get(name)
    try:
        return None if header is None else header.decode()
    except UnicodeDecodeError as error:
        raise _Bad(name, str(error)) from error


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
    except (msgspec.DecodeError, KeyError, RecursionError, ValueError) as error:
        raise Undecodable(topic="", partition=-1, offset=-1, field="value", reason=str(error)) from error


def event_class(name: str) -> type[Event]:
    """The class of an event by its name, today's version."""
    return next(cls for cls in EVENTS if cls.__name__ == name)
