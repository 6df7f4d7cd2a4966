"""Every reply ends, and says how: on its stream, on a later read, and in the same words."""

from typing import Any

import pytest
from system.product import Client, Product, Seen, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def ended(client: Client, reply_id: str) -> tuple[Seen, str, str]:
    """The stream, the status and the code of its end; what is stored says the same."""
    seen = client.read(reply_id)
    assert seen.end is not None
    assert seen.events[-1][1] == "ended"

    def stored() -> dict[str, Any] | None:
        message = client.message(reply_id)
        return message if message["status"] not in ("queued", "running") else None

    message = eventually("it is stored", stored)
    told = {name: value for name, value in (message["error"] or {}).items() if value is not None}
    assert (message["status"], told, message["text"]) == (seen.end["status"], seen.end["error"] or {}, seen.text)
    return seen, seen.end["status"], (seen.end["error"] or {}).get("code", "")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ({"chunks": 20, "every_ms": 5, "fail_at": 10}, "engine_error"),
        ({"chunks": 20, "every_ms": 5, "fail_at": 0}, "engine_error"),
        ({"chunks": 20, "every_ms": 5, "hang_at": 10}, "engine_stalled"),
    ],
    ids=["fails", "fails at once", "hangs"],
)
def test_an_engine_that_does_not_finish_is_a_typed_failure_and_the_text_so_far_is_kept(
    product: Product, script: dict[str, Any], code: str
) -> None:
    client = product.client()
    reply_id = client.send(script)["reply"]["id"]
    seen, status, told = ended(client, reply_id)
    assert (status, told) == ("failed", code)
    done = script.get("fail_at", script.get("hang_at"))
    assert seen.text == " ".join(f"word{number}" for number in range(1, done + 1))


def test_what_cannot_be_done_is_a_typed_refusal(product: Product) -> None:
    client = product.client()
    _, status, code = ended(client, client.send("word " * 1_000, model="small")["reply"]["id"])
    assert (status, code) == ("refused", "prompt_too_large")
    sent = client.send("first")
    client.read(sent["reply"]["id"])
    elsewhere = client.send("second")
    answer = client.http.post(
        "/v1/messages",
        json={
            "content": "below another conversation's message",
            "conversation_id": sent["conversation_id"],
            "parent_id": elsewhere["reply"]["id"],
        },
    )
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid_request"


def test_a_limit_is_an_end_of_its_own(product: Product) -> None:
    client = product.client()
    seen, status, code = ended(client, client.send({"chunks": 20}, max_output_tokens=5)["reply"]["id"])
    assert (status, code) == ("length", "")
    assert seen.end is not None
    assert seen.end["usage"]["output_tokens"] == 5


def test_a_reply_whose_workers_die_under_it_is_reported_as_failed(product: Product) -> None:
    client = product.client()
    try:
        seen, status, code = ended(client, client.send({"chunks": 30, "every_ms": 5, "crash_at": 10})["reply"]["id"])
        assert (status, code) == ("failed", "poison")
        assert [kind for _, kind, _ in seen.events].count("reset") == 1, "each attempt begins anew"
        assert " ".join(f"word{number}" for number in range(1, 11)).startswith(seen.text), "of the last attempt alone"
    finally:
        product.wait_ready()
