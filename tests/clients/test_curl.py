"""curl sends, streams, resumes and cancels."""

import json
import subprocess
import uuid
from typing import Any

import pytest
from system.product import Product, Seen

from clients.cable import Cable
from clients.programs import required

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RECEIVE_FAILED = 56


def curl(product: Product, url: str, *options: str, key: str | None = None) -> tuple[int, bytes]:
    """Run it: how it ends, and what it prints."""
    command = [str(required("curl")), "-sS", "-N", "-H", f"Authorization: Bearer {key or product.api_key}"]
    done = subprocess.run([*command, *options, url], capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout


def take(seen: Seen, printed: bytes) -> None:
    """Every whole event of what was printed; a part of one is no event."""
    for frame in printed.replace(b": hb\n", b"").split(b"\n\n")[:-1]:
        seen.take(frame + b"\n\n")


def sent_by(product: Product, url: str, script: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps({"client_message_id": uuid.uuid4().hex, "content": json.dumps(script)})
    code, printed = curl(product, f"{url}/v1/messages", "--json", body)
    assert code == 0
    return dict(json.loads(printed))


def test_a_connection_lost_in_the_middle_of_an_event_is_told_and_resumed_exactly(
    product: Product, cable: Cable
) -> None:
    sent = sent_by(product, cable.url, {"chunks": 40, "every_ms": 20})
    cable.cut_at(b"id: 10\nevent: delta\nda")
    seen = Seen()
    code, printed = curl(product, f"{cable.url}{sent['events_url']}")
    assert code == RECEIVE_FAILED
    assert printed.endswith(b"id: 10\nevent: delta\nda")
    take(seen, printed)
    assert seen.offset == 9
    code, printed = curl(product, f"{cable.url}{sent['events_url']}", "-H", f"Last-Event-ID: {seen.offset}")
    assert code == 0
    take(seen, printed)
    assert seen.end is not None
    assert seen.text == product.client().message(sent["reply"]["id"])["text"]
    code, printed = curl(product, f"{cable.url}{sent['events_url']}?after={seen.offset}", "-w", "%{http_code}")
    assert (code, printed) == (0, b"204")


def test_one_call_sends_and_streams_and_names_the_stream(product: Product) -> None:
    body = json.dumps({"content": json.dumps({"chunks": 5})})
    options = ("--json", body, "-H", "Accept: text/event-stream", "--include")
    code, printed = curl(product, f"{product.url}/v1/messages", *options)
    assert code == 0
    head, _, events = printed.partition(b"\r\n\r\n")
    seen = Seen()
    take(seen, events)
    headers = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
    code, printed = curl(product, f"{product.url}{headers['location']}")
    assert code == 0
    again = Seen()
    take(again, printed)
    assert seen.end is not None
    assert again.frames == seen.frames


def test_a_cancel_ends_the_stream_and_may_be_repeated(product: Product) -> None:
    sent = sent_by(product, product.url, {"chunks": 2000, "every_ms": 20, "first_after_ms": 0})
    cancel = f"{product.url}/v1/messages/{sent['reply']['id']}/cancel"
    code, printed = curl(product, cancel, "-X", "POST", "-w", "\n%{http_code}")
    assert (code, printed.rsplit(b"\n", 1)[1]) == (0, b"202")
    code, printed = curl(product, f"{product.url}{sent['events_url']}")
    seen = Seen()
    take(seen, printed)
    assert seen.end is not None
    assert seen.end["status"] == "cancelled"
    code, printed = curl(product, cancel, "-X", "POST", "-w", "\n%{http_code}")
    assert printed.rsplit(b"\n", 1)[1] in (b"200", b"202")


def test_errors_are_typed_problems(product: Product) -> None:
    sent = sent_by(product, product.url, {"chunks": 2})
    product.client().read(sent["reply"]["id"])
    events = f"{product.url}{sent['events_url']}"
    for url, key, status, code in (
        (events, "wrong", 401, "unauthorised"),
        (events.replace("/events", "x/events"), None, 404, "not_found"),
        (f"{events}?after=99", None, 410, "cursor_gone"),
        (f"{events}?after=x", None, 400, "invalid_cursor"),
    ):
        ended, printed = curl(product, url, "-w", "\n%{http_code} %{content_type}", key=key)
        body, told = printed.decode().rsplit("\n", 1)
        assert ended == 0
        assert told == f"{status} application/problem+json"
        assert json.loads(body)["code"] == code
