"""What is ours to decide cannot be asked for: a priority, or a field of the inner records, is refused at the door."""

import json
from typing import Any

import pytest

from tests.api.world import ALICE, Process, World

SAID = [{"role": "user", "content": "hello"}]
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("/v1/messages", {"content": "hello"}),
    "responses": ("/openai/v1/responses", {"model": "auto", "input": "hello", "background": True}),
    "chat": ("/openai/v1/chat/completions", {"model": "auto", "messages": SAID}),
    "anthropic": ("/anthropic/v1/messages", {"model": "auto", "max_tokens": 5, "messages": SAID}),
    "ai-sdk": (
        "/ai-sdk",
        {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}]},
    ),
}
PRIVATE: dict[str, Any] = {
    "priority": "paid",
    "tier": "paid",
    "account_id": "bob",
    "organisation_id": "acme",
    "user_id": "ada",
    "pool": "default",
    "cache_salt": "acct_private",
    "generation_id": "gen_private",
    "reply_id": "rep_private",
    "deadline_at_ms": 1,
    "submitted_at_ms": 1,
    "attempt": 2,
    "kv_tokens": 0,
    "price_version": "free",
}


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_private_field_is_refused_by_name_in_every_format(world: World, api: Process, format_: str) -> None:
    path, body = FORMATS[format_]
    for name, value in PRIVATE.items():
        answer = await api.call("POST", path, key=ALICE, body=body | {name: value})
        assert answer.status == 400, (name, answer.body)
        assert name in answer.body.decode()
    assert world.submitted() == []


@pytest.mark.parametrize("format_", ["responses", "chat"])
async def test_a_service_tier_is_not_for_the_client_to_choose(world: World, api: Process, format_: str) -> None:
    path, body = FORMATS[format_]
    for value in ("priority", "flex", "paid", "", 1, {}):
        answer = await api.call("POST", path, key=ALICE, body=body | {"service_tier": value})
        assert (answer.status, answer.json["error"]["param"]) == (400, "service_tier")
    assert world.submitted() == []


@pytest.mark.parametrize("value", [None, "paid", "urgent", "0", "-1"])
async def test_the_priority_is_the_accounts_tier_whatever_headers_say(
    world: World, api: Process, value: str | None
) -> None:
    headers = {} if value is None else {"priority": value, "x-priority": value, "x-tier": value, "x-account-id": "bob"}
    answer = await api.call("POST", "/v1/messages", key=ALICE, body={"content": "hello"}, headers=headers)
    assert answer.status == 202
    (submitted,) = world.submitted()
    assert (submitted.account_id, submitted.tier) == ("alice", "paid")
    assert "urgent" not in json.dumps([record.value.decode() for _, record in world.raw("messages") if record.value])
