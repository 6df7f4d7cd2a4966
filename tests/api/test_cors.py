"""Pages of other origins: let in by name, or by `*`, or not at all."""

import pytest
from pydantic import ValidationError

from api.cors import EXPOSED, let_in
from api.settings import ApiSettings
from tests.api.world import Process, World

CHAT, OTHER = "https://chat.example.com", "https://other.example.com"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, idempotency-key, last-event-id, x-api-key",
}


def letting_in(world: World, *origins: str) -> Process:
    process = world.process()
    process.app = let_in(process.app, origins)  # type: ignore[assignment]
    return process


async def test_a_preflight_of_an_origin_that_is_let_in_allows_what_clients_send(world: World) -> None:
    api = letting_in(world, CHAT)
    answer = await api.call("OPTIONS", "/v1/messages", key=None, headers={"Origin": CHAT} | PREFLIGHT)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == CHAT
    allowed = answer.headers["access-control-allow-headers"].lower()
    for name in ("authorization", "content-type", "idempotency-key", "last-event-id", "x-api-key"):
        assert name in allowed
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        assert method in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_an_origin_that_is_not_named_is_refused(world: World) -> None:
    api = letting_in(world, CHAT)
    refused = await api.call("OPTIONS", "/v1/messages", key=None, headers={"Origin": OTHER} | PREFLIGHT)
    assert refused.status == 400
    assert "access-control-allow-origin" not in refused.headers
    answer = await api.call("GET", "/v1/conversations", headers={"Origin": OTHER})
    assert "access-control-allow-origin" not in answer.headers


async def test_answers_errors_and_streams_may_be_read_by_a_page_that_is_let_in(world: World) -> None:
    api = letting_in(world, CHAT)
    reply_id = world.whole(await api.send(), "hello")
    calls = [("/v1/limits", 200), ("/v1/messages/rep_unknown", 404), (f"/v1/messages/{reply_id}/events", 200)]
    for path, status in calls:
        answer = await api.call("GET", path, headers={"Origin": CHAT})
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == CHAT
        assert answer.headers["access-control-expose-headers"].split(", ") == list(EXPOSED)
        assert answer.headers["x-request-id"]
    refused = await api.call("GET", "/v1/limits", key=None, headers={"Origin": CHAT})
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, CHAT)


async def test_a_star_lets_in_every_origin_and_nothing_set_none(world: World) -> None:
    answer = await letting_in(world, "*").call("GET", "/v1/limits", headers={"Origin": OTHER})
    assert answer.headers["access-control-allow-origin"] == "*"
    api = letting_in(world)
    answer = await api.call("GET", "/v1/limits", headers={"Origin": OTHER})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    answer = await api.call("OPTIONS", "/v1/messages", key=None, headers={"Origin": OTHER} | PREFLIGHT)
    assert answer.status == 405


def test_the_setting_is_a_list_of_origins() -> None:
    secret = {"secret": "a secret of the tests", "kafka_bootstrap": "127.0.0.1:1"}
    assert ApiSettings(**secret).origins == ()  # type: ignore[arg-type]
    several = ApiSettings(**secret, cors_origins=f"{CHAT}, http://127.0.0.1:3000")  # type: ignore[arg-type]
    assert several.origins == (CHAT, "http://127.0.0.1:3000")
    for wrong in ("chat.example.com", f"{CHAT}/", f"{CHAT}/page", f"*, {CHAT}", "https://*.example.com"):
        with pytest.raises(ValidationError, match="origins with commas between"):
            ApiSettings(**secret, cors_origins=wrong)  # type: ignore[arg-type]
