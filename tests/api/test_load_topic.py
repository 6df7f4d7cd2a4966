"""Whatever stands in the topic `load`, what is known of the load is what dispatch measured."""

import json

from api.load import Load
from schemas.codec import Envelope, encode
from schemas.events import AccountOpened
from schemas.examples import EXAMPLES
from schemas.topics import LOAD
from streams.log.compacted import CompactedReader
from streams.log.log import since
from streams.log.memory import MemoryLog
from streams.log.steps import Output
from tests.api.test_load import LARGE, NOW_MS, load
from tests.api.world import eventually


def rubbish() -> list[tuple[str | None, bytes | None, list[tuple[str, bytes]]]]:
    """Records of the topic, key, value and headers, that say nothing about load."""
    told = load(stage="full")
    value, headers = encode(Envelope(event=told, source="x", time_ms=1))
    opened, opened_headers = encode(Envelope(event=EXAMPLES[AccountOpened], source="x", time_ms=1))
    members = json.loads(value)
    wrong = [
        members | {"stage_paid": "shut"},
        members | {"stage_free": 3},
        members | {"measured_at_ms": "now"},
        members | {"measured_at_ms": 1e300},
        members | {"retry_after_s": None},
        members | {"pool": ["default"]},
        {name: said for name, said in members.items() if name != "stage_free"},
        list(members),
    ]
    values = [b"", b"\xff\xfe", b"null", b"{", value[:-1], b"[" * 500_000, b'{"a":' * 500_000, b"9" * 1_000_000]
    values += [json.dumps(one).encode() for one in wrong]
    key = told.key()
    return [
        *((key, one, headers) for one in values),
        (key, value, []),
        (key, value, [("ce_type", b"\xff" * 100_000)]),
        (key, value, [*headers, ("ce_time", b"yesterday")]),
        (key, opened, opened_headers),
        (None, value, headers),
        (None, None, []),
        ("", None, []),
        ("default/other", None, []),
        ("\N{REPLACEMENT CHARACTER}" * 10_000, value, headers),
    ]


async def test_rubbish_in_the_topic_changes_nothing_and_what_comes_behind_it_is_read() -> None:
    log, held = MemoryLog(), Load(lambda: 100.0)
    writer = log.writer("streams/dispatch")
    reader = CompactedReader(log, LOAD.name, held.apply, start=since(0), poll_s=0.01)
    writer.append(Output(event=load()))
    for key, value, headers in rubbish():
        writer.append_record(LOAD.name, key, value, headers)
    reader.start()
    try:
        await eventually("all of it is read", lambda: reader.complete)
        assert held.refusal(LARGE, "free", NOW_MS) is not None
        assert held.refusal(LARGE, "paid", NOW_MS) is not None
        writer.append(Output(event=load(stage="full")))
        await eventually("the thread lives", lambda: held.refusal(LARGE, "free", NOW_MS) is None)
    finally:
        reader.close()
