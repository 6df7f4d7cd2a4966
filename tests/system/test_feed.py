"""A second device follows a conversation by its feed."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from system.product import Client, Product, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def events(client: Client, conversation_id: str, after: int) -> Iterator[bytes]:
    """The feed's events, as they come."""
    path = f"/v1/conversations/{conversation_id}/events"
    with client.http.stream("GET", path, headers={"Last-Event-ID": str(after)}) as answer:
        assert answer.status_code == 200, answer.read()
        buffer = b""
        for chunk in answer.iter_bytes():
            buffer += chunk.replace(b": hb\n", b"")
            while b"\n\n" in buffer:
                event, buffer = buffer.split(b"\n\n", 1)
                yield event


def parsed(event: bytes) -> tuple[int, str, dict[str, Any]]:
    number, kind, data = (line.split(": ", 1)[1] for line in event.decode().split("\n"))
    return int(number), kind, json.loads(data)


def first(client: Client, conversation_id: str, after: int, count: int) -> list[bytes]:
    """So many events, then the reader leaves."""
    with closing(events(client, conversation_id, after)) as feed:
        return [next(feed) for _ in range(count)]


def test_a_second_device_sees_everything_and_resumes_anywhere(product: Product) -> None:
    mine, other = (product.client(address) for address in product.addresses())
    sent = mine.send({"chunks": 3, "every_ms": 5})
    conversation_id, reply_id = sent["conversation_id"], sent["reply"]["id"]
    path = f"/v1/conversations/{conversation_id}"
    seen: list[bytes] = []
    failed: list[Exception] = []

    def follow() -> None:
        try:
            for event in events(other, conversation_id, 0):
                seen.append(event)  # noqa: PERF402 - others look at it meanwhile
        except (httpx.HTTPError, AssertionError) as error:
            failed.append(error)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()

    def sees(count: int) -> None:
        eventually(f"{count} events", lambda: len(seen) >= count or failed)
        assert not failed

    sees(2)
    assert mine.persistently("PATCH", path, json={"title": "Named"}).status_code == 200
    sees(3)
    again = mine.persistently("POST", f"/v1/messages/{reply_id}/regenerate", json={"client_message_id": "again"})
    second = again.json()["reply"]["id"]
    sees(5)
    whole = list(seen)
    ids = [parsed(event)[0] for event in whole]
    assert ids == sorted(set(ids))
    assert [parsed(event)[1] for event in whole] == ["message", "reply_ended", "renamed", "message", "reply_ended"]
    told = [parsed(event)[2] for event in whole]
    assert (told[0]["message"]["id"], told[0]["reply"]["id"]) == (sent["message"]["id"], reply_id)
    assert (told[1]["id"], told[1]["status"], told[1]["text"]) == (reply_id, "completed", mine.read(reply_id).text)
    assert told[2] == {"title": "Named"}
    assert (told[3]["message"], told[3]["reply"]["id"]) == (None, second)
    assert (told[4]["id"], told[4]["text"]) == (second, mine.read(second).text)
    for client in (mine, other):
        for index, after in enumerate([0, *ids[:-1]]):
            assert first(client, conversation_id, after, len(whole) - index) == whole[index:]
    assert mine.http.delete(path).status_code == 204
    reader.join(30)
    assert not reader.is_alive()
    assert not failed
    assert seen[:-1] == whole
    assert parsed(seen[-1])[1:] == ("deleted", {})
    gone: httpx.Response = other.http.get(f"{path}/events")
    assert gone.status_code == 404
