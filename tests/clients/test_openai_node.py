"""openai-node sends, streams, resumes after any event, polls and cancels."""

import json
from typing import Any

import pytest
from system.product import Product

from clients.cable import Cable
from clients.programs import Said, run_node

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PROGRAM = "openai.mjs"


def script(**members: Any) -> str:
    """A message that the engine obeys."""
    return json.dumps(members)


def numbers(said: list[Said]) -> list[int]:
    return [one["number"] for one in said]


def text_of(said: list[Said]) -> str:
    return "".join(one["text"] for one in said if one["type"] == "response.output_text.delta")


def output_text(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@pytest.mark.parametrize("marker", [b'"sequence_number":20,"item', b"event: response.output_text.do", b"event: respo"])
def test_a_connection_lost_in_the_middle_of_an_event_is_resumed_after_the_last_one(
    product: Product, environment: dict[str, str], cable: Cable, marker: bytes
) -> None:
    text = script(chunks=60, every_ms=20)
    known = {one["id"] for one in product.client().get("/v1/conversations")["data"]}
    cable.cut_at(marker)
    *events, broken = run_node(PROGRAM, "stream", text, env=environment | {"TURNLOG_URL": cable.url})
    assert broken["error"]
    assert cable.cuts == 1
    if not events:  # lost before the response was named
        new = [one for one in product.client().get("/v1/conversations")["data"] if one["id"] not in known]
        assert len(new) == 1
        return
    response_id, last = events[0]["response"]["id"], events[-1]["number"]
    events += run_node(PROGRAM, "resume", text, response_id, str(last), env=environment)
    assert numbers(events) == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    stored = product.client().message(response_id)["text"]
    assert text_of(events) == output_text(events[-1]["response"]) == stored


def test_the_stream_helper_has_the_response_at_the_end(environment: dict[str, str]) -> None:
    first, again = run_node(PROGRAM, "helper", script(chunks=20, every_ms=5, split_utf8=True), env=environment)
    assert first["status"] == "completed"
    assert first["text"] == first["output_text"] == again["again"]


def test_a_silent_stream_is_kept_alive(environment: dict[str, str]) -> None:
    events = run_node(PROGRAM, "stream", script(chunks=2, first_after_ms=3000, every_ms=1500), env=environment)
    assert events[-1]["type"] == "response.completed"
    assert text_of(events) == output_text(events[-1]["response"])


def test_a_response_in_the_background_is_polled_and_another_goes_on_from_it(environment: dict[str, str]) -> None:
    begun, ended, second = run_node(PROGRAM, "background", script(chunks=20, every_ms=20), env=environment)
    assert (begun["status"], ended["status"]) == ("queued", "completed")
    assert second["previous_response_id"] == begun["id"] == ended["id"]
    assert second["conversation"] == begun["conversation"]


def test_cancelling_keeps_the_text(product: Product, environment: dict[str, str]) -> None:
    cancelled, last = run_node(PROGRAM, "cancel", script(chunks=2000, every_ms=20), env=environment)
    assert (cancelled["status"], last["status"]) == ("cancelled", "cancelled")
    assert output_text(cancelled) == output_text(last) == product.client().message(last["id"])["text"]


def test_a_failed_response_has_its_error_and_a_failed_completion_raises(environment: dict[str, str]) -> None:
    failing = script(chunks=20, every_ms=1, fail_at=10)
    last = run_node(PROGRAM, "stream", failing, env=environment)[-1]
    assert (last["type"], last["response"]["error"]["type"]) == ("response.failed", "engine_error")
    (broken,) = run_node(PROGRAM, "chatBroken", failing, env=environment)
    assert (broken["error"], broken["code"]) == ("APIError", "engine_error")


def test_completions_with_and_without_a_stream_are_the_same(environment: dict[str, str]) -> None:
    whole, usage, text, helped, stored = run_node(PROGRAM, "chat", script(chunks=10), env=environment)
    assert whole["choices"][0]["finish_reason"] == helped["choices"][0]["finish_reason"] == "stop"
    content = whole["choices"][0]["message"]["content"]
    assert content == text["text"] == helped["choices"][0]["message"]["content"]
    assert (usage["usage"]["completion_tokens"], usage["finish"]) == (10, 0)
    assert stored == whole


def test_a_lost_completion_is_an_error(environment: dict[str, str], cable: Cable) -> None:
    cable.cut_at(b'"delta":{"content"')
    env = environment | {"TURNLOG_URL": cable.url}
    (broken,) = run_node(PROGRAM, "chatBroken", script(chunks=60, every_ms=20), env=env)
    assert broken["error"]
    assert broken["id"].startswith("rep_")


def test_refusals_have_the_types_that_the_client_knows(environment: dict[str, str]) -> None:
    key, model, unsupported, unknown = run_node(PROGRAM, "refusals", "x", env=environment)
    assert (key["refused"], key["status"]) == ("AuthenticationError", 401)
    assert (model["refused"], model["code"]) == ("NotFoundError", "model_not_found")
    assert (unsupported["refused"], unsupported["param"]) == ("BadRequestError", "n")
    assert (unknown["refused"], unknown["status"]) == ("NotFoundError", 404)


def test_models_are_listed(environment: dict[str, str]) -> None:
    models = run_node(PROGRAM, "models", "", env=environment)
    assert models
    assert {one["owned_by"] for one in models} == {"turnlog"}
