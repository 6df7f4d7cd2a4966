"""SIGKILL of each process and of each server, one after the other, during a running reply."""

from collections.abc import Iterator

import pytest
from system.product import Product, Seen, eventually

pytestmark = [pytest.mark.system, pytest.mark.kills, pytest.mark.timeout(400)]

PARTS = (
    "api-0",
    "streams-turns-0",
    "streams-dispatch-0",
    "streams-settlement-0",
    "streams-demand-0",
    "worker-0",
    "projections-buffer-0",
    "projections-views-0",
    "kafka",
    "redis",
    "clickhouse",
)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One process of each kind, so that the one that is killed is the one that works."""
    running = Product(tmp_path_factory.mktemp("single"), "--engine", "scripted")
    yield running
    running.close()


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_costs_no_text_and_needs_no_hand(single: Product, part: str) -> None:
    client = single.client()
    chunks = 150
    sent = client.send({"chunks": chunks, "every_ms": 20})
    reply_id = sent["reply"]["id"]
    killed: list[int] = []

    def kill_at_twenty(seen: Seen) -> None:
        if seen.offset >= 20 and not killed:
            killed.append(single.kill(part))

    seen = client.read(reply_id, each=kill_at_twenty, within_s=120)
    assert killed
    assert seen.end is not None
    assert seen.end["status"] == "completed"
    assert seen.end["usage"]["output_tokens"] == chunks
    if part != "worker-0":
        assert seen.attempt == 1, "nothing but a worker's death restarts a reply"

    def stored() -> bool:
        message = client.message(reply_id)
        return bool((message["status"], message["text"]) == ("completed", seen.text))

    eventually("what was seen is stored", stored)
    records = eventually("the usage is listed", lambda: client.usage_records(reply_id))
    assert [record["output_tokens"] for record in records] == [chunks]

    after = client.read(client.send({"chunks": 3})["reply"]["id"])
    assert after.end is not None
    assert after.end["status"] == "completed"
    single.wait_ready()
