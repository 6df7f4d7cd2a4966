"""Tokens of issuers: what is let in, what is refused and why, and how keys come and go."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from api.issuer_keys import ALGORITHMS, REFETCH_S, HttpFetch, IssuerKeys, KeysAway, Unfetched, keys_in
from api.issuers import NOT_OURS, Issuer, Refused, Signed, Tokens, accepted, parse_issuers
from tests.api.issuer import AUDIENCE, FakeIssuer, issuer, jwk_of, private_key
from tests.api.world import eventually

NOW_S = 1_796_000_000
ISSUER = Issuer(issuer="https://id.example.com", jwks_url="https://id.example.com/jwks", audience=AUDIENCE)
GOOD = {"iss": ISSUER.issuer, "aud": AUDIENCE, "sub": "ada", "account": "acme", "exp": NOW_S + 60}


@pytest.fixture
def fake() -> Iterator[FakeIssuer]:
    with issuer() as made:
        yield made


class Bench:
    """Tokens of one issuer, a clock that is moved by hand, and what was told of fetches."""

    def __init__(self, fake: FakeIssuer, fetch: HttpFetch, refresh_s: float, **members: Any) -> None:
        (self.issuer,) = parse_issuers(fake.setting(**members))
        self.clock_s = 0.0
        self.told: list[str] = []
        self.keys = IssuerKeys(
            fake.name, fake.url, fetch, lambda: self.clock_s, lambda _, outcome: self.told.append(outcome), refresh_s
        )
        self.tokens = Tokens([(self.issuer, self.keys)])

    async def read(self, token: str, now_s: float = NOW_S) -> Signed | Refused | KeysAway:
        return await self.tokens.read(token, now_s)


@asynccontextmanager
async def bench(fake: FakeIssuer, refresh_s: float = 300.0, **members: Any) -> AsyncIterator[Bench]:
    fetch = HttpFetch()
    made = Bench(fake, fetch, refresh_s, **members)
    try:
        yield made
    finally:
        await made.tokens.close()
        await fetch.close()


def claims(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in (GOOD | changed).items() if value is not None}


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256", "ES384", "EdDSA"])
async def test_a_good_token_names_its_account_and_user(fake: FakeIssuer, algorithm: str) -> None:
    fake.rotate("k", algorithm)
    async with bench(fake, algorithms=[algorithm]) as made:
        signed = await made.read(fake.token(now_s=NOW_S))
    assert signed == Signed(account_id="alice", user_id="ada", expires_at_ms=(NOW_S + 630) * 1000)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": NOW_S - 30}, "has expired"),
        ({"exp": None}, "has no time"),
        ({"exp": "tomorrow"}, "has no time"),
        ({"exp": True}, "has no time"),
        ({"exp": 1e300}, "has no time"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"nbf": "x"}, "has no time"),
        ({"aud": None}, "another audience"),
        ({"aud": "others"}, "another audience"),
        ({"aud": ["others", 5]}, "another audience"),
        ({"aud": {"turnlog-tests": 1}}, "another audience"),
        ({"sub": None}, "names no user"),
        ({"sub": ""}, "names no user"),
        ({"sub": 7}, "names no user"),
        ({"sub": "a\nb"}, "names no user"),
        ({"sub": "x" * 256}, "names no user"),
        ({"account": None}, "names no account in account"),
        ({"account": "Not An Id"}, "names no account in account"),
        ({"account": ["acme"]}, "names no account in account"),
    ],
)
def test_what_is_wrong_with_the_claims_is_told(changed: dict[str, Any], reason: str) -> None:
    refused = accepted(ISSUER, claims(**changed), NOW_S)
    assert isinstance(refused, Refused)
    assert reason in refused.reason


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW_S - 29},
        {"nbf": NOW_S + 30, "iat": NOW_S + 30},
        {"aud": ["others", AUDIENCE]},
        {"sub": "x" * 255},
        {"sub": "https://id.example.com/users/7|é"},
        {"exp": NOW_S + 0.5},
    ],
)
def test_what_is_just_within_the_limits_is_taken(changed: dict[str, Any]) -> None:
    assert isinstance(accepted(ISSUER, claims(**changed), NOW_S), Signed)


def test_the_account_is_the_issuers_own_or_one_of_those_that_it_may_name() -> None:
    (own,) = parse_issuers(json.dumps([{"issuer": "i", "jwks_url": "https://x", "audience": "a", "account": "acme"}]))
    signed = accepted(own, claims(aud="a", account="other"), NOW_S)
    assert isinstance(signed, Signed)
    assert signed.account_id == "acme"
    entry = {
        "issuer": "i",
        "jwks_url": "https://x",
        "audience": ["a", "b"],
        "account_claim": "org",
        "accounts": ["acme"],
    }
    (some,) = parse_issuers(json.dumps([entry]))
    assert isinstance(accepted(some, claims(aud="b", org="acme"), NOW_S), Signed)
    refused = accepted(some, claims(aud="b", org="other"), NOW_S)
    assert isinstance(refused, Refused)
    assert "may not open" in refused.reason


async def test_what_is_not_signed_by_the_issuer_is_refused_without_more_words(fake: FakeIssuer) -> None:
    fake.rotate("rsa", "RS256", keep=True)
    good = fake.token("one", now_s=NOW_S)
    header, content, signature = good.split(".")
    rsa_key = fake.keys["rsa"][1]
    public = rsa_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    other = private_key("ES256")
    body = fake.claims(now_s=NOW_S)
    bad = {
        "none": _unsigned({"alg": "none", "kid": "one"}, body),
        "none in capitals": _unsigned({"alg": "NONE"}, body),
        "public key as secret": _hmac(public, {"alg": "HS256", "kid": "rsa"}, body),
        "another key": jwt.encode(body, other, algorithm="ES256", headers={"kid": "one"}),
        "its own key": jwt.encode(
            body, other, algorithm="ES256", headers={"kid": "one", "jwk": jwk_of(other, "ES256", "one")}
        ),
        "key of another algorithm": jwt.encode(body, rsa_key, algorithm="RS256", headers={"kid": "one"}),
        "algorithm that is not configured": jwt.encode(body, rsa_key, algorithm="RS512", headers={"kid": "rsa"}),
        "critical": fake.token("one", {"crit": ["x"], "x": 1}, now_s=NOW_S),
        "unknown key": fake.token("one", {"kid": "nobody"}, now_s=NOW_S),
        "another issuer": fake.token("one", iss="https://other.example.com", now_s=NOW_S),
        "changed claims": f"{header}.{_encoded(body | {'account': 'bob'})}.{signature}",
        "no signature": f"{header}.{content}.",
        "claims that are no object": jwt.PyJWS().encode(b"[]", fake.keys["one"][1], "ES256", {"kid": "one"}),
        "too long": fake.token("one", now_s=NOW_S, more="x" * 8192),
        "not ascii": good + "é",
        "four parts": good + ".x",
    }
    async with bench(fake) as made:
        assert isinstance(await made.read(good), Signed)
        for what, token in bad.items():
            assert await made.read(token) == NOT_OURS, what


@given(
    st.text(max_size=300) | st.binary(max_size=200).map(lambda b: f"{_encoded({'alg': 'ES256'})}.{_b64(b)}.{_b64(b)}")
)
def test_any_text_is_refused(text: str) -> None:
    tokens = Tokens([(ISSUER, IssuerKeys("i", "https://x", _never, lambda: 0.0))])
    assert asyncio.run(tokens.read(text, NOW_S)) == NOT_OURS


async def _never(url: str) -> bytes:
    raise Unfetched(url)


async def test_a_new_key_is_fetched_when_a_token_names_it_and_not_again_at_once(fake: FakeIssuer) -> None:
    async with bench(fake) as made:
        old = fake.token(now_s=NOW_S)
        assert isinstance(await made.read(old), Signed)
        assert fake.asked == 1
        made.clock_s = REFETCH_S
        fake.rotate("two", keep=True)
        assert isinstance(await made.read(fake.token("two", now_s=NOW_S)), Signed)
        assert isinstance(await made.read(old), Signed)
        assert fake.asked == 2
        made_up = fake.token("two", {"kid": "made up"}, now_s=NOW_S)
        assert await made.read(made_up) == NOT_OURS
        assert fake.asked == 2, "a moment later it is not asked again"
        made.clock_s += REFETCH_S
        assert await made.read(made_up) == NOT_OURS
        assert fake.asked == 3


async def test_all_who_wait_for_a_key_wait_for_one_fetch_and_others_do_not(fake: FakeIssuer) -> None:
    async with bench(fake) as made:
        known = fake.token(now_s=NOW_S)
        assert isinstance(await made.read(known), Signed)
        made.clock_s = REFETCH_S
        fake.rotate("two", keep=True)
        fake.held.clear()
        waiting = [asyncio.create_task(made.read(fake.token("two", now_s=NOW_S))) for _ in range(20)]
        await eventually("it is asked", lambda: fake.asked == 2)
        assert isinstance(await asyncio.wait_for(made.read(known), 1), Signed)
        assert not any(task.done() for task in waiting)
        fake.held.set()
        assert all(isinstance(one, Signed) for one in await asyncio.gather(*waiting))
        assert fake.asked == 2


async def test_an_outage_keeps_the_keys_and_without_any_it_is_said(fake: FakeIssuer) -> None:
    async with bench(fake) as made:
        fake.status = 503
        token = fake.token(now_s=NOW_S)
        assert isinstance(await made.read(token), KeysAway)
        fake.status = 200
        made.clock_s = REFETCH_S
        assert isinstance(await made.read(token), Signed)
        for trouble in (b"{}", b"<html>", b'{"keys": 5}', b"x" * 300_000):
            fake.document = trouble
            made.clock_s += REFETCH_S
            assert await made.read(fake.token("one", {"kid": "x"}, now_s=NOW_S)) == NOT_OURS
            assert isinstance(await made.read(token), Signed)
        assert made.told == ["failed", "done", "failed", "failed", "failed", "failed"]


async def test_a_withdrawn_key_opens_nothing_after_the_next_refresh(fake: FakeIssuer) -> None:
    async with bench(fake, refresh_s=0.02) as made:
        keeping = asyncio.create_task(made.tokens.keep())
        old = fake.token(now_s=NOW_S)
        assert isinstance(await made.read(old), Signed)
        fake.rotate("two")
        seen = made.told.count("done") + 1  # one may be on its way
        await eventually("it is fetched anew", lambda: made.told.count("done") > seen)
        assert await made.read(old) == NOT_OURS
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_a_token_without_a_key_id_is_taken_where_there_is_one_key_only(fake: FakeIssuer) -> None:
    _, key = fake.keys["one"]
    token = jwt.encode(fake.claims(now_s=NOW_S), key, algorithm="ES256")
    async with bench(fake) as made:
        assert isinstance(await made.read(token), Signed)
    fake.rotate("two", keep=True)
    async with bench(fake) as made:
        assert await made.read(token) == NOT_OURS


def test_keys_that_cannot_be_used_are_left_out() -> None:
    ec_key = private_key("ES256")
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    listed = [
        jwk_of(ec_key, "ES256", "good"),
        jwk_of(ec_key, "ES256", "said", alg="ES256", use="sig"),
        jwk_of(ec_key, "ES256", "encryption", use="enc"),
        jwk_of(ec_key, "ES256", "of another algorithm", alg="ES384"),
        jwk_of(ec_key, "ES256", "private", d="AQAB"),
        jwk_of(ec_key, "ES256", "broken", x="!"),
        jwk_of(ec_key, "ES256", "off the curve", x="AQAB"),
        jwk_of(small, "RS256", "small"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric", "alg": "HS256"},
        {"kty": "EC", "crv": "P-256", "kid": "nothing"},
        {"kty": ["EC"], "kid": {}},
        "no object",
        None,
    ]
    keys = keys_in(json.dumps({"keys": listed}).encode())
    assert [(key.kid, set(key.algorithms)) for key in keys] == [("good", {"ES256"}), ("said", {"ES256"})]


@given(
    st.binary(max_size=100)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
        _json := lambda v: json.dumps({"keys": v}).encode()
    )
)
def test_any_document_is_keys_or_none(document: bytes) -> None:
    try:
        assert keys_in(document) == ()
    except Unfetched:
        return


ENTRY = {"issuer": "i", "jwks_url": "https://x", "audience": "a"}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"issuer": ""}, "issuer must not be empty"),
        ({"jwks_url": "ftp://x"}, "jwks_url must begin with https://"),
        ({"audience": []}, "audience must name one"),
        ({"audience": ""}, "audience must name one"),
        ({"algorithms": ["HS256"]}, "algorithms has HS256; possible are RS256"),
        ({"algorithms": ["none"]}, "algorithms has none"),
        ({"algorithms": []}, "algorithms must name one"),
        ({"account": "Acme!"}, "is no account's id"),
        ({"account": "a", "accounts": ["a"]}, "not both"),
        ({"leeway_s": 301}, "0 to 300 is possible"),
        ({"leeway_s": -1}, "0 to 300 is possible"),
        ({"secret": "x"}, "unknown field `secret`"),
    ],
)
def test_a_wrong_issuer_is_named(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"^TURNLOG_JWT_ISSUERS: ") as raised:
        parse_issuers(json.dumps([ENTRY | entry]))
    assert told in str(raised.value)


def test_issuers_are_a_list_of_different_ones() -> None:
    for text in ("{}", "[", '[{"issuer": "i"}]', json.dumps([ENTRY, ENTRY]), json.dumps([ENTRY] * 17)):
        with pytest.raises(ValueError, match=r"^TURNLOG_JWT_ISSUERS: "):
            parse_issuers(text)
    assert parse_issuers(json.dumps([ENTRY | {"leeway_s": 300, "algorithms": list(ALGORITHMS)}]))
    assert parse_issuers("[]") == ()


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _encoded(value: Any) -> str:
    return _b64(json.dumps(value).encode())


def _unsigned(header: dict[str, Any], body: dict[str, Any]) -> str:
    return f"{_encoded(header)}.{_encoded(body)}."


def _hmac(secret: bytes, header: dict[str, Any], body: dict[str, Any]) -> str:
    import hashlib
    import hmac

    signed = f"{_encoded(header)}.{_encoded(body)}"
    return f"{signed}.{_b64(hmac.digest(secret, signed.encode(), hashlib.sha256))}"
