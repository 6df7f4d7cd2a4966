"""Reads the topic `usage` and keeps what each account owes by month, each record once, in an SQLite file.

    pip install confluent-kafka
    python usage_consumer.py --bootstrap 127.0.0.1:9092 --topic turnlog.usage --state usage.db

It may be killed at any moment and started again. What makes that safe:

- A record counts by its day, reply and kind; of these the highest revision, and of equal ones the first. So a record
  that comes again (`ce_id` is the same) changes nothing.
- What a batch says and how far the topic was read are one transaction of SQLite. The offsets that Kafka keeps are not used.
- Money is added as decimals, never as floating point.

Other types of events than those that are used here come too, and new ones will: they are passed over.
"""

import argparse
import json
import sqlite3
from decimal import Context, Decimal

from confluent_kafka import Consumer, KafkaException, TopicPartition

RECORDED, ADJUSTED = "turnlog.UsageRecorded.", "turnlog.UsageAdjusted."
EXACT = Context(prec=60)
TABLES = """
CREATE TABLE IF NOT EXISTS records (
    account_id TEXT, usage_day TEXT, reply_id TEXT, record_kind TEXT,
    revision INTEGER NOT NULL, cost TEXT NOT NULL, currency TEXT NOT NULL, ce_id TEXT NOT NULL,
    PRIMARY KEY (account_id, usage_day, reply_id, record_kind)
);
CREATE TABLE IF NOT EXISTS places (number INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
"""
KEEP = """
INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET revision = excluded.revision, cost = excluded.cost, currency = excluded.currency,
                          ce_id = excluded.ce_id
 WHERE excluded.revision > records.revision
"""


def main() -> None:
    """Read until Ctrl-C, or with --until-end to the end that the topic has now; then print the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="turnlog.usage")
    parser.add_argument("--state", default="usage.db")
    parser.add_argument("--until-end", action="store_true")
    options = parser.parse_args()

    state = sqlite3.connect(options.state, isolation_level=None)
    state.execute("PRAGMA synchronous = FULL")
    state.executescript(TABLES)
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "usage-consumer-example",  # needed by the client; no offsets are committed
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    try:
        at, ends = assign(consumer, state, options.topic)
        while not (options.until_end and all(at[number] >= end for number, end in ends.items())):
            batch = consumer.consume(500, timeout=0.5)
            at |= keep(state, [message for message in batch if message.error() is None])
            for message in batch:
                if message.error() is not None:
                    raise KafkaException(message.error())
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    print(json.dumps(totals(state), indent=1))


def assign(consumer: Consumer, state: sqlite3.Connection, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Go on where the state is; where that is, and the ends that the partitions have now."""
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    places = dict(state.execute("SELECT number, next_offset FROM places"))
    marks = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10) for number in found.partitions}
    at = {number: places.get(number, first) for number, (first, _) in marks.items()}
    consumer.assign([TopicPartition(topic, number, offset) for number, offset in at.items()])
    return at, {number: end for number, (_, end) in marks.items()}


def keep(state: sqlite3.Connection, messages: list) -> dict[int, int]:
    """Keep what a batch says, and how far it goes, in one transaction; how far that is, by partition."""
    if not messages:
        return {}
    state.execute("BEGIN IMMEDIATE")
    for message in messages:
        headers = {name: value.decode() for name, value in message.headers() or [] if value is not None}
        if headers.get("ce_type", "").startswith((RECORDED, ADJUSTED)):
            data = json.loads(message.value())
            identity = (data["account_id"], data["usage_day"], data["reply_id"], data["record_kind"])
            state.execute(KEEP, (*identity, data["revision"], data["cost"], data["currency"], headers["ce_id"]))
        state.execute("INSERT OR REPLACE INTO places VALUES (?, ?)", (message.partition(), message.offset() + 1))
    state.execute("COMMIT")
    return {message.partition(): message.offset() + 1 for message in messages}


def totals(state: sqlite3.Connection) -> list[dict[str, object]]:
    """What each account owes, by month and currency."""
    sums: dict[tuple[str, str, str], tuple[int, Decimal]] = {}
    for account, day, currency, cost in state.execute("SELECT account_id, usage_day, currency, cost FROM records"):
        records, amount = sums.get((account, day[:7], currency), (0, Decimal(0)))
        sums[account, day[:7], currency] = records + 1, EXACT.add(amount, Decimal(cost))
    return [
        {"account_id": account, "month": month, "currency": currency, "records": records, "amount": f"{amount:f}"}
        for (account, month, currency), (records, amount) in sorted(sums.items())
    ]


if __name__ == "__main__":
    main()
