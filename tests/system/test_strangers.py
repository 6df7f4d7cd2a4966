"""Tenants are strangers: what is another account's answers exactly as what never was, on every route there is.

The routes come from the OpenAPI document, so that a new one is walked without being named here. Each parameter and each
member of a body gets another account's ids, and ids of the same form that nobody has.
"""

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from system.product import Client, Product, eventually

from schemas.ids import Identities

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

MARK = f"what only its owner reads {secrets.token_hex(8)}"
FOR_OPERATORS = {"/healthz", "/readyz", "/metrics"}
TEXT = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "SendBody": {"content": "x"},
    "TicketBody": {"id": "rep_x"},
    "ChangeBody": {"title": "x"},
    "AnthropicBody": {"model": "auto", "max_tokens": 5, "messages": TEXT},
    "AiSdkBody": {"id": "x", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}]},
    "ResponsesBody": {"model": "auto", "input": "x"},
    "ChatBody": {"model": "auto", "messages": TEXT},
    "AccountBody": {"name": "x"},
}
"""What each body needs at least; of others, nothing."""


class Pair(NamedTuple):
    """Something of another account's, and something of the same form that never was."""

    what: str
    real: str
    never: str


class Call(NamedTuple):
    """A call with a place for an id: `{}` in its path, or the name of a parameter or member."""

    method: str
    path: str
    place: str
    headers: dict[str, str]
    query: dict[str, str]
    body: dict[str, Any] | None


class Victim:
    """An account with something of every kind."""

    def __init__(self, product: Product, name: str) -> None:
        self.account_id = name
        self.client = Client(product.url, product.open_account(name, "paid"))
        self.client.persistently("GET", "/v1/models")
        eventually("the key is known", lambda: self.client.http.get("/v1/models").status_code == 200)
        done = self.client.send(json.dumps({"text": MARK}))
        self.client.read(done["reply"]["id"])
        running = self.client.send({"chunks": 10_000, "every_ms": 50})
        self.running_id = running["reply"]["id"]
        gone = self.client.send("gone")
        self.client.read(gone["reply"]["id"])
        self.client.http.delete(f"/v1/conversations/{gone['conversation_id']}")
        self.conversation_id = done["conversation_id"]
        self.client.http.patch(f"/v1/conversations/{self.conversation_id}", json={"title": MARK})
        self.chat = f"chat-{secrets.token_hex(4)}"
        chat = BODIES["AiSdkBody"] | {"id": self.chat}
        self.client.http.post("/ai-sdk", json=chat).read()
        ids = Identities(secrets.token_bytes(16))
        self.pairs = [
            Pair("conversation", self.conversation_id, ids.conversation(name, None)),
            Pair("message", done["message"]["id"], ids.message(name, ids.conversation(name, None), None)),
            Pair("reply", done["reply"]["id"], ids.reply(name, ids.conversation(name, None), None)),
            Pair("running reply", self.running_id, ids.reply(name, ids.conversation(name, None), None)),
            Pair("deleted conversation", gone["conversation_id"], ids.conversation(name, None)),
            Pair("deleted reply", gone["reply"]["id"], ids.reply(name, ids.conversation(name, None), None)),
            Pair("chat", self.chat, f"chat-{secrets.token_hex(4)}"),
            Pair("account", name, f"{name[:-4]}{secrets.token_hex(2)}"),
            Pair("key", self._key_id(product), f"key_{secrets.token_hex(6)}"),
        ]

    def _key_id(self, product: Product) -> str:
        listed = product.turnlog("keys", "list", self.account_id, "--json", "--data", str(product.data)).stdout
        return str(json.loads(listed)["keys"][0]["key_id"])


def calls(document: dict[str, Any], own_conversation: str) -> Iterator[Call]:
    """Every place of every operation where an id can stand."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body, members = _body(document, operation)
            names = re.findall(r"{(\w+)}", path)
            rest = re.sub(r"{\w+}", own_conversation, path)
            for name in names:
                place = re.sub(r"{\w+}", own_conversation, path.replace(f"{{{name}}}", "{}"))
                yield Call(method, place, "{}", {}, {}, body)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] != "path" and parameter["name"].lower() not in ("accept", "idempotency-key"):
                    yield Call(method, rest, parameter["in"] + " " + parameter["name"], {}, {}, body)
            for member in members:
                yield Call(method, rest, "body " + member, {}, {}, body)
                if member == "metadata":
                    yield Call(method, rest, "metadata conversation_id", {}, {}, body)
    with_own = BODIES["SendBody"] | {"conversation_id": own_conversation}
    yield Call("post", "/v1/messages", "body parent_id", {}, {}, with_own)


def _body(document: dict[str, Any], operation: dict[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        return None, []
    name = schema["$ref"].rpartition("/")[2]
    return BODIES.get(name, {}), list(document["components"]["schemas"][name].get("properties", {}))


def answered(http: httpx.Client, call: Call, id_: str) -> tuple[int, Any, Any]:
    """Status, body and headers of the answer, without the id itself and what the clock and the buckets say."""
    where, _, name = call.place.partition(" ")
    headers = call.headers | {"X-Request-Id": "strangers"} | ({name: id_} if where == "header" else {})
    body = call.body
    if where in ("body", "metadata"):
        body = (call.body or {}) | ({name: id_} if where == "body" else {"metadata": {name: id_}})
    with http.stream(
        call.method.upper(),
        call.path.replace("{}", id_),
        headers=headers,
        params={name: id_} if where == "query" else None,
        json=body,
    ) as answer:
        content = answer.read() if not _is_endless(answer) else b""
    assert MARK.encode() not in content, (call, id_)
    told = {
        header: "" if "ratelimit" in header else value.replace(id_, "<id>")
        for header, value in sorted(answer.headers.items())
        if header not in ("date", "connection")  # closed or not: by whether the body had come when it was refused
    }
    if answer.is_success:
        return answer.status_code, None, None  # something of its own, new each time
    return answer.status_code, content.replace(id_.encode(), b"<id>"), told


def _is_endless(answer: httpx.Response) -> bool:
    return answer.is_success and "text/event-stream" in answer.headers.get("content-type", "")


@pytest.fixture(scope="module")
def victim(product: Product) -> Victim:
    return Victim(product, f"victim-{secrets.token_hex(4)}")


@pytest.fixture(scope="module")
def document(product: Product) -> dict[str, Any]:
    return dict(httpx.get(f"{product.url}/openapi.json").json())


@pytest.fixture(scope="module")
def stranger(product: Product) -> Client:
    """A client of another account, which has a conversation of its own."""
    client = Client(product.url, product.open_account(f"stranger-{secrets.token_hex(4)}", "paid"))
    eventually("the key is known", lambda: client.http.get("/v1/models").status_code == 200)
    return client


def test_every_route_answers_another_accounts_ids_as_ids_that_never_were(
    victim: Victim, stranger: Client, document: dict[str, Any]
) -> None:
    own = stranger.send("mine")
    stranger.read(own["reply"]["id"])
    walked = list(calls(document, own["conversation_id"]))
    assert len({(call.method, call.path) for call in walked}) >= 40
    statuses: dict[int, int] = {}
    for call in walked:
        pairs = victim.pairs if not call.place.startswith("body ") else victim.pairs[:4]
        for pair in pairs:
            real, never = (answered(stranger.http, call, id_) for id_ in (pair.real, pair.never))
            assert real == never, (call, pair)
            statuses[real[0]] = statuses.get(real[0], 0) + 1
    print(f"{sum(statuses.values())} pairs of calls, by status: {statuses}")
    assert statuses[404] > 100
    _is_untouched(victim)


def test_an_operators_route_tells_an_account_nothing(
    victim: Victim, stranger: Client, document: dict[str, Any]
) -> None:
    walked = [call for call in calls(document, "x") if call.path.startswith("/v1/admin/")]
    assert walked, "the product of these tests has an operator's key"
    for call in walked:
        for pair in victim.pairs:
            assert answered(stranger.http, call, pair.real)[0] == 401
            assert answered(stranger.http, call, pair.real) == answered(stranger.http, call, pair.never)


def test_without_a_key_every_route_answers_the_same_whatever_is_asked_for(
    product: Product, victim: Victim, document: dict[str, Any]
) -> None:
    with httpx.Client(base_url=product.url, timeout=30) as http:
        for call in calls(document, "x"):
            if call.path in FOR_OPERATORS or call.place == "query ticket":
                continue
            for pair in victim.pairs:
                real, never = (answered(http, call, id_) for id_ in (pair.real, pair.never))
                assert real[0] == 401, call
                assert real == never, (call, pair)
    _is_untouched(victim)


def test_the_demo_accounts_key_is_in_no_log_of_a_stack_in_the_background(product: Product) -> None:
    logs = {path.name: path.read_text(errors="replace") for path in (product.data / "logs").glob("*.log*")}
    assert "supervisor.log" in logs
    assert [name for name, log in logs.items() if product.api_key in log] == []
    assert product.client().http.get("/v1/models").status_code == 200, "and it was told to who started the stack"


def test_a_strangers_listings_and_cursors_show_nothing_of_another_account(victim: Victim, stranger: Client) -> None:
    page = victim.client.get("/v1/conversations", limit=1)
    assert page["next_cursor"]
    for cursor in (None, page["next_cursor"]):
        query = {} if cursor is None else {"cursor": cursor}
        listed = stranger.get("/v1/conversations", **query)
        assert not {pair.real for pair in victim.pairs} & {one["id"] for one in listed["data"]}
        assert MARK not in json.dumps(listed)
    records = stranger.pages("/v1/usage/records")
    assert not {pair.real for pair in victim.pairs} & {record["message_id"] for record in records}


def _is_untouched(victim: Victim) -> None:
    assert victim.client.message(victim.running_id)["status"] in ("queued", "running")
    shown = victim.client.get(f"/v1/conversations/{victim.conversation_id}")
    assert shown["title"] == MARK
