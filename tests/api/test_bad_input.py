"""Bad input: told which field and why, in one shape, never a 5xx, and nothing gets into the log."""

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate

from api.bodies import SendBody, digest, parsed
from api.problems import Problem
from schemas import limits
from schemas.events import MessageSubmitted
from tests.api.world import ALICE, OPERATOR, Answer, Call, Process, World, eventually


def refused(answer: Answer, status: int, field: str | None = None) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]
    problem = answer.json
    assert {"type", "title", "status", "detail", "code"} <= set(problem)
    assert problem["status"] == status
    if field is not None:
        assert field in [error["field"] for error in problem["errors"]], problem


BAD_MEMBERS: list[tuple[str, dict[str, Any]]] = [
    ("content", {}),
    ("content", {"content": ""}),
    ("content", {"content": 5}),
    ("content", {"content": None}),
    ("content", {"content": ["a"]}),
    ("content", {"content": "a" * (limits.CONTENT_BYTES_MAX + 1)}),
    ("content", {"content": "é" * (limits.CONTENT_BYTES_MAX // 2) + "a"}),
    ("client_message_id", {"content": "a", "client_message_id": ""}),
    ("client_message_id", {"content": "a", "client_message_id": "x" * 129}),
    ("client_message_id", {"content": "a", "client_message_id": 1}),
    ("model", {"content": "a", "model": "nothing"}),
    ("model", {"content": "a", "model": ""}),
    ("max_output_tokens", {"content": "a", "max_output_tokens": 0}),
    ("max_output_tokens", {"content": "a", "max_output_tokens": 4097}),
    ("max_output_tokens", {"content": "a", "max_output_tokens": "5"}),
    ("max_output_tokens", {"content": "a", "max_output_tokens": 1.5}),
    ("max_output_tokens", {"content": "a", "max_output_tokens": True}),
    ("temperature", {"content": "a", "temperature": -0.1}),
    ("temperature", {"content": "a", "temperature": 2.1}),
    ("top_p", {"content": "a", "top_p": 0}),
    ("top_p", {"content": "a", "top_p": 1.1}),
    ("seed", {"content": "a", "seed": -1}),
    ("seed", {"content": "a", "seed": limits.SEED_MAX + 1}),
    ("seed", {"content": "a", "seed": 10**400}),
    ("stop", {"content": "a", "stop": "x"}),
    ("stop", {"content": "a", "stop": ["x"] * 9}),
    ("stop.1", {"content": "a", "stop": ["x", ""]}),
    ("stop.0", {"content": "a", "stop": ["x" * 129]}),
    ("system", {"content": "a", "system": "s" * (limits.SYSTEM_BYTES_MAX + 1)}),
    ("max_output_token", {"content": "a", "max_output_token": 5}),
    ("priority", {"content": "a", "priority": "paid"}),
    ("body", {"content": "a", "parent_id": "rep_x"}),
]


@pytest.mark.parametrize(("field", "body"), BAD_MEMBERS, ids=[f"{n}-{f}" for n, (f, _) in enumerate(BAD_MEMBERS)])
async def test_a_bad_member_is_named(world: World, api: Process, field: str, body: dict[str, Any]) -> None:
    refused(await api.call("POST", "/v1/messages", body=body), 400, field)
    assert world.submitted() == []


@pytest.mark.parametrize(
    "body",
    [
        {"content": "a"},
        {"content": "a" * limits.CONTENT_BYTES_MAX},
        {"content": "🦜" * (limits.CONTENT_BYTES_MAX // 4)},
        {"content": "a", "client_message_id": "x" * 128},
        {"content": "a", "max_output_tokens": 4096, "temperature": 2, "top_p": 1, "seed": limits.SEED_MAX},
        {"content": "a", "temperature": 0, "seed": 0, "stop": ["x" * 128] * 8, "system": "s" * limits.SYSTEM_BYTES_MAX},
        {"content": "a", "model": "smollm2-135m-instruct"},
    ],
    ids=range(7),
)
async def test_what_is_at_its_limit_is_taken(world: World, api: Process, body: dict[str, Any]) -> None:
    answer = await api.call("POST", "/v1/messages", body=body)
    assert answer.status == 202, answer.body
    assert world.submitted()[0].content == body["content"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"a"',
        b'{"content": "a"',
        b'{"content": "\xff"}',
        b'{"content": "\\ud800"}',
        b'{"content": "a\\udc00b"}',
        b'{"content": "a\nb"}',
        b'{"content": "a", "temperature": NaN}',
        b'{"content": "a", "temperature": Infinity}',
        b'{"content": "a", "temperature": 1e999}',
        b'{"content": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"content": "a", "seed": ' + b"9" * 10_000 + b"}",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
    ],
    ids=range(17),
)
async def test_what_is_not_json_or_not_unicode_is_refused(world: World, api: Process, raw: bytes) -> None:
    answer = await api.call("POST", "/v1/messages", raw=raw, headers={"Content-Type": "application/json"})
    refused(answer, 400)
    assert answer.json["errors"]
    assert world.submitted() == []


async def test_a_body_that_is_too_large_is_refused_announced_or_not(world: World, api: Process) -> None:
    raw = b'{"content": "' + b"a" * limits.BODY_BYTES_MAX + b'"}'
    for headers in ({}, {"Content-Length": str(len(raw))}):
        refused(
            await api.call("POST", "/v1/messages", raw=raw, headers={"Content-Type": "application/json"} | headers),
            413,
        )


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_is_not_declared_as_json_is_refused(api: Process, media_type: str) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    refused(await api.call("POST", "/v1/messages", raw=b'{"content": "a"}', headers=headers), 415)


async def test_other_addresses_and_methods_have_the_same_shape(api: Process) -> None:
    refused(await api.call("GET", "/"), 404)
    refused(await api.call("GET", "/v1/messages/"), 404)
    answer = await api.call("PUT", "/v1/messages")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/conversations?limit=0", "limit"),
        ("/v1/conversations?limit=201", "limit"),
        ("/v1/conversations?limit=x", "limit"),
        ("/v1/usage?from=2026-13-01", "from"),
        ("/v1/usage?to=yesterday", "to"),
        ("/v1/usage?group_by=account", "group_by"),
        ("/v1/usage?from=2026-02-02&to=2026-02-01", "from"),
    ],
)
async def test_a_bad_query_is_named(api: Process, path: str, field: str) -> None:
    refused(await api.call("GET", path), 400, field)


@pytest.mark.parametrize(
    "body", [{}, {"title": ""}, {"title": "t" * 201}, {"title": None}, {"name": "x"}, {"branch": 1}]
)
async def test_a_bad_change_is_refused(world: World, api: Process, body: dict[str, Any]) -> None:
    sent = await api.send()
    refused(await api.call("PATCH", f"/v1/conversations/{sent['conversation_id']}", body=body), 400)


async def test_a_parent_must_be_of_the_conversation(world: World, api: Process) -> None:
    one, other = await api.send(), await api.send()
    body = {"content": "x", "conversation_id": one["conversation_id"], "parent_id": other["reply"]["id"]}
    refused(await api.call("POST", "/v1/messages", body=body), 400, "parent_id")
    refused(await api.call("POST", "/v1/messages", body=body | {"parent_id": "rep_x"}), 404)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=20), children, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_body_or_a_problem(raw: bytes) -> None:
    outcome: SendBody | Problem
    try:
        outcome = parsed(SendBody, raw)
    except Problem as problem:
        outcome = problem
    if isinstance(outcome, Problem):
        assert (outcome.status, bool(outcome.errors)) == (400, True)
    else:
        assert outcome.content


@given(st.text(min_size=1, max_size=50).filter(lambda t: t.isprintable()), st.text(min_size=1, max_size=20))
def test_the_digest_is_of_the_meaning_and_not_of_the_writing(content: str, client_id: str) -> None:
    short = parsed(SendBody, json.dumps({"content": content}).encode())
    long = parsed(
        SendBody,
        json.dumps(
            {"model": "auto", "client_message_id": client_id, "stop": [], "content": content, "seed": None},
            ensure_ascii=False,
            indent=2,
        ).encode(),
    )
    assert digest(short) == digest(long)
    assert digest(short) != digest(parsed(SendBody, json.dumps({"content": content, "seed": 1}).encode()))


async def test_the_document_is_valid_and_says_how_things_look(api: Process) -> None:
    document = (await api.call("GET", "/openapi.json", key=None)).json
    validate(document)
    assert document["components"]["schemas"]["SendBody"]["examples"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], path
            assert "422" not in operation["responses"]
            for status, response in operation["responses"].items():
                assert "content" in response or status in ("204", "304") or method == "head", (path, status)


async def _end_replies(world: World, call: Call) -> None:
    """Until the call is answered; the reply that it may wait for ends."""
    task = call.task
    assert task is not None
    known = {event.reply_id for event in world.submitted()}

    def sent() -> list[MessageSubmitted]:
        return [event for event in world.submitted() if event.reply_id not in known]

    await eventually("it is answered, or waits for a reply", lambda: task.done() or sent())
    for event in sent():
        ids = {"reply": {"id": event.reply_id}, "message": {"id": event.message_id}}
        world.whole(ids | {"conversation_id": event.conversation_id}, "Rivers flow.")
    await call.end()


async def test_no_call_that_follows_or_breaks_the_document_breaks_the_service(world: World) -> None:
    api = world.process()
    await api.health.look()
    schema = schemathesis.openapi.from_dict((await api.call("GET", "/openapi.json", key=None)).json)
    strategies = [operation.ok().as_strategy() for operation in schema.get_all_operations()]
    cases: list[schemathesis.Case] = []

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(strategies))
    def collect(case: schemathesis.Case) -> None:
        cases.append(case)

    collect()
    for case in cases:
        request = case.as_transport_kwargs(base_url="http://test")
        headers = {
            name: value
            for name, value in dict(request.get("headers") or {}).items()
            if value.isascii() and value.isprintable() and name.lower() not in {"authorization", "accept"}
        }
        raw = json.dumps(request["json"]).encode() if "json" in request else None
        if raw is not None:
            headers["content-type"] = "application/json"
        path = request["url"].removeprefix("http://test")
        query = "&".join(f"{name}={value}" for name, value in (request.get("params") or {}).items())
        key = OPERATOR if path.startswith("/v1/admin/") else ALICE
        call = api.begin(request["method"], f"{path}?{query}", key=key, raw=raw, headers=headers)
        await _end_replies(world, call)
        answer = Answer(call.status, call.headers, call.received)
        assert answer.status < 500, (request, answer.body)
        documented = schema[case.operation.path][case.method.upper()].definition.raw["responses"]
        assert str(answer.status) in documented or answer.status in (404, 405), (request, answer.body)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/messages/{reply}/events?afer=3", "afer: is not known here; known are after, ticket"),
        ("/v1/conversations?page=2&limit=3", "page: is not known here; known are cursor, limit"),
        ("/v1/messages/{reply}?x=", "x: is not known here; nothing is"),
    ],
)
async def test_an_unknown_query_parameter_is_refused_by_name(world: World, api: Process, path: str, told: str) -> None:
    reply_id = world.whole(await api.send(), "a")
    answer = await api.call("GET", path.format(reply=reply_id))
    assert (answer.status, answer.json["detail"]) == (400, told)
