"""Where no worker runs and nobody shall wait for one: refused at the door, before anything is written."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from system.product import Client, Product, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SETTINGS = {"TURNLOG_NO_WORKER": "refuse", "TURNLOG_NO_WORKER_S": "0"}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    data: Path = tmp_path_factory.mktemp("without-workers")
    running = Product(data, "--engine", "scripted", "--workers", "0", env=SETTINGS)
    yield running
    running.close()


def post(client: Client, **body: Any) -> httpx.Response:
    return client.http.post("/v1/messages", json={"content": "hello"} | body)


def test_sends_are_answered_503_no_worker_and_what_was_accepted_before_is_still_there(product: Product) -> None:
    client = product.client()
    first = post(client, client_message_id="first")
    assert first.status_code == 202
    eventually("the door is shut", lambda: post(client).status_code == 503)
    refused = post(client, client_message_id=uuid.uuid4().hex)
    assert (refused.status_code, refused.json()["code"]) == (503, "no_worker")
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) == refused.json()["retry_after_s"] > 0
    again = post(client, client_message_id="first")
    assert again.status_code == 200
    assert again.json()["reply"]["id"] == first.json()["reply"]["id"]
    counted = client.http.get("/metrics").text
    assert 'turnlog_api_refused_sends_total{code="no_worker"}' in counted


def test_openais_client_gets_it_and_would_try_again(product: Product) -> None:
    client = product.client()
    post(client)
    eventually("the door is shut", lambda: post(client).status_code == 503)
    sdk = openai.OpenAI(base_url=f"{product.url}/openai/v1", api_key=product.api_key, max_retries=0)
    with pytest.raises(openai.InternalServerError) as raised:
        sdk.chat.completions.create(model="auto", messages=[{"role": "user", "content": "hello"}])
    assert (raised.value.status_code, raised.value.code) == (503, "no_worker")
    assert int(raised.value.response.headers["retry-after"]) > 0
    assert "x-should-retry" not in raised.value.response.headers
