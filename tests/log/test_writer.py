"""What a writer promises, on each log."""

import asyncio

import pytest
from log.places import Place, renamed

from schemas.codec import Envelope, decode
from schemas.events import TokensGenerated
from streams.log.partitioner import partition_of
from streams.log.steps import NotAppended, Output, Partition
from streams.log.trace import new_trace, trace_id


def test_the_place_of_an_acknowledged_record_is_told(place: Place) -> None:
    writer = place.log.writer("test")
    first = writer.append(Output(event=renamed(1), partition=1)).result(10)
    second = writer.append(Output(event=renamed(2), partition=1)).result(10)
    assert (first.topic, first.partition, second.offset) == ("messages", 1, first.offset + 1)
    writer.close()


async def test_many_appends_are_awaited_together(place: Place) -> None:
    writer = place.log.writer("test")
    places = await asyncio.gather(*(_awaited(writer.append(Output(event=renamed(n), partition=0))) for n in range(500)))
    assert [p.offset for p in places] == list(range(500))
    writer.close()


async def _awaited(appended: object) -> object:
    return await appended


def test_records_of_one_key_keep_their_order(place: Place) -> None:
    writer = place.log.writer("test")
    for number in range(300):
        writer.append(Output(event=renamed(number, f"c{number % 7}")))
    writer.flush(10)
    for conversation in range(7):
        titles = [int(e.title) for e in place.events("messages") if e.conversation_id == f"c{conversation}"]
        assert titles == list(range(conversation, 300, 7))
    writer.close()


def test_a_key_is_in_the_same_partition_on_every_log(place: Place) -> None:
    writer = place.log.writer("test")
    for number in range(40):
        writer.append(Output(event=renamed(number, f"conversation-{number * 'x'}")))
    writer.close()
    for record in place.records("messages"):
        assert record.partition == partition_of(record.key, 2)


def test_a_record_continues_the_trace_of_its_cause(place: Place) -> None:
    cause = Envelope(event=renamed(1), source="test", traceparent=new_trace())
    writer = place.log.writer("test")
    writer.append(Output(event=renamed(2), cause=cause))
    writer.close()
    (record,) = place.records("messages")
    envelope = decode(record.value, record.headers)
    assert envelope.causation_id == cause.id
    assert envelope.source == "test"
    assert trace_id(envelope.traceparent) == trace_id(cause.traceparent)
    assert envelope.traceparent != cause.traceparent


def test_a_record_without_a_cause_continues_a_callers_trace_or_begins_one(place: Place) -> None:
    caller = new_trace()
    writer = place.log.writer("test")
    writer.append(Output(event=renamed(1), partition=0, traceparent=caller))
    writer.append(Output(event=renamed(2), partition=0, traceparent="nonsense"))
    writer.append(Output(event=renamed(3), partition=0))
    writer.close()
    traces = [trace_id(decode(r.value, r.headers).traceparent) for r in place.records("messages")]
    assert traces[0] == trace_id(caller)
    assert None not in traces
    assert len(set(traces)) == 3


def test_records_of_the_token_path_carry_no_trace(place: Place) -> None:
    event = TokensGenerated(reply_id="r", conversation_id="c", generation_id="g", attempt=1, seq=1, text="x", tokens=1)
    writer = place.log.writer("test")
    writer.append(Output(event=event))
    writer.close()
    (record,) = place.records("tokens")
    assert {name for name, _ in record.headers} == {"ce_specversion", "ce_type", "ce_source", "ce_id"}


def test_a_partition_that_is_not_there_is_a_failure_for_the_caller(place: Place) -> None:
    writer = place.log.writer("test", delivery_timeout_s=1)
    with pytest.raises(NotAppended):
        writer.append(Output(event=renamed(1), partition=99)).result(10)


def test_an_event_without_a_topic_needs_one(place: Place) -> None:
    from schemas.events import GenerationRevoked

    event = GenerationRevoked(pool="p", epoch=1, reply_id="r", generation_id="g")
    with pytest.raises(ValueError, match="no topic"):
        place.log.writer("test").append(Output(event=event))


def test_a_tombstone_has_no_value(place: Place) -> None:
    writer = place.log.writer("test")
    writer.append_record("conversations", "k", None, (), partition=1)
    writer.close()
    (record,) = place.records("conversations")
    assert (record.key, record.value, record.partition) == ("k", None, 1)


def test_topics_tell_their_partitions(place: Place) -> None:
    assert place.log.partitions("messages") == 2
    assert Partition("messages", 1).number < place.log.partitions("messages")
