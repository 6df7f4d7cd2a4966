"""Streams on the real servers: what pauses, lost notifications, absences and expiry do to readers. Nothing."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import redis
from system.product import Client, Product, Seen, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

STREAM = re.compile(rb"(?:(?:: hb|retry: \d+)\n|id: \d+\nevent: \w+\ndata: [^\n]*\n\n)*")


def redis_of(product: Product) -> redis.Redis:
    address = product.parts()["redis"]["address"].removeprefix("redis://").split("/")[0]
    host, _, port = address.rpartition(":")
    return redis.Redis(host=host, port=int(port))


def meanwhile(readers: list[Future[Seen]], disturb: Callable[[], Any]) -> list[Seen]:
    """Disturb the service until all readers have the end."""
    while not all(reader.done() for reader in readers):
        disturb()
    return [reader.result() for reader in readers]


def read_from(client: Client, reply_id: str, after: int, reached: threading.Event) -> Seen:
    """Read after an offset once the reply has got there."""
    reached.wait(60)
    return client.read(reply_id, Seen(offset=after))


@pytest.fixture(scope="module")
def old(product: Product) -> Seen:
    """A reply that ended a while ago."""
    client = product.client()
    reply_id = client.send({"chunks": 40, "every_ms": 5})["reply"]["id"]
    seen = client.read(reply_id)
    assert seen.end is not None
    return seen


def test_pauses_of_the_store_between_replay_and_live_cost_no_reader_an_event(product: Product, old: Seen) -> None:
    clients = [product.client(address) for address in product.addresses()]
    sent = clients[0].send({"chunks": 250, "every_ms": 10, "first_after_ms": 300})
    reply_id = sent["reply"]["id"]
    places = [0, 0, 0, 0, 10, 20, 40, 60, 80]  # under load two chunks share an event
    reached = {place: threading.Event() for place in places}
    reached[0].set()

    def tell(seen: Seen) -> None:
        if seen.offset in reached:
            reached[seen.offset].set()

    with ThreadPoolExecutor(len(places) + 1) as pool, redis_of(product) as store:
        first = pool.submit(clients[0].read, reply_id, each=tell)
        readers = [
            pool.submit(read_from, clients[number % 2], reply_id, place, reached[place])
            for number, place in enumerate(places)
        ]

        def pause() -> None:
            store.execute_command("CLIENT", "PAUSE", 60, "ALL")
            store.ping()

        try:
            seen = meanwhile([first, *readers], pause)
        finally:
            for place in reached.values():
                place.set()
    whole = seen[0]
    assert whole.text == clients[0].message(reply_id)["text"]
    for place, reader in zip(places, seen[1:], strict=True):
        assert reader.frames == whole.frames[place:], f"after {place}"
        assert reader.reconnects == 0


def test_notifications_that_are_lost_are_made_up_for_to_the_end(product: Product) -> None:
    clients = [product.client(address) for address in product.addresses()]
    reply_id = clients[0].send({"chunks": 150, "every_ms": 10})["reply"]["id"]
    with ThreadPoolExecutor(2) as pool, redis_of(product) as store:
        readers = [pool.submit(client.read, reply_id) for client in clients]
        one, other = meanwhile(readers, lambda: store.execute_command("CLIENT", "KILL", "TYPE", "pubsub"))
    assert one.frames == other.frames
    assert one.text == clients[0].message(reply_id)["text"]


def test_ten_thousand_tokens_at_once_have_unique_increasing_ids(product: Product) -> None:
    client = product.client()
    seen = client.read(client.send({"chunks": 10_000})["reply"]["id"])
    assert seen.end is not None
    assert seen.end["usage"]["output_tokens"] == 10_000
    assert seen.text == " ".join(f"word{number}" for number in range(1, 10_001))


def test_heartbeats_fall_between_events_only(product: Product) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 5, "every_ms": 700, "first_after_ms": 700})["reply"]["id"]
    stream = client.http.get(f"/v1/messages/{reply_id}/events").content
    assert STREAM.fullmatch(stream)
    assert stream.count(b": hb\n") >= 4
    assert stream.count(b"event: ended\n") == 1


def test_one_request_catches_up_after_any_absence(product: Product) -> None:
    clients = [product.client(address) for address in product.addresses()]
    reply_id = clients[0].send({"chunks": 120, "every_ms": 5})["reply"]["id"]
    seen = Seen()
    for frame in clients[0].frames(reply_id):
        seen.take(frame)
        if seen.offset == 10:
            break
    eventually("the reply is stored", lambda: clients[0].message(reply_id)["status"] == "completed")
    whole = clients[0].read(reply_id)
    for client in clients:
        caught_up = Seen(offset=10, text=seen.text)
        for frame in client.frames(reply_id, 10):
            caught_up.take(frame)
        assert caught_up.frames == whole.frames[10:]
        assert caught_up.text == whole.text == client.message(reply_id)["text"]


@pytest.mark.parametrize("before", range(3))
def test_output_that_is_cut_at_any_byte_of_a_character_is_identical_text(product: Product, before: int) -> None:
    client = product.client()
    text = "a" * before + "Grüße, 世界! 👩‍👩‍👧 𝕏 e\u0301 שלום ﷽ ok" * 3
    seen = client.read(client.send({"text": text, "split_utf8": True})["reply"]["id"])
    assert seen.text == text
    assert "\ufffd" not in seen.text


def test_a_cursor_older_than_the_buffer_is_gone_and_never_a_part(product: Product, old: Seen) -> None:
    clients = [product.client(address) for address in product.addresses()]
    reply_id = old.events[0][2]["message_id"]
    with redis_of(product) as store:
        for key in store.scan_iter(match=f"*{{{reply_id}}}*", count=1000):
            store.delete(key)

    def answer(client: Client, after: int) -> httpx.Response:
        return client.http.get(f"/v1/messages/{reply_id}/events", headers={"Last-Event-ID": str(after)})

    def gone(client: Client, after: int) -> httpx.Response | None:
        got = answer(client, after)
        assert got.status_code == 410 or not got.content.replace(b": hb\n", b""), "a part"
        return got if got.status_code == 410 else None

    for client in clients:
        refused = eventually("the cursor is gone", lambda client=client: gone(client, 10))
        assert refused.json()["code"] == "cursor_gone"
        assert client.http.get(refused.json()["message_url"]).json()["text"] == old.text
        whole = answer(client, 0)
        assert whole.status_code == 200
        assert re.findall(rb"^id: (\d+)$", whole.content, re.MULTILINE)[-1] == str(old.offset).encode()
        assert whole.content.count(b"event: delta\n") == 1
        assert answer(client, old.offset).status_code == 204
        assert answer(client, old.offset + 1).status_code == 410
