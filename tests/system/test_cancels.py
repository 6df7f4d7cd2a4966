"""A cancel: through any process, at any time, it keeps what was said, bills it once, and frees the slot."""

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from system.product import Client, Product, Seen, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SLOTS = 16
"""Of both workers together."""


def cancel(client: Client, reply_id: str) -> None:
    assert client.http.post(f"/v1/messages/{reply_id}/cancel").status_code == 202


def cancel_at(client: Client, reply_id: str, offset: int) -> Seen:
    """Read, cancel at this offset, and read to the end."""
    cancelled: list[int] = []

    def look(seen: Seen) -> None:
        if seen.offset >= offset and not cancelled:
            cancelled.append(seen.offset)
            cancel(client, reply_id)

    seen = client.read(reply_id, each=look)
    assert cancelled
    assert seen.end is not None
    assert seen.end["status"] == "cancelled"
    return seen


def test_a_cancel_ends_a_stream_that_was_idle_for_many_heartbeats(product: Product) -> None:
    one, other = (product.client(address) for address in product.addresses())
    reply_id = one.send({"chunks": 5, "first_after_ms": 250_000})["reply"]["id"]
    heard: list[bytes] = []

    def listen() -> None:
        with one.http.stream("GET", f"/v1/messages/{reply_id}/events") as answer:
            heard.extend(answer.iter_bytes())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    eventually("five heartbeats", lambda: b"".join(heard).count(b": hb\n") >= 5)
    began_s = time.monotonic()
    cancel(other, reply_id)
    listener.join(10)
    assert time.monotonic() - began_s < 2.0
    assert b"event: ended\n" in b"".join(heard)
    assert b'"status":"cancelled"' in b"".join(heard)


def test_a_reply_that_is_cancelled_after_some_chunks_has_one_record_of_at_least_those(product: Product) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 5000, "every_ms": 10})["reply"]["id"]
    seen = cancel_at(client, reply_id, 25)
    assert seen.end is not None
    words = len(seen.text.split())
    assert words >= 24
    usage = seen.end["usage"]
    assert usage["output_tokens"] >= words
    assert usage["counted"] is True, "the engine's own count"
    eventually("it is stored", lambda: client.message(reply_id)["status"] == "cancelled")
    assert client.message(reply_id)["usage"] == usage
    (record,) = eventually("the usage is listed", lambda: client.usage_records(reply_id))
    assert (record["output_tokens"], record["counted"]) == (usage["output_tokens"], True)
    client.read(reply_id)
    client.read(reply_id, Seen(offset=10))
    later = client.send("later")
    client.read(later["reply"]["id"])
    eventually("a later reply's usage is listed", lambda: client.usage_records(later["reply"]["id"]))
    assert client.usage_records(reply_id) == [record], "neither reads nor time add any"


def test_a_cancel_before_the_first_token_leaves_the_next_request_unharmed(product: Product) -> None:
    client = product.client()
    sent = client.send({"chunks": 10, "first_after_ms": 60_000})
    seen = cancel_at(client, sent["reply"]["id"], 1)
    assert (seen.text, len(seen.events)) == ("", 2)
    elsewhere = client.read(client.send({"chunks": 10})["reply"]["id"])
    assert elsewhere.text == " ".join(f"word{number}" for number in range(1, 11))
    # Of a cancelled reply without text nothing is left for the engine: it sees one message of the user.
    following = client.read(client.send("again", conversation_id=sent["conversation_id"])["reply"]["id"])
    assert following.text.endswith("again")
    for after in (elsewhere, following):
        assert after.end is not None
        assert (after.end["status"], after.attempt) == ("completed", 1)


def test_a_cancel_is_at_the_engine_within_a_quarter_of_a_second(product: Product) -> None:
    client = product.client()
    took_ms: list[float] = []
    for _ in range(7):
        sent_ms = time.time() * 1000
        reply_id = client.send({"chunks": 5000, "every_ms": 10})["reply"]["id"]
        cancelled_ms: list[float] = []

        def look(seen: Seen, reply_id: str = reply_id, cancelled_ms: list[float] = cancelled_ms) -> None:
            if seen.offset >= 3 and not cancelled_ms:
                cancelled_ms.append(time.time() * 1000)
                cancel(client, reply_id)

        seen = client.read(reply_id, each=look)
        assert seen.end is not None
        # The end's time counts from the acceptance, which is after the send began: this is an upper bound.
        took_ms.append(sent_ms + seen.end["timings"]["total_ms"] - cancelled_ms[0])
    assert statistics.median(took_ms) < 250, took_ms


def test_a_cancel_of_what_waits_means_that_it_never_starts_and_of_what_runs_that_the_next_does(
    product: Product,
) -> None:
    client = product.client()
    running = [client.send({"chunks": 100_000, "every_ms": 50})["reply"]["id"] for _ in range(SLOTS)]
    for reply_id in running:
        assert next(client.frames(reply_id)), "it runs"
    waiting = client.send({"chunks": 3})["reply"]["id"]
    following = client.send({"chunks": 3})["reply"]["id"]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(client.read, following)
        assert client.message(waiting)["status"] == "queued"
        cancel(client, waiting)
        seen = client.read(waiting)
        assert [kind for _, kind, _ in seen.events] == ["ended"]
        assert seen.end is not None
        assert (seen.end["status"], seen.end["usage"]["output_tokens"]) == ("cancelled", 0)
        assert not reading.done(), "it still waits"
        began_s = time.monotonic()
        cancel(client, running[0])
        assert reading.result(30).end["status"] == "completed"
        assert time.monotonic() - began_s < 2.0
    for reply_id in running[1:]:
        cancel(client, reply_id)
    for reply_id in running:
        assert client.read(reply_id).end
    assert client.message(waiting)["text"] == ""
