"""The settings of the operator's key and of the issuers of tokens, as a process takes them."""

import json

import pytest
from pydantic import ValidationError

from api.settings import OPERATOR_KEY_CHARS_MIN, ApiSettings
from streams.log.process import explain

SECRET = "a secret of the tests"
ISSUER = {"issuer": "https://id.example.com", "jwks_url": "https://id.example.com/jwks", "audience": "turnlog"}


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> ApiSettings:
    monkeypatch.setenv("TURNLOG_SECRET", SECRET)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return ApiSettings()


def test_absent_or_empty_there_are_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    for empty in ({}, {"TURNLOG_OPERATOR_KEY": "", "TURNLOG_JWT_ISSUERS": ""}, {"TURNLOG_JWT_ISSUERS": "[]"}):
        made = settings(monkeypatch, **empty)
        assert (made.operator_key, made.jwt_issuers) == (None, ())


def test_both_are_taken_and_the_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "k" * OPERATOR_KEY_CHARS_MIN
    made = settings(monkeypatch, TURNLOG_OPERATOR_KEY=key, TURNLOG_JWT_ISSUERS=json.dumps([ISSUER]))
    assert made.operator_key is not None
    assert made.operator_key.get_secret_value() == key
    assert key not in repr(made)
    assert [issuer.audiences for issuer in made.jwt_issuers] == [("turnlog",)]


@pytest.mark.parametrize("key", ["k" * (OPERATOR_KEY_CHARS_MIN - 1), "k" * 20 + " ", "k" * 20 + "é", "k\n" * 20])
def test_a_key_that_cannot_be_sent_or_is_short_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        settings(monkeypatch, TURNLOG_OPERATOR_KEY=key)
    told = explain(raised.value)
    assert told.startswith("TURNLOG_OPERATOR_KEY: must have 16 characters or more")
    assert key not in told


def test_a_wrong_issuer_is_named_with_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError) as raised:
        settings(monkeypatch, TURNLOG_JWT_ISSUERS=json.dumps([ISSUER | {"algorithms": ["HS256"]}]))
    assert explain(raised.value).startswith(
        "TURNLOG_JWT_ISSUERS: 'https://id.example.com': algorithms has HS256; possible are RS256"
    )
