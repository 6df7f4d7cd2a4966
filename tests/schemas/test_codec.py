"""Events to records and back: the identity for every event, and one typed error for everything else."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.codec import Envelope, Undecodable, decode, encode, hot_decode, hot_encode, type_name
from schemas.events import EVENTS, ConversationDeleted, Event, GenerationFinished, ReplyStored
from schemas.examples import EXAMPLES
from tests.schemas.strategies import TEXT, events

TIMES_MS = st.integers(min_value=0, max_value=253_402_300_799_999)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), TEXT
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


def envelopes() -> st.SearchStrategy[Envelope[Event]]:
    return st.builds(
        Envelope,
        event=events(),
        source=TEXT,
        time_ms=st.none() | TIMES_MS,
        causation_id=st.none() | TEXT,
        traceparent=st.none() | TEXT,
    )


def without_raw(envelope: Envelope[Event]) -> Envelope[Event]:
    return msgspec.structs.replace(envelope, raw=None)


def expected(envelope: Envelope[Event]) -> Envelope[Event]:
    if envelope.event.TIMED:
        return envelope
    return Envelope(event=envelope.event, source=envelope.source)


@given(envelopes())
def test_decoding_what_was_encoded_gives_the_same_envelope(envelope):
    value, headers = encode(envelope)
    assert without_raw(decode(value, headers)) == expected(envelope)


@given(envelopes())
def test_a_decoded_envelope_encodes_to_the_same_bytes(envelope):
    record = encode(envelope)
    assert encode(decode(*record)) == record


@given(events())
def test_an_event_survives_the_form_without_headers(event):
    assert hot_decode(hot_encode(Envelope(event=event, source="s"))) == event


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_identity_and_key_do_not_depend_on_the_envelope(cls):
    event = EXAMPLES[cls]
    assert event.identity() == msgspec.structs.replace(event).identity()
    assert event.key()
    if cls.TOPIC is not None:
        assert event.KEY in cls.__struct_fields__


@given(events(), st.dictionaries(TEXT, JSON, max_size=4))
def test_unknown_members_survive_a_round_through_an_older_reader(event, more):
    value, headers = encode(Envelope(event=event, source="s"))
    members = json.loads(value)
    unknown = {f"x_{name}": member for name, member in more.items()}
    newer = json.dumps(members | unknown).encode()
    again, _ = encode(decode(newer, headers))
    assert json.loads(again) == members | unknown


def test_unknown_members_survive_inside_values_and_lists():
    newer = json.loads(msgspec.json.encode(EXAMPLES[ReplyStored]))
    newer["usage"]["audio_tokens"] = 3
    newer["timings"]["network_ms"] = {"up": 1}
    record = json.dumps(newer, indent=2).encode()
    again, _ = encode(decode(record, [("ce_type", type_name(ReplyStored).encode())]))
    assert json.loads(again) == newer


def test_a_changed_event_keeps_the_unknown_members_and_its_own_change():
    headers = [("ce_type", type_name(ConversationDeleted).encode())]
    envelope = decode(b'{"conversation_id":"c","account_id":"a","deleted_at_ms":1,"by":"b"}', headers)
    changed = msgspec.structs.replace(envelope, event=msgspec.structs.replace(envelope.event, deleted_at_ms=2))
    assert json.loads(encode(changed)[0]) == {"conversation_id": "c", "account_id": "a", "deleted_at_ms": 2, "by": "b"}


TYPES = st.sampled_from([type_name(cls).encode() for cls in EVENTS])
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["ce_type", "ce_source", "ce_id", "ce_time", "ce_causationid", "traceparent", "other"]),
        st.none() | st.binary(max_size=30) | TYPES | st.datetimes().map(lambda at: at.isoformat().encode()),
    ),
    max_size=8,
)
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    events().map(codec.to_json),
)


def refusal(value, headers) -> Undecodable | None:
    """The typed error of a record, None where it decodes (and then encodes); any other error is the test's."""
    try:
        encode(decode(value, headers, topic="tokens", partition=3, offset=41))
    except Undecodable as error:
        return error
    return None


@given(VALUES, HEADERS, st.booleans(), TYPES)
def test_any_record_is_decoded_or_refused_with_the_typed_error(value, headers, typed, kind):
    headers = [("ce_type", kind), *(h for h in headers if h[0] != "ce_type")] if typed else headers
    error = refusal(value, headers)
    if error is not None:
        assert (error.topic, error.partition, error.offset) == ("tokens", 3, 41)
        assert error.field
        assert error.reason
        assert str(error).startswith("tokens[3]@41: ")


@given(events(), st.data())
def test_a_damaged_record_is_decoded_or_refused_with_the_typed_error(event, data):
    value, headers = encode(Envelope(event=event, source="s"))
    at = data.draw(st.integers(0, len(value) - 1))
    damaged = value[:at] + data.draw(st.binary(max_size=3)) + value[at + data.draw(st.integers(0, 5)) :]
    error = refusal(damaged, headers)
    assert error is None or error.field


@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_without_headers_are_decoded_or_refused_with_the_typed_error(data):
    with pytest.raises(Undecodable):
        hot_decode(data)


DELETED = b'{"conversation_id":"c","account_id":"a","deleted_at_ms":1}'
OF_DELETED = ("ce_type", type_name(ConversationDeleted).encode())
NESTED = b'{"conversation_id":"c","account_id":"a","deleted_at_ms":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("value", "headers", "field"),
    [
        (DELETED, [], "ce_type"),
        (DELETED, [("ce_type", None)], "ce_type"),
        (DELETED, [("ce_type", b"turnlog.ConversationDeleted.v99")], "ce_type"),
        (DELETED, [("ce_type", b"\xff")], "ce_type"),
        (DELETED, [OF_DELETED, ("ce_source", b"\xff")], "ce_source"),
        (DELETED, [OF_DELETED, ("ce_time", b"yesterday")], "ce_time"),
        (DELETED, [OF_DELETED, ("ce_causationid", b"\xc0")], "ce_causationid"),
        (None, [OF_DELETED], "value"),
        (b"", [OF_DELETED], "value"),
        (b"[]", [OF_DELETED], "value"),
        (DELETED + b"x", [OF_DELETED], "value"),
        (DELETED[:-1], [OF_DELETED], "value"),
        (NESTED, [OF_DELETED], "value"),
        (DELETED.replace(b'"a"', b"7"), [OF_DELETED], "account_id"),
        (DELETED.replace(b"1", b"1.5"), [OF_DELETED], "deleted_at_ms"),
        (DELETED.replace(b"1", b"-1"), [OF_DELETED], "deleted_at_ms"),
        (DELETED.replace(b"1", b"253402300800000"), [OF_DELETED], "deleted_at_ms"),
        (b'{"conversation_id":"c","account_id":"a"}', [OF_DELETED], "deleted_at_ms"),
    ],
)
def test_the_error_names_what_is_wrong(value, headers, field):
    with pytest.raises(Undecodable) as caught:
        decode(value, headers, topic="messages", partition=0, offset=7)
    assert caught.value.field == field


def test_the_error_names_a_member_inside_a_value():
    finished = json.loads(msgspec.json.encode(EXAMPLES[GenerationFinished]))
    finished["usage"]["input_tokens"] = "many"
    with pytest.raises(Undecodable) as caught:
        decode(json.dumps(finished).encode(), [("ce_type", type_name(GenerationFinished).encode())])
    assert caught.value.field == "usage.input_tokens"


def test_text_that_is_not_unicode_is_not_written():
    event = msgspec.structs.replace(EXAMPLES[ConversationDeleted], account_id="\ud800")
    with pytest.raises(UnicodeEncodeError):
        encode(Envelope(event=event, source="s"))


def test_an_older_version_is_read_as_todays_and_written_as_todays(monkeypatch):
    upcasts = {
        "turnlog.ConversationErased.v0": (
            ConversationDeleted,
            lambda old: {
                "account_id": old["by"],
                "conversation_id": old["conversation_id"],
                "deleted_at_ms": old["at"],
            },
        )
    }
    monkeypatch.setattr(codec, "UPCASTS", upcasts)
    old = b'{"conversation_id":"c","by":"a","at":1}'
    envelope = decode(old, [("ce_type", b"turnlog.ConversationErased.v0")])
    assert encode(envelope)[0] == DELETED


def test_an_older_version_with_missing_members_is_refused_with_the_typed_error(monkeypatch):
    upcasts = {"turnlog.ConversationErased.v0": (ConversationDeleted, lambda old: {"account_id": old["by"]})}
    monkeypatch.setattr(codec, "UPCASTS", upcasts)
    for old in (b"{}", b"[]", b'{"by":"a"}', b"\xff"):
        with pytest.raises(Undecodable):
            decode(old, [("ce_type", b"turnlog.ConversationErased.v0")])


@given(TIMES_MS)
def test_times_are_utc_wherever_the_process_runs(time_ms):
    _, headers = encode(Envelope(event=EXAMPLES[ConversationDeleted], source="s", time_ms=time_ms))
    written = dict(headers)["ce_time"]
    assert written.endswith(b"Z")
    assert decode(DELETED, [OF_DELETED, ("ce_time", written)]).time_ms == time_ms
    assert decode(DELETED, [OF_DELETED, ("ce_time", written.removesuffix(b"Z"))]).time_ms == time_ms
