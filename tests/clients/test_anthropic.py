"""anthropic-python sends, streams, comes back and cancels."""

import json
import uuid
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from anthropic.types import Message
from system.product import Product, eventually

from clients.cable import Cable
from clients.conftest import HEARTBEAT_S

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LOST = (anthropic.APIConnectionError, httpx2.TransportError)
"""What the client raises when the connection is lost: before the answer's head, and after it."""


def at(url: str, product: Product, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=product.api_key, max_retries=0, **options)


@pytest.fixture
def client(product: Product) -> anthropic.Anthropic:
    return at(product.url, product)


def asked(script: dict[str, Any] | str, **members: Any) -> dict[str, Any]:
    """The arguments of a request whose reply follows the script."""
    text = script if isinstance(script, str) else json.dumps(script)
    return {"model": "auto", "max_tokens": 4096, "messages": [{"role": "user", "content": text}]} | members


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_is_what_is_stored_and_billed(product: Product, client: anthropic.Anthropic) -> None:
    message = client.messages.create(**asked({"chunks": 10}, system="Be brief.", extra_body={"temperature": 0.5}))
    native = product.client()
    stored = native.message(message.id)
    assert (text_of(message), message.stop_reason) == (stored["text"], "end_turn")
    usage = message.usage
    assert usage.output_tokens == stored["usage"]["output_tokens"] == 10
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert usage.input_tokens + read + written == stored["usage"]["input_tokens"]
    assert message._request_id
    (record,) = eventually("the bill is there", lambda: native.usage_records(message.id))
    assert record["output_tokens"] == 10


def test_a_stream_ends_as_the_message_that_it_was(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**asked({"chunks": 20, "every_ms": 5})) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
        reply_id = stream.response.headers["x-reply-id"]
    assert (text_of(message), message.id, message.stop_reason) == (text, reply_id, "end_turn")
    again = client.get(f"/v1/messages/{reply_id}", cast_to=Message)
    assert again.to_dict() == {name: value for name, value in message.to_dict().items() if name in again.to_dict()}
    assert again.usage.output_tokens == 20


def test_what_the_client_says_was_said_is_what_is_answered(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**asked("one"))
    messages: Any = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]},
    ]
    second = client.beta.messages.create(model="auto", max_tokens=64, messages=messages)
    assert second.id != first.id
    assert second.stop_reason in ("end_turn", "max_tokens")


def test_max_tokens_end_a_reply(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**asked({"chunks": 50}, max_tokens=5))
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)


def test_a_silent_stream_is_kept_alive_by_pings(product: Product, client: anthropic.Anthropic) -> None:
    script = {"chunks": 2, "first_after_ms": 3000, "every_ms": 10}
    with client.messages.stream(**asked(script)) as stream:
        assert text_of(stream.get_final_message())
    headers = {"x-api-key": product.api_key, "anthropic-version": "2023-06-01"}
    body = asked(script, stream=True)
    raw = httpx.post(f"{product.url}/anthropic/v1/messages", headers=headers, json=body, timeout=30).text
    assert raw.startswith("event: message_start\n")
    assert raw.count('event: ping\ndata: {"type":"ping"}\n\n') >= 3 / HEARTBEAT_S / 2


@pytest.mark.parametrize("marker", [b'"type":"text_delta","text":"', b"event: content_block_de", b"event: message_del"])
def test_a_lost_connection_is_an_error_and_the_reply_is_read_again(
    product: Product, client: anthropic.Anthropic, cable: Cable, marker: bytes
) -> None:
    cable.cut_at(marker)
    seen: list[str] = []
    with at(cable.url, product).messages.stream(**asked({"chunks": 30, "every_ms": 20})) as stream:
        reply_id = stream.response.headers["x-reply-id"]
        with pytest.raises(LOST):
            seen.extend(stream.text_stream)
    assert cable.cuts == 1
    message = client.get(f"/v1/messages/{reply_id}", cast_to=Message)
    assert text_of(message).startswith("".join(seen))
    assert text_of(message) == product.client().message(reply_id)["text"]
    assert message.stop_reason == "end_turn"


def test_a_request_whose_answer_was_lost_is_sent_again_as_the_same(
    product: Product, client: anthropic.Anthropic, cable: Cable
) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    cable.cut_at(b"HTTP/1.1 200")
    with pytest.raises(LOST):
        at(cable.url, product).messages.create(**asked({"chunks": 5}), extra_headers=key)
    first = client.messages.create(**asked({"chunks": 5}), extra_headers=key)
    second = client.messages.create(**asked({"chunks": 5}), extra_headers=key)
    assert first.to_dict() == second.to_dict()
    with pytest.raises(anthropic.ConflictError):
        client.messages.create(**asked("other"), extra_headers=key)


def test_a_cancelled_reply_ends_with_what_was_said(product: Product, client: anthropic.Anthropic) -> None:
    native = product.client()
    with client.messages.stream(**asked({"chunks": 2000, "every_ms": 20})) as stream:
        for count, _ in enumerate(stream.text_stream):
            if count == 5:
                answer = native.http.post(f"/v1/messages/{stream.response.headers['x-reply-id']}/cancel")
                assert answer.status_code == 202
        message = stream.get_final_message()
    assert message.stop_reason is None
    assert text_of(message) == native.message(message.id)["text"]
    assert 0 < message.usage.output_tokens < 2000


def test_leaving_cancels_nothing(product: Product, client: anthropic.Anthropic) -> None:
    with client.messages.stream(**asked({"chunks": 40, "every_ms": 20})) as stream:
        next(iter(stream.text_stream))
        reply_id = stream.response.headers["x-reply-id"]
    assert client.get(f"/v1/messages/{reply_id}", cast_to=Message).usage.output_tokens == 40


def test_a_failed_reply_is_a_typed_error(client: anthropic.Anthropic) -> None:
    script = {"chunks": 20, "every_ms": 1, "fail_at": 10}
    with pytest.raises(anthropic.InternalServerError) as failed:
        client.messages.create(**asked(script))
    assert failed.value.type == "api_error"
    assert failed.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(anthropic.APIStatusError) as broken, client.messages.stream(**asked(script)) as stream:
        stream.until_done()
    assert broken.value.body["error"]["type"] == "api_error"  # type: ignore[index,call-overload]
    assert "engine_error" in str(broken.value)


def test_refusals_have_the_types_that_the_client_knows(product: Product, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as unsupported:
        client.messages.create(**asked("x", tools=[{"name": "t", "input_schema": {"type": "object"}}]))
    assert unsupported.value.type == "invalid_request_error"
    assert "tools: is not supported" in str(unsupported.value)
    assert unsupported.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/messages/rep_unknown", cast_to=Message)
    with pytest.raises(anthropic.NotFoundError, match="not offered"):
        client.messages.count_tokens(model="auto", messages=[{"role": "user", "content": "x"}])
    wrong = anthropic.Anthropic(base_url=f"{product.url}/anthropic", api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(**asked("x"))


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    models = list(client.models.list())
    assert models
    assert client.models.retrieve(models[0].id) == models[0]
