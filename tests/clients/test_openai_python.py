"""openai-python sends, streams, resumes after any event, polls, cancels and deletes; sync and async."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI, Stream
from openai.types.chat import ChatCompletionChunk
from system.product import Product, eventually

from clients.cable import Cable
from clients.conftest import HEARTBEAT_S

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LONG = json.dumps({"chunks": 60, "every_ms": 20})
ENDS = ("response.completed", "response.incomplete", "response.failed")
MARKERS = [
    b'"sequence_number":20,"item',
    b"event: response.output_text.do",
    b'"sequence_number":3',
    b"event: response.comp",
]


def at(url: str, product: Product, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{url}/openai/v1", api_key=product.api_key, max_retries=0, **options)


@pytest.fixture
def client(product: Product) -> OpenAI:
    return at(product.url, product)


def script(**members: Any) -> str:
    """A message that the engine obeys."""
    return json.dumps(members)


def asked(text: str, **members: Any) -> dict[str, Any]:
    """The arguments of a chat completion."""
    return {"model": "auto", "messages": [{"role": "user", "content": text}]} | members


def text_of(events: Iterable[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_response_is_what_is_stored_and_billed(product: Product, client: OpenAI) -> None:
    response = client.responses.create(
        model="auto", input=script(chunks=10), instructions="Be brief.", metadata={"tag": "x"}, user="u"
    )
    native = product.client()
    stored = native.message(response.id)
    assert (response.output_text, response.status) == (stored["text"], "completed")
    assert response.usage is not None
    assert response.usage.input_tokens == stored["usage"]["input_tokens"]
    assert response.usage.output_tokens == stored["usage"]["output_tokens"] == 10
    assert response.metadata == {"tag": "x"}
    assert response._request_id
    (record,) = eventually("the bill is there", lambda: native.usage_records(response.id))
    assert record["output_tokens"] == 10
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    (item,) = client.responses.input_items.list(response.id)
    assert item.id == stored["parent_id"]


def test_a_stream_ends_with_the_response_that_is_read_by_its_id(client: OpenAI) -> None:
    with client.responses.stream(model="auto", input=script(chunks=20, every_ms=5, split_utf8=True)) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[:5] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    stored = client.responses.retrieve(response.id)
    assert (stored.output_text, stored.usage) == (response.output_text, response.usage)
    with client.responses.stream(response_id=response.id, starting_after=4) as rest:
        assert text_of(rest) == response.output_text
        assert rest.get_final_response().id == response.id


@pytest.mark.parametrize("marker", MARKERS)
def test_a_connection_lost_in_the_middle_of_an_event_is_resumed_after_the_last_one(
    product: Product, client: OpenAI, cable: Cable, marker: bytes
) -> None:
    cable.cut_at(marker)
    events: list[Any] = []
    with pytest.raises(openai.APIConnectionError):
        events.extend(at(cable.url, product).responses.create(model="auto", input=LONG, stream=True))
    response_id = events[0].response.id
    last = events[-1].sequence_number
    events += client.responses.retrieve(response_id, stream=True, starting_after=last)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert text_of(events) == events[-1].response.output_text == product.client().message(response_id)["text"]
    assert cable.cuts == 1


async def heard(stream: AsyncIterator[Any], events: list[Any]) -> None:
    """Adds what comes, as long as it comes."""
    async for event in stream:
        events.append(event)  # noqa: PERF401 - those before a failure are wanted


async def test_the_async_client_resumes_as_well(product: Product, cable: Cable) -> None:
    async with AsyncOpenAI(base_url=f"{cable.url}/openai/v1", api_key=product.api_key, max_retries=0) as client:
        cable.cut_at(b'"sequence_number":30,"it')
        events: list[Any] = []
        begun = await client.responses.create(model="auto", input=LONG, stream=True)
        with pytest.raises(openai.APIConnectionError):
            await heard(begun, events)
        last = events[-1].sequence_number
        rest = await client.responses.retrieve(events[0].response.id, stream=True, starting_after=last)
        await heard(rest, events)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert text_of(events) == events[-1].response.output_text
        answers = await asyncio.gather(*(client.chat.completions.create(**asked(f"n {n}")) for n in range(5)))
        assert len({answer.id for answer in answers}) == 5


def test_a_response_in_the_background_is_polled(client: OpenAI) -> None:
    response = client.responses.create(model="auto", input=script(chunks=20, every_ms=20), background=True)
    assert response.status == "queued"
    seen: list[str] = []

    def ended() -> bool:
        now = client.responses.retrieve(response.id)
        seen.append(now.output_text)
        return now.status == "completed"

    eventually("it has ended", ended)
    assert all(seen[-1].startswith(text) for text in seen)
    streamed = list(client.responses.retrieve(response.id, stream=True))
    assert text_of(streamed) == seen[-1]


def test_cancelling_keeps_the_text_and_can_be_repeated(client: OpenAI) -> None:
    with client.responses.create(
        model="auto", input=script(chunks=2000, every_ms=20), stream=True, background=True
    ) as stream:
        events: list[Any] = []
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and event.sequence_number == 10:
                cancelled = client.responses.cancel(events[0].response.id)
    assert cancelled.status == "cancelled"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    assert text_of(events) == cancelled.output_text == events[-1].response.output_text
    again = client.responses.cancel(cancelled.id)
    assert again.to_dict() == cancelled.to_dict() == client.responses.retrieve(cancelled.id).to_dict()


def test_leaving_cancels_nothing(client: OpenAI) -> None:
    with client.responses.create(model="auto", input=script(chunks=40, every_ms=20), stream=True) as stream:
        response_id = next(iter(stream)).response.id  # type: ignore[union-attr]
    events = list(client.responses.retrieve(response_id, stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens == 40


def test_a_response_goes_on_from_another(product: Product, client: OpenAI) -> None:
    first = client.responses.create(model="auto", input="one", instructions="Be brief.")
    second = client.responses.create(model="auto", input="two", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert first.conversation is not None
    assert second.conversation == first.conversation
    third = client.responses.create(model="auto", input="three", conversation=first.conversation.id)
    messages = product.client().get(f"/v1/conversations/{first.conversation.id}/messages")["data"]
    assert [one["id"] for one in messages if one["role"] == "assistant"] == [first.id, second.id, third.id]
    with pytest.raises(openai.ConflictError, match="DELETE /v1/conversations/"):
        client.responses.delete(second.id)
    alone = client.responses.create(model="auto", input="alone")
    client.responses.delete(alone.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(alone.id)


def test_output_that_comes_back_as_input_is_history(client: OpenAI) -> None:
    first = client.responses.create(model="auto", input="one")
    said: Any = [{"role": "user", "content": "one"}, *first.output, {"role": "user", "content": "two"}]
    second = client.responses.create(model="auto", input=said)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in items] == ["one", first.output_text, "two"]  # type: ignore[union-attr]


def test_a_limit_and_a_failure_are_told_by_the_last_event(client: OpenAI) -> None:
    cut = client.responses.create(model="auto", input=script(chunks=50), max_output_tokens=5)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="auto", input=script(chunks=20, every_ms=1, fail_at=10)) as stream:
        last: Any = list(stream)[-1]
    failed = last.response
    assert (last.type, failed.status) == ("response.failed", "failed")
    assert client.responses.retrieve(failed.id).error == failed.error
    assert (failed.error.code, failed.error.type) == ("server_error", "engine_error")


def test_a_silent_stream_is_kept_alive_by_comments(product: Product, client: OpenAI) -> None:
    text = script(chunks=2, first_after_ms=3000, every_ms=1500)
    events = list(client.responses.create(model="auto", input=text, stream=True))
    assert events[-1].type == "response.completed"
    chunks = list(client.chat.completions.create(**asked(text), stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"
    headers = {"Authorization": f"Bearer {product.api_key}"}
    body = {"model": "auto", "input": text, "stream": True}
    raw = httpx.post(f"{product.url}/openai/v1/responses", headers=headers, json=body, timeout=30).text
    assert raw.count(": hb\n") >= 4.5 / HEARTBEAT_S / 2
    assert ": hb\n\n" not in raw


def test_a_completion_is_what_is_stored_with_and_without_a_stream(product: Product, client: OpenAI) -> None:
    completion = client.chat.completions.create(**asked(script(chunks=10), seed=5, stop=["never said"]))
    stored = product.client().message(completion.id)
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == (stored["text"], "stop")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 10
    assert client.chat.completions.retrieve(completion.id).to_dict() == completion.to_dict()
    include_usage: Any = {"include_usage": True}
    with client.chat.completions.stream(**asked(script(chunks=10)), stream_options=include_usage) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == choice.message.content
    assert final.usage == completion.usage
    assert final.choices[0].finish_reason == "stop"
    cut = list(client.chat.completions.create(**asked(script(chunks=50), max_completion_tokens=5), stream=True))
    assert cut[-1].choices[0].finish_reason == "length"
    client.chat.completions.delete(completion.id)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(completion.id)


def test_a_conversation_goes_on_by_a_header(product: Product, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**asked("one"))
    named = {"x-conversation-id": raw.headers["x-conversation-id"]}
    client.chat.completions.create(**asked("two"), extra_headers=named)
    messages = product.client().get(f"/v1/conversations/{named['x-conversation-id']}/messages")["data"]
    assert [one["text"] for one in messages if one["role"] == "user"] == ["one", "two"]


def test_a_lost_completion_is_an_error_and_read_by_its_id(product: Product, client: OpenAI, cable: Cable) -> None:
    cable.cut_at(b'"delta":{"content"')
    chunks: list[Any] = []
    with pytest.raises(openai.APIConnectionError):
        chunks.extend(at(cable.url, product).chat.completions.create(**asked(LONG), stream=True))
    whole = client.chat.completions.retrieve(chunks[0].id)
    assert whole.choices[0].message.content == product.client().message(whole.id)["text"]
    path = f"/chat/completions/{whole.id}"
    again = client.get(
        path,
        cast_to=ChatCompletionChunk,
        options={"params": {"stream": True}},
        stream=True,
        stream_cls=Stream[ChatCompletionChunk],
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in again) == whole.choices[0].message.content


def test_a_cancelled_completion_says_so(client: OpenAI) -> None:
    chunks: list[Any] = []
    for chunk in client.chat.completions.create(**asked(script(chunks=2000, every_ms=20)), stream=True):
        chunks.append(chunk)
        if len(chunks) == 5:
            assert client.responses.cancel(chunk.id).status == "cancelled"
    assert chunks[-1].choices[0].finish_reason == "cancelled"
    whole = client.chat.completions.retrieve(chunks[0].id)
    assert whole.choices[0].finish_reason == "cancelled"
    assert whole.choices[0].message.content == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_a_failed_completion_is_an_error_of_http_or_in_the_stream(client: OpenAI) -> None:
    failing = asked(script(chunks=20, every_ms=1, fail_at=10))
    with pytest.raises(openai.InternalServerError) as alone:
        client.chat.completions.create(**failing)
    assert alone.value.code == "engine_error"
    assert alone.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.APIError) as streamed:
        list(client.chat.completions.create(**failing, stream=True))
    assert streamed.value.code == "engine_error"


def test_a_request_whose_answer_was_lost_is_sent_again_as_the_same(
    product: Product, client: OpenAI, cable: Cable
) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    cable.cut_at(b"HTTP/1.1 200")
    with pytest.raises(openai.APIConnectionError):
        at(cable.url, product).responses.create(model="auto", input="one", extra_headers=key)
    first = client.responses.create(model="auto", input="one", extra_headers=key)
    second = client.responses.create(model="auto", input="one", extra_headers=key)
    assert first.to_dict() == second.to_dict()
    with pytest.raises(openai.ConflictError):
        client.responses.create(model="auto", input="other", extra_headers=key)


def test_refusals_have_the_types_that_the_client_knows(product: Product, client: OpenAI) -> None:
    wrong = OpenAI(base_url=f"{product.url}/openai/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="gpt-6", input="x")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(**asked("x"), n=2)
    assert unsupported.value.param == "n"
    assert unsupported.value.request_id
    with pytest.raises(openai.NotFoundError) as previous:
        client.responses.create(model="auto", input="x", previous_response_id="resp_1")
    assert previous.value.code == "previous_response_not_found"
    response = client.responses.create(model="auto", input="x")
    with pytest.raises(openai.APIStatusError) as gone:
        client.responses.retrieve(response.id, stream=True, starting_after=1000)
    assert gone.value.status_code == 410


def test_models_are_listed(client: OpenAI) -> None:
    models = list(client.models.list())
    assert models
    assert client.models.retrieve(models[0].id) == models[0]
