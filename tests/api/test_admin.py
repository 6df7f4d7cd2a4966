"""The operator's calls: accounts, users and keys, from the first call to what they open."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from api.admin_bodies import MODELS_MAX, NAME_CHARS_MAX, Liftable
from api.app import create_app
from api.issuer_keys import REFETCH_S, HttpFetch, IssuerKeys
from api.issuers import Tokens, parse_issuers
from api.last_used import EVERY_MS
from api.operator import OperatorKey
from schemas.events import AccountOpened, KeyIssued, KeyRevoked
from schemas.ids import key_hash
from schemas.tiers import LIFTABLE, REQUESTS_PER_MINUTE_MAX, TOKENS_MAX
from tests.api.issuer import FakeIssuer, issuer
from tests.api.world import ALICE, OPERATOR, Answer, Process, World, eventually

ACCOUNTS = "/v1/admin/accounts"


async def admin(api: Process, method: str, path: str = "", body: Any = None, **how: Any) -> Answer:
    """One of the operator's calls."""
    return await api.call(method, ACCOUNTS + path, key=OPERATOR, body=body, **how)


async def opened(api: Process, account_id: str = "acme", **body: Any) -> dict[str, Any]:
    answer = await admin(api, "PUT", f"/{account_id}", {"name": "Acme", "tier": "free"} | body)
    assert answer.status == 201, answer.body
    return dict(answer.json)


async def issued(api: Process, account_id: str = "acme", **body: Any) -> dict[str, Any]:
    answer = await admin(api, "POST", f"/{account_id}/keys", body)
    assert answer.status == 201, answer.body
    return dict(answer.json)


async def opens(api: Process, key: str) -> bool:
    answer = await api.call("GET", "/v1/models", key=key)
    assert answer.status in (200, 401), answer.body
    return answer.status == 200


async def test_without_an_operators_key_there_are_no_such_calls(world: World) -> None:
    api = world.process()
    api.service = type(api.service)(
        **{name: getattr(api.service, name) for name in api.service.__slots__ if name != "operator"}
    )
    api.app._app = create_app(api.service)
    answer = await admin(api, "GET")
    assert (answer.status, answer.json["code"]) == (404, "no_such_address")
    document = (await api.call("GET", "/openapi.json", key=None)).json
    assert not [path for path in document["paths"] if "admin" in path]
    assert not [name for name in document["components"]["schemas"] if "Account" in name]


@pytest.mark.parametrize("key", [None, ALICE, "operator-of-the-test", OPERATOR + "s", "", "é"])
async def test_another_key_than_the_operators_opens_none_of_them(api: Process, key: str | None) -> None:
    document = (await api.call("GET", "/openapi.json", key=None)).json
    paths = {path: calls for path, calls in document["paths"].items() if path.startswith("/v1/admin/")}
    assert len(paths) >= 8
    for path, calls in paths.items():
        for method in calls:
            where = path.format(account_id="alice", user_id="ada", key_id="1", period="2026-01")
            answer = await api.call(method.upper(), where, key=key)
            assert (answer.status, answer.json["code"]) == (401, "unauthorised"), where


async def test_the_operators_key_is_no_accounts_key(api: Process) -> None:
    assert not await opens(api, OPERATOR)


async def test_an_account_is_opened_once_and_its_key_opens_it(world: World, api: Process) -> None:
    made = await opened(api, organisation_id="group")
    assert (made["id"], made["tier"], made["organisation_id"], made["closed_at"]) == ("acme", "free", "group", None)
    body = {"name": "Acme", "tier": "free", "organisation_id": "group"}
    assert (await admin(api, "PUT", "/acme", body)).status == 200
    for other in (body | {"name": "Other"}, body | {"tier": "paid"}, {"name": "Acme"}):
        answer = await admin(api, "PUT", "/acme", other)
        assert (answer.status, answer.json["code"]) == (409, "account_exists")
    assert [event for event in world.events("accounts") if event.key() == "acme/account"][1:] == []
    key = await issued(api)
    assert key["api_key"].startswith(key["prefix"])
    assert (await api.send(key=key["api_key"]))["reply"]["id"]
    told = b"".join(record.value or b"" for _, record in world.raw("accounts"))
    assert key["api_key"].encode() not in told
    assert key["api_key"].encode() not in (await admin(api, "GET", "/acme/keys")).body


async def test_what_an_answer_says_is_in_force_when_it_comes(api: Process) -> None:
    await opened(api)
    key = (await issued(api))["api_key"]
    assert await opens(api, key)
    assert (await admin(api, "PATCH", "/acme", {"tier": "paid", "name": "Acme Ltd"})).json["tier"] == "paid"
    assert (await admin(api, "GET", "/acme")).json["name"] == "Acme Ltd"
    limits = {"requests_per_minute": 7, "models": ["smollm2-135m-instruct"], "spend_soft": "8", "spend_hard": "10.50"}
    shown = (await admin(api, "PUT", "/acme/limits", limits)).json
    assert {name: value for name, value in shown["own_limits"].items() if value is not None} == limits | {"lifted": []}
    assert (shown["limits"]["requests_per_minute"], shown["limits"]["running_max"]) == (7, 2_000)
    assert (await admin(api, "PUT", "/acme/limits", {})).json["limits"]["requests_per_minute"] > 7
    assert (await admin(api, "POST", "/acme/close")).json["closed_at"]
    assert not await opens(api, key)


async def test_a_closed_account_answers_like_a_key_that_never_was_and_stays_closed(world: World, api: Process) -> None:
    await opened(api)
    key = (await issued(api))["api_key"]
    sent = await api.send(key=key)
    closed_at = (await admin(api, "POST", "/acme/close")).json["closed_at"]
    never = await api.call("GET", "/v1/limits", key="tlk_never")
    closed = await api.call("GET", "/v1/limits", key=key)
    assert (closed.status, closed.body) == (never.status, never.body)
    world.whole(sent, "it ends as it does")
    assert (await admin(api, "POST", "/acme/close")).json["closed_at"] == closed_at
    for method, path, body in (
        ("PUT", "/acme", {"name": "Acme"}),
        ("PATCH", "/acme", {"tier": "paid"}),
        ("PUT", "/acme/limits", {}),
        ("PUT", "/acme/users/ada", {}),
        ("POST", "/acme/keys", {}),
    ):
        answer = await admin(api, method, path, body)
        assert (answer.status, answer.json["code"]) == (409, "account_closed"), path
    assert (await admin(api, "GET", "/acme/keys")).status == 200


async def test_a_key_of_a_name_is_issued_once(world: World, api: Process) -> None:
    await opened(api)
    first = await issued(api, name="ci", expires_at="2027-06-30T00:00:00Z")
    again = await admin(api, "POST", "/acme/keys", {"name": "ci", "expires_at": "2027-06-30T02:00:00+02:00"})
    assert (again.status, again.json["id"], again.json["api_key"]) == (200, first["id"], None)
    other = await admin(api, "POST", "/acme/keys", {"name": "ci"})
    assert (other.status, other.json["code"]) == (409, "key_exists")
    await admin(api, "DELETE", f"/acme/keys/{first['id']}")
    second = await issued(api, name="ci")
    assert second["id"] != first["id"]
    assert (await issued(api))["id"] != (await issued(api))["id"], "without a name each call is a new one"


async def test_of_two_keys_of_one_name_issued_at_once_one_is_shown_and_lives(world: World, api: Process) -> None:
    await opened(api)
    other = world.process()
    answers = await asyncio.gather(
        *(admin(one, "POST", "/acme/keys", {"name": "ci"}) for one in (api, other) for _ in range(5))
    )
    shown = [answer.json["api_key"] for answer in answers if answer.status == 201]
    assert len(shown) == 1
    assert await opens(api, shown[0])
    assert len({answer.json["id"] for answer in answers}) == 1
    listed = (await admin(api, "GET", "/acme/keys")).json["data"]
    assert [key["state"] for key in listed].count("live") == 1


async def test_a_key_ends_with_its_time_its_revocation_and_its_user(world: World, api: Process) -> None:
    await opened(api)
    assert (await admin(api, "PUT", "/acme/users/ada", {"name": "Ada"})).status == 201
    soon = await issued(api, expires_at="2026-12-12T00:00:00Z")
    hers = await issued(api, name="laptop", user_id="ada")
    plain = await issued(api)
    assert all([await opens(api, key["api_key"]) for key in (soon, hers, plain)])
    world.time_ms = 1_797_033_600_000 - 10
    assert await opens(api, soon["api_key"])
    world.time_ms = 1_797_033_600_000
    assert not await opens(api, soon["api_key"])
    revoked = await admin(api, "DELETE", f"/acme/keys/{plain['id']}")
    assert revoked.json["state"] == "revoked"
    lasting = ("id", "name", "prefix", "user_id", "issued_at", "expires_at")
    assert {name: revoked.json[name] for name in lasting} == {name: plain[name] for name in lasting}
    assert not await opens(api, plain["api_key"])
    assert (await admin(api, "DELETE", f"/acme/keys/{plain['id']}")).json["revoked_at"] == revoked.json["revoked_at"]
    assert (await admin(api, "DELETE", "/acme/users/ada")).status == 204
    assert not await opens(api, hers["api_key"])
    states = {key["id"]: key["state"] for key in (await admin(api, "GET", "/acme/keys")).json["data"]}
    assert states == {soon["id"]: "expired", hers["id"]: "revoked", plain["id"]: "revoked"}
    await admin(api, "PUT", "/acme/users/ada", {"name": "Ada"})
    assert not await opens(api, hers["api_key"]), "a user that is added again gets new keys"


@pytest.mark.parametrize("user_id", ["ada", "auth0|7", "https://id.example.com/users/7", "a b%2Fc?d#e", "é", "x" * 255])
async def test_users_are_called_as_their_issuer_calls_them(api: Process, user_id: str) -> None:
    from urllib.parse import quote

    await opened(api)
    path = f"/acme/users/{quote(user_id, safe='')}"
    assert (await admin(api, "PUT", path)).status == 201
    assert (await admin(api, "PUT", path, {})).status == 200
    assert (await admin(api, "PUT", path, {"name": "Ada"})).json["name"] == "Ada"
    (listed,) = (await admin(api, "GET", "/acme/users")).json["data"]
    assert (listed["id"], listed["name"]) == (user_id, "Ada")
    assert (await admin(api, "DELETE", path)).status == 204
    assert (await admin(api, "GET", "/acme/users")).json["data"] == []
    assert (await admin(api, "DELETE", path)).status == 204


async def test_listings_go_on_behind_their_cursor(api: Process) -> None:
    ids = [f"acme-{number}" for number in range(5)]
    for account_id in reversed(ids):
        await opened(api, account_id)
        await admin(api, "PUT", f"/acme-0/users/{account_id}") if account_id != "acme-0" else None
    await admin(api, "PUT", "/acme-0/users/acme-9")
    seen: list[str] = []
    path = "?limit=2"
    while path:
        page = (await admin(api, "GET", path)).json
        seen += [account["id"] for account in page["data"]]
        path = f"?limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert seen == sorted({"alice", "bob", *ids})
    assert (await admin(api, "GET", "?cursor=!")).json["code"] == "invalid_cursor"
    for number in range(5):
        await issued(api, "acme-0", name=f"k{number}")
    keys: list[str] = []
    path = "/acme-0/keys?limit=2"
    while path:
        page = (await admin(api, "GET", path)).json
        keys += [key["name"] for key in page["data"]]
        path = f"/acme-0/keys?limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert sorted(keys) == [f"k{number}" for number in range(5)]


BAD: list[tuple[str, str, Any, str]] = [
    ("PUT", "/Acme", {"name": "x"}, "account_id"),
    ("PUT", "/" + "a" * 65, {"name": "x"}, "account_id"),
    ("PUT", "/acme2", {}, "name"),
    ("PUT", "/acme2", {"name": ""}, "name"),
    ("PUT", "/acme2", {"name": "n" * (NAME_CHARS_MAX + 1)}, "name"),
    ("PUT", "/acme2", {"name": "x", "tier": "gold"}, "tier"),
    ("PUT", "/acme2", {"name": "x", "organisation_id": "No Id"}, "organisation_id"),
    ("PUT", "/acme2", {"name": "x", "priority": "paid"}, "priority"),
    ("PATCH", "/acme", {}, "body"),
    ("PATCH", "/acme", {"tier": "gold"}, "tier"),
    ("PATCH", "/acme", {"unknown_users": "some"}, "unknown_users"),
    ("PUT", "/acme/limits", {"requests_per_minute": 0}, "requests_per_minute"),
    ("PUT", "/acme/limits", {"requests_per_minute": REQUESTS_PER_MINUTE_MAX + 1}, "requests_per_minute"),
    ("PUT", "/acme/limits", {"tokens_per_minute": TOKENS_MAX + 1}, "tokens_per_minute"),
    ("PUT", "/acme/limits", {"running_max": 1.5}, "running_max"),
    ("PUT", "/acme/limits", {"models": []}, "models"),
    ("PUT", "/acme/limits", {"models": ["nothing"]}, "models"),
    ("PUT", "/acme/limits", {"models": ["smollm2-135m-instruct"] * (MODELS_MAX + 1)}, "models"),
    ("PUT", "/acme/limits", {"spend_hard": 100}, "spend_hard"),
    ("PUT", "/acme/limits", {"spend_hard": "-1"}, "spend_hard"),
    ("PUT", "/acme/limits", {"priority": "urgent"}, "priority"),
    ("PUT", "/acme/limits", {"lifted": ["running_max"]}, "lifted.0"),
    ("PUT", "/acme/limits", {"lifted": ["models"], "models": ["m"]}, "body"),
    ("PUT", "/acme/limits", {"spend_hard": "1e3"}, "spend_hard"),
    ("PUT", "/acme/limits", {"spend_soft": "2", "spend_hard": "1"}, "body"),
    ("PUT", "/acme/users/ada", {"name": "n" * (NAME_CHARS_MAX + 1)}, "name"),
    ("PUT", "/acme/users/" + "x" * 256, {}, "user_id"),
    ("PUT", "/acme/users/a%07b", {}, "user_id"),
    ("POST", "/acme/keys", {"user_id": "nobody"}, "user_id"),
    ("POST", "/acme/keys", {"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
    ("POST", "/acme/keys", {"expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at"),
    ("POST", "/acme/keys", {"expires_at": "2027-06-30T00:00:00"}, "expires_at"),
    ("POST", "/acme/keys", {"expires_at": "soon"}, "expires_at"),
    ("GET", "?limit=0", None, "limit"),
    ("GET", "?page=2", None, "page"),
]


@pytest.mark.parametrize(("method", "path", "body", "field"), BAD, ids=[f"{n}-{bad[3]}" for n, bad in enumerate(BAD)])
async def test_what_is_wrong_is_named(
    world: World, api: Process, method: str, path: str, body: Any, field: str
) -> None:
    await opened(api)
    before = len(world.events("accounts"))
    answer = await admin(api, method, path, body)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json"), answer.body
    assert field in [error["field"] for error in answer.json["errors"]]
    assert len(world.events("accounts")) == before


async def test_limits_at_their_ends_are_taken(api: Process) -> None:
    await opened(api, name="n" * NAME_CHARS_MAX)
    for value, requests in ((1, 1), (TOKENS_MAX, REQUESTS_PER_MINUTE_MAX)):
        members: dict[str, Any] = dict.fromkeys(
            ("tokens_per_minute", "burst_tokens", "output_tokens_max", "running_max"), value
        )
        members |= {"requests_per_minute": requests, "spend_soft": "0", "spend_hard": "999999999999999.999999999999"}
        assert (await admin(api, "PUT", "/acme/limits", members)).status == 200


async def test_an_account_may_have_a_priority_of_its_own_and_be_freed_of_its_tiers_limits(
    world: World, api: Process
) -> None:
    await opened(api)
    key = (await issued(api))["api_key"]
    world.tiers["free"] = replace(world.tiers["free"], spend_hard=Decimal(0), models=("another",))
    hello = {"content": "hello"}
    assert (await api.call("POST", "/v1/messages", key=key, body=hello)).status == 400
    world.measure("full", free="refuse")
    shown = (await admin(api, "PUT", "/acme/limits", {"lifted": ["models", "spend_hard"], "priority": "paid"})).json
    assert (shown["own_limits"]["lifted"], shown["own_limits"]["priority"]) == (["models", "spend_hard"], "paid")
    assert (shown["limits"]["models"], shown["limits"]["spend_hard"], shown["limits"]["priority"]) == (
        None,
        None,
        "paid",
    )
    assert (await api.call("POST", "/v1/messages", key=key, body=hello)).status == 202
    (sent,) = world.submitted()
    assert (sent.tier, sent.priority) == ("free", "paid")
    assert set(get_args(Liftable)) == set(LIFTABLE)


@pytest.mark.parametrize(("burst", "status"), [(1_439, 200), (1_440, 200), (1_441, 400)])
async def test_a_burst_that_takes_more_than_a_day_to_come_back_is_refused(
    api: Process, burst: int, status: int
) -> None:
    await opened(api)
    answer = await admin(api, "PUT", "/acme/limits", {"tokens_per_minute": 1, "burst_tokens": burst})
    assert answer.status == status
    if status == 400:
        assert "more than a day to come back at 1 tokens_per_minute; 1440 at most" in answer.json["detail"]
    else:
        assert answer.json["limits"]["burst_tokens"] == burst


async def test_what_is_not_there_is_told_as_such(api: Process) -> None:
    await opened(api)
    for method, path, body in (
        ("GET", "/nobody", None),
        ("PATCH", "/nobody", {"tier": "paid"}),
        ("PUT", "/nobody/limits", {}),
        ("POST", "/nobody/close", None),
        ("GET", "/nobody/users", None),
        ("PUT", "/nobody/users/ada", {}),
        ("DELETE", "/nobody/users/ada", None),
        ("GET", "/nobody/keys", None),
        ("POST", "/nobody/keys", {}),
        ("DELETE", "/acme/keys/key_nothing", None),
    ):
        answer = await admin(api, method, path, body)
        assert (answer.status, answer.json["code"]) == (404, "not_found"), path


async def test_when_a_key_was_last_used_is_noted_once_a_minute_and_lost_with_redis(world: World, api: Process) -> None:
    await opened(api)
    key = await issued(api)

    async def last() -> Any:
        (listed,) = (await admin(api, "GET", "/acme/keys")).json["data"]
        return listed["last_used_at"]

    assert await last() is None
    await opens(api, key["api_key"])
    first = await last()
    assert first is not None
    await api.service.used.write()
    assert (await world.hot.keys_used("acme")).keys() == {key["id"]}
    await opens(api, key["api_key"])
    assert await last() == first
    world.time_ms += EVERY_MS
    world.hot.down = True
    assert await opens(api, key["api_key"]), "nothing of a request waits for it"
    assert await last() is None, "not known while Redis is away"
    world.hot.down = False
    await api.service.used.write()
    assert await last() > first
    world.hot.lose()
    assert await last() is None


@pytest.fixture
def fake() -> Iterator[FakeIssuer]:
    with issuer() as made:
        yield made


@pytest.fixture
async def trusting(world: World, fake: FakeIssuer) -> AsyncIterator[Process]:
    """A process that trusts the issuer."""
    fetch = HttpFetch()
    (one,) = parse_issuers(fake.setting())
    world.tokens = Tokens([(one, IssuerKeys(one.issuer, one.jwks_url, fetch, lambda: world.time_ms / 1000))])
    yield world.process()
    await world.tokens.close()
    await fetch.close()


def token(world: World, fake: FakeIssuer, **claims: Any) -> str:
    return fake.token(now_s=world.time_ms // 1000, **claims)


async def test_a_token_opens_the_account_that_has_its_user(world: World, fake: FakeIssuer, trusting: Process) -> None:
    api = trusting
    refused = await api.call("GET", "/v1/models", key=token(world, fake))
    assert (refused.status, refused.json["code"]) == (401, "token_refused")
    assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    await admin(api, "PUT", "/alice/users/ada")
    assert await opens(api, token(world, fake))
    assert (await api.call("GET", "/v1/models", key=None, headers={"x-api-key": token(world, fake)})).status == 200
    sent = await api.send(key=token(world, fake))
    assert world.submitted()[-1].account_id == "alice"
    assert (await api.call("GET", f"/v1/messages/{sent['reply']['id']}", key=ALICE)).status == 200
    assert not await opens(api, token(world, fake, account="bob"))
    await admin(api, "DELETE", "/alice/users/ada")
    assert not await opens(api, token(world, fake))


async def test_an_account_may_admit_users_that_it_does_not_know(
    world: World, fake: FakeIssuer, trusting: Process
) -> None:
    api = trusting
    await admin(api, "PATCH", "/alice", {"unknown_users": "admit"})
    assert await opens(api, token(world, fake, sub="anybody"))
    await admin(api, "PUT", "/alice/users/ada")
    await admin(api, "DELETE", "/alice/users/ada")
    assert not await opens(api, token(world, fake)), "one that was removed stays out"
    await admin(api, "DELETE", "/alice/users/grace")
    assert not await opens(api, token(world, fake, sub="grace")), "also one that was never added"
    await admin(api, "POST", "/alice/close")
    closed = await api.call("GET", "/v1/models", key=token(world, fake, sub="anybody"))
    never = await api.call("GET", "/v1/models", key=token(world, fake, account="nobody"))
    assert (closed.status, closed.body) == (never.status, never.body)


async def test_why_a_token_is_refused_is_told_in_every_format(
    world: World, fake: FakeIssuer, trusting: Process
) -> None:
    old = token(world, fake, exp=world.time_ms // 1000 - 60)
    native = (await trusting.call("GET", "/v1/models", key=old)).json
    assert native["detail"] == "The token has expired."
    openai = await trusting.call("GET", "/openai/v1/models", key=old)
    assert (openai.status, openai.json["error"]["type"]) == (401, "authentication_error")
    anthropic = await trusting.call("GET", "/anthropic/v1/models", key=old)
    assert (anthropic.status, anthropic.json["error"]["type"]) == (401, "authentication_error")


async def test_while_an_issuers_keys_cannot_be_fetched_its_tokens_are_told_so_and_keys_go_on(
    world: World, fake: FakeIssuer, trusting: Process
) -> None:
    await admin(trusting, "PUT", "/alice/users/ada")
    fake.status = 500
    away = await trusting.call("GET", "/v1/models", key=token(world, fake))
    assert (away.status, away.json["code"], away.headers["retry-after"]) == (503, "issuer_unavailable", "5")
    assert await opens(trusting, ALICE)
    fake.status = 200
    world.time_ms += round(REFETCH_S * 1000)
    assert await opens(trusting, token(world, fake))


async def test_a_ticket_of_a_token_ends_with_it_and_with_its_user(
    world: World, fake: FakeIssuer, trusting: Process
) -> None:
    api = trusting
    await admin(api, "PUT", "/alice/users/ada")
    reply_id = world.whole(await api.send(key=token(world, fake)), "a")
    short = token(world, fake, exp=world.time_ms // 1000 + 10)

    async def url(key: str) -> str:
        return str((await api.call("POST", "/v1/tickets", key=key, body={"id": reply_id})).json["events_url"])

    async def status(address: str) -> int:
        return (await api.call("GET", f"{address}&after=3", key=None)).status

    of_short, of_long = await url(short), await url(token(world, fake))
    assert (await status(of_short), await status(of_long)) == (204, 204)
    world.time_ms += 41_000
    assert (await status(of_short), await status(of_long)) == (401, 204)
    await admin(api, "DELETE", "/alice/users/ada")
    assert await status(of_long) == 401


async def test_keys_and_tokens_are_not_repeated_in_answers(world: World, fake: FakeIssuer, trusting: Process) -> None:
    secrets = [f"tlk_{'a1B-_' * 7}", token(world, fake), OPERATOR]
    for secret in secrets:
        answers = [
            await trusting.call("POST", "/v1/messages", body={"content": "a", secret: 1}),
            await trusting.call("GET", f"/v1/conversations?{secret}=1"),
            await trusting.call("GET", f"/v1/messages/{secret}", headers={"x-request-id": secret}),
            await trusting.call(
                "POST", "/openai/v1/chat/completions", body={"model": secret, "messages": [], secret: 1}
            ),
            await trusting.call("GET", f"/openai/v1/models/{secret}"),
            await trusting.call("POST", "/anthropic/v1/messages", body={"model": secret, secret: 1}),
            await trusting.call("GET", "/v1/models", key=secret, headers={"x-request-id": secret}),
            await admin(trusting, "PATCH", "/alice", {secret: 1}),
        ]
        for answer in answers:
            assert secret.encode() not in answer.body + repr(answer.headers).encode()


@pytest.mark.parametrize("where", ["header", "body"])
async def test_a_key_is_no_id_of_a_message(world: World, api: Process, where: str) -> None:
    secret = f"tlk_{'a1B-_' * 7}"
    body = {"content": "a"} | ({"client_message_id": secret} if where == "body" else {})
    headers = {"Idempotency-Key": secret} if where == "header" else {}
    answer = await api.call("POST", "/v1/messages", body=body, headers=headers)
    assert (answer.status, world.submitted()) == (400, [])
    assert secret.encode() not in answer.body


def test_the_operators_key_is_not_shown() -> None:
    key = OperatorKey(OPERATOR)
    assert OPERATOR not in repr(key)
    assert OPERATOR not in key.hidden(f"a {OPERATOR} b")


async def test_no_key_is_taken_before_all_accounts_are_read() -> None:
    world = World()
    api = world.process()
    for event in (
        AccountOpened(account_id="alice", name="Alice", tier="paid", opened_at_ms=1),
        KeyIssued(account_id="alice", key_id="1", key_hash=key_hash(ALICE), issued_at_ms=1),
    ):
        world.append(event)
        world.accounts.apply(event.key(), event)
    world.append(KeyRevoked(account_id="alice", key_id="1", revoked_at_ms=2))  # which it has not come to yet
    for key, path in ((ALICE, "/v1/models"), ("tlk_unknown", "/v1/models"), (OPERATOR, ACCOUNTS)):
        answer = await api.call("GET", path, key=key)
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "accounts_unavailable", "1")
    assert (await api.call("GET", "/v1/models", key=None)).status == 401
    assert (await api.call("GET", ACCOUNTS, key=ALICE)).status == 401
    world.accounts_reader.start()
    try:
        await eventually("they are read", lambda: world.accounts_reader.complete)
        assert (await api.call("GET", "/v1/models", key=ALICE)).status == 401
    finally:
        await asyncio.to_thread(world.accounts_reader.close)
