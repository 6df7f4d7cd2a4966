"""Sends that race with each other through both API processes."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from system.product import Product

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_of_fifty_sends_with_one_id_and_two_bodies_one_body_is_accepted_once(product: Product) -> None:
    addresses = product.addresses()
    client_message_id = uuid.uuid4().hex

    def send(index: int) -> httpx.Response:
        body = {"client_message_id": client_message_id, "content": f"body {index // 2 % 2}"}
        return product.client(addresses[index % 2]).persistently("POST", "/v1/messages", json=body)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    accepted = [answer.json() for answer in answers if answer.status_code in (200, 202)]
    conflicts = [answer for answer in answers if answer.status_code == 409]
    assert len(accepted) + len(conflicts) == 50
    assert len(conflicts) in (24, 26)
    assert {answer.json()["code"] for answer in conflicts} == {"client_message_id_conflict"}
    assert len({answer["reply"]["id"] for answer in accepted}) == 1
    assert len({answer["message"]["text"] for answer in accepted}) == 1
    client = product.client()
    seen = client.read(accepted[0]["reply"]["id"])
    assert seen.text == accepted[0]["message"]["text"]
    messages = client.get(f"/v1/conversations/{accepted[0]['conversation_id']}/messages")["data"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
