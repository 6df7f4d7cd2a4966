"""One message goes the whole way, on the real servers."""

import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import redis
from system.product import Product, Seen, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_a_message_is_streamed_stored_listed_and_billed(product: Product) -> None:
    client = product.client()
    sent = client.send({"chunks": 40, "every_ms": 5})
    reply_id = sent["reply"]["id"]
    seen = client.read(reply_id)
    assert seen.end is not None
    assert seen.end["status"] == "completed"
    assert seen.end["usage"]["output_tokens"] == 40
    assert [kind for _, kind, _ in seen.events][:1] == ["started"]

    stored = client.message(reply_id)
    assert (stored["status"], stored["text"], stored["offset"]) == ("completed", seen.text, seen.offset)

    conversation_id = sent["conversation_id"]
    listed = client.get("/v1/conversations", limit=200)["data"]
    assert conversation_id in [item["id"] for item in listed]
    messages = client.get(f"/v1/conversations/{conversation_id}/messages")["data"]
    assert [(m["role"], m["position"]) for m in messages] == [("user", 1), ("assistant", 2)]
    assert messages[1]["text"] == seen.text

    records = eventually("the usage is listed", lambda: client.usage_records(reply_id))
    assert len(records) == 1
    assert records[0]["output_tokens"] == 40


def test_every_offset_gives_the_same_bytes_before_during_and_after_from_both_processes(product: Product) -> None:
    clients = [product.client(address) for address in product.addresses()]
    assert len(clients) == 2
    sent = clients[0].send({"chunks": 60, "every_ms": 20, "first_after_ms": 300})
    reply_id = sent["reply"]["id"]
    readings: list[tuple[int, Seen]] = []

    def follow(index: int, after: int, wait_s: float) -> None:
        threading.Event().wait(wait_s)
        seen = Seen(offset=after)
        clients[index % 2].read(reply_id, seen)
        readings.append((after, seen))

    with ThreadPoolExecutor(12) as pool:
        for index, (after, wait_s) in enumerate(
            [(0, 0.0), (0, 0.0), (0, 0.5), (1, 0.6), (5, 0.8), (10, 1.0), (0, 1.2)]
        ):
            pool.submit(follow, index, after, wait_s)
    whole = next(seen.frames for after, seen in readings if after == 0)
    assert len(whole) > 40  # under load two chunks may share an event
    for after, seen in readings:
        assert seen.frames == whole[after:], f"after {after}"
    assert len(readings) == 7
    for after in range(len(whole)):
        assert list(clients[after % 2].frames(reply_id, after)) == whole[after:]
        assert list(clients[after % 2].frames(reply_id, after)) == whole[after:]
    assert list(clients[0].frames(reply_id, len(whole))) == []


def test_fifty_sends_with_one_id_are_one_message_also_when_redis_is_flushed(product: Product) -> None:
    client_message_id = uuid.uuid4().hex
    body = {"client_message_id": client_message_id, "content": json.dumps({"chunks": 5, "every_ms": 50})}
    addresses = product.addresses()
    redis_address = product.parts()["redis"]["address"]

    def send(index: int) -> dict[str, object]:
        if index == 25:
            flush(redis_address)
        client = product.client(addresses[index % 2])
        answer = client.persistently("POST", "/v1/messages", json=body)
        assert answer.status_code in (200, 202), answer.text
        return dict(answer.json())

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    assert len({answer["reply"]["id"] for answer in answers}) == 1  # type: ignore[index]
    assert len({answer["message"]["id"] for answer in answers}) == 1  # type: ignore[index]

    client = product.client()
    reply_id = answers[0]["reply"]["id"]  # type: ignore[index]
    with ThreadPoolExecutor(50) as pool:
        texts = list(pool.map(lambda index: product.client(addresses[index % 2]).read(reply_id).text, range(50)))
    assert len(set(texts)) == 1
    eventually("the usage is listed", lambda: client.usage_records(reply_id))
    messages = client.get(f"/v1/conversations/{answers[0]['conversation_id']}/messages")["data"]
    assert [m["role"] for m in messages] == ["user", "assistant"]
    assert len(client.usage_records(reply_id)) == 1


def test_the_same_id_with_another_body_is_a_conflict(product: Product) -> None:
    client = product.client()
    sent = client.send("one thing")
    again = client.http.post(
        "/v1/messages", json={"client_message_id": sent["message"]["client_message_id"], "content": "another thing"}
    )
    assert again.status_code == 409
    assert again.headers["x-should-retry"] == "false"
    assert again.headers["content-type"].startswith("application/problem+json")


def test_a_cancel_through_the_other_process_keeps_what_was_said_and_bills_it(product: Product) -> None:
    one, other = (product.client(address) for address in product.addresses())
    sent = one.send({"chunks": 2000, "every_ms": 20})
    reply_id = sent["reply"]["id"]
    cancelled_at: list[float] = []

    def cancel_at_ten(seen: Seen) -> None:
        if seen.offset == 10:
            answer = other.http.post(f"/v1/messages/{reply_id}/cancel")
            assert answer.status_code == 202
            cancelled_at.append(time.monotonic())

    seen = one.read(reply_id, each=cancel_at_ten)
    took_s = time.monotonic() - cancelled_at[0]
    assert seen.end is not None
    assert seen.end["status"] == "cancelled"
    assert took_s < 2.0
    pieces = sum(1 for _, kind, _ in seen.events if kind == "delta")
    assert seen.end["usage"]["output_tokens"] >= pieces
    assert other.message(reply_id)["text"] == seen.text
    assert other.http.post(f"/v1/messages/{reply_id}/cancel").status_code == 200
    records = eventually("the usage is listed", lambda: other.usage_records(reply_id))
    assert records[0]["output_tokens"] == seen.end["usage"]["output_tokens"]


def test_a_disconnect_does_not_cancel(product: Product) -> None:
    client = product.client()
    sent = client.send({"chunks": 30, "every_ms": 20})
    reply_id = sent["reply"]["id"]
    for _ in client.frames(reply_id):
        break
    seen = client.read(reply_id)
    assert seen.end is not None
    assert seen.end["status"] == "completed"
    assert seen.end["usage"]["output_tokens"] == 30


def test_a_second_turn_and_a_regeneration_make_branches(product: Product) -> None:
    client = product.client()
    first = client.send("first")
    conversation_id = first["conversation_id"]
    client.read(first["reply"]["id"])
    second = client.send("second", conversation_id=conversation_id)
    client.read(second["reply"]["id"])
    again = client.persistently("POST", f"/v1/messages/{second['reply']['id']}/regenerate", json={})
    assert again.status_code == 202, again.text
    new_reply = again.json()["reply"]["id"]
    seen = client.read(new_reply)
    messages = client.get(f"/v1/conversations/{conversation_id}/messages")["data"]
    assert [m["position"] for m in messages] == [1, 2, 3, 4, 5]
    assert sum(1 for m in messages if m["role"] == "user") == 2
    assert client.message(new_reply)["text"] == seen.text
    assert set(client.message(new_reply)["siblings"]) == {second["reply"]["id"], new_reply}


def test_text_of_every_kind_comes_back_unchanged(product: Product) -> None:
    client = product.client()
    for text in (
        "a",
        "\u0000\u0007 tab\t nl\n cr\r",
        "𝕏🦜👩‍👩‍👧",
        "שלום עולם",
        "\u2028\u2029\u0085",
        "e\u0301",
        "\ufffd",
    ):
        sent = client.send(text)
        seen = client.read(sent["reply"]["id"])
        assert seen.text == text
        assert client.message(sent["message"]["id"])["text"] == text
        assert client.message(sent["reply"]["id"])["text"] == text


def test_text_split_inside_characters_is_joined(product: Product) -> None:
    client = product.client()
    text = "Grüße, 世界! 👩‍👩‍👧 ok"
    seen = client.read(client.send({"text": text, "split_utf8": True, "chunks": 12})["reply"]["id"])
    assert seen.text == text


def test_an_engine_that_fails_ends_the_reply_with_a_typed_error(product: Product) -> None:
    client = product.client()
    seen = client.read(client.send({"chunks": 20, "every_ms": 1, "fail_at": 10})["reply"]["id"])
    assert seen.end is not None
    assert seen.end["status"] == "failed"
    assert seen.end["error"]["code"]
    assert client.message(client.send("x")["reply"]["id"])["status"] in ("queued", "running", "completed")


def test_a_stranger_finds_nothing(product: Product) -> None:
    client = product.client()
    sent = client.send("secret")
    anonymous = httpx.Client(base_url=product.url, headers={"Authorization": "Bearer wrong"})
    assert anonymous.get(f"/v1/messages/{sent['reply']['id']}").status_code == 401
    made_up = sent["reply"]["id"][:-1] + ("0" if sent["reply"]["id"][-1] != "0" else "1")
    assert client.http.get(f"/v1/messages/{made_up}").status_code == 404


def flush(address: str) -> None:
    """FLUSHALL, as an operator would do by mistake."""
    host, port = address.removeprefix("redis://").split("/")[0].rsplit(":", 1)
    with redis.Redis(host=host, port=int(port)) as client:
        client.flushall()


def test_the_command_line_tells_the_status(product: Product) -> None:
    parts = product.parts()
    assert {"kafka", "redis", "clickhouse", "api-0", "api-1", "worker-0", "worker-1"} <= set(parts)
    assert {"streams-turns-0", "streams-dispatch-0", "streams-settlement-0", "streams-demand-0"} <= set(parts)
    assert {"projections-buffer-0", "projections-views-0"} <= set(parts)
    assert all(part["state"] == "ready" and part["pid"] for part in parts.values())
