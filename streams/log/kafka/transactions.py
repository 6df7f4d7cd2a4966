"""Transactions on Kafka.

What each error asks for (abort, try again, or end the process) is librdkafka's to say:
https://github.com/confluentinc/librdkafka/blob/master/INTRODUCTION.md#transactional-producer
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from streams.log.encoding import encoded
from streams.log.kafka.consumer import KafkaConsumer
from streams.log.kafka.records import PAUSE_S, Names, asked, report
from streams.log.kafka.settings import LOGGER, PATIENCE_S, REQUEST_TIMEOUT_S, Settings
from streams.log.log import Aborted, Consumer
from streams.log.steps import Fenced, NotAppended, Output, Partition, StateRecord

_COMMIT_PATIENCE_S = 60.0

GAP_S = 0.003
"""After a commit its marks are still being written. A transaction begun before they are is refused with "concurrent
transactions", and librdkafka waits 20 ms then."""


class KafkaTransactions:
    """See `Transactions`."""

    def __init__(self, settings: Settings, names: Names, source: str) -> None:
        self._names = names
        self._source = source
        self._undelivered: Any = None
        self._ended_s = 0.0
        self._producer: Any = Producer(settings | {"error_cb": report})
        # Once there is a connection the next call takes 5 ms; before, librdkafka looks again after half a second.
        asked(lambda t: self._producer.list_topics(timeout=t), "brokers", PATIENCE_S)
        asked(self._producer.init_transactions, "begin of transactions", PATIENCE_S)

    def commit(
        self,
        outputs: Sequence[Output],
        states: Sequence[tuple[Partition, StateRecord]],
        offsets: Mapping[Partition, int],
        consumer: Consumer,
        condition: Callable[[], None],
    ) -> None:
        if not isinstance(consumer, KafkaConsumer):
            raise TypeError("a Kafka transaction takes the offsets of a Kafka consumer")
        time.sleep(max(self._ended_s + GAP_S - time.monotonic(), 0.0))
        try:
            self._producer.begin_transaction()
            self._write(outputs, states)
            # While the records are on their way. With the retries of settings.transactional that is the quickest order
            # (tests/benchmarks/log_hop.py); the flush then finds them there, and commit need not wait.
            places, member = self._names.places(offsets), consumer.group_metadata()
            self._insist(lambda t: self._producer.send_offsets_to_transaction(places, member, t), PATIENCE_S)
            if self._producer.flush(REQUEST_TIMEOUT_S) or self._undelivered is not None:
                self._abort(f"records not delivered: {self._undelivered}")
            condition()
            self._insist(self._producer.commit_transaction, _COMMIT_PATIENCE_S)
            self._ended_s = time.monotonic()
        except BufferError:
            self._abort("the local queue is full")
        except NotAppended as failure:
            self._abort(str(failure))
        except KafkaException as failure:
            self._failed(failure.args[0])

    def close(self) -> None:
        self._producer.purge()

    def _write(self, outputs: Sequence[Output], states: Sequence[tuple[Partition, StateRecord]]) -> None:
        self._undelivered = None
        now_ms = time.time_ns() // 1_000_000
        for output in outputs:
            topic, key, value, headers, number = encoded(output, self._source, now_ms)
            place = {} if number is None else {"partition": number}
            self._producer.produce(
                self._names.full(topic), value, key, on_delivery=self._delivered, headers=headers, **place
            )
        for partition, state in states:
            self._producer.produce(
                self._names.full(partition.topic), state.value, state.key, partition.number, self._delivered
            )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._undelivered = error

    def _insist(self, call: Callable[[float], Any], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                call(REQUEST_TIMEOUT_S)
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise
                LOGGER.warning("transaction: %s; trying again", failure.args[0].str())
                time.sleep(PAUSE_S)
            else:
                return

    def _failed(self, error: Any) -> None:
        if error.txn_requires_abort() and not error.fatal():
            self._abort(error.str())
        raise Fenced(f"transaction: {error.str()}")

    def _abort(self, reason: str) -> None:
        try:
            self._insist(self._producer.abort_transaction, PATIENCE_S)
        except KafkaException as failure:
            raise Fenced(f"abort of a transaction ({reason}): {failure.args[0].str()}") from failure
        raise Aborted(reason)
