"""`turnlog accounts`, `users` and `keys` on a real broker, one after another as an operator types them."""

import json
import os
from typing import Any

import pytest
from deployment import Deployment
from typer.testing import CliRunner

from infra.cli import app
from infra.known_accounts import read_accounts
from schemas.ids import key_hash, key_id
from schemas.models import DEFAULT_MODELS
from streams.log.kafka.log import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Partition

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]


class Operator:
    """Types commands."""

    def __init__(self, deployment: Deployment) -> None:
        self._env = deployment.environment()

    def json(self, *arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, [*arguments, "--json"], env=self._env, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))

    def text(self, *arguments: str) -> str:
        done = CliRunner().invoke(app, arguments, env=self._env, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def refused(self, *arguments: str) -> str:
        done = CliRunner().invoke(app, arguments, env=self._env)
        assert done.exit_code == 1
        return str(done.exception)


@pytest.fixture
def operator(provisioned: Deployment, monkeypatch: pytest.MonkeyPatch) -> Operator:
    for name in [name for name in os.environ if name.startswith("TURNLOG_")]:
        monkeypatch.delenv(name)
    return Operator(provisioned)


def test_an_account_from_its_opening_to_its_end(operator: Operator, provisioned: Deployment) -> None:
    made = operator.json("accounts", "create", "acme", "--tier", "free", "--organisation", "group")
    assert made["api_key"].startswith("tlk_")
    assert (made["key_id"], made["organisation_id"]) == (key_id(made["api_key"]), "group")
    assert 'The account "acme" exists' in operator.refused("accounts", "create", "acme")
    assert operator.json("accounts", "tier", "acme", "paid") == {"account_id": "acme", "tier": "paid"}
    model = DEFAULT_MODELS[0].name
    limits = operator.json(
        "accounts", "limits", "acme", "--tokens-per-minute", "500", "--models", f" {model},", "--spend-hard", "1e2"
    )
    assert (limits["tokens_per_minute"], limits["models"], limits["spend_hard"]) == (500, [model], "100")
    assert operator.json("accounts", "limits", "acme", "--running-max", "3")["tokens_per_minute"] == 500
    slow = ("--burst-tokens", "1000000", "--tokens-per-minute", "1")
    assert "takes more than a day to come back" in operator.refused("accounts", "limits", "acme", *slow)
    assert "must not be above" in operator.refused("accounts", "limits", "acme", "--spend-soft", "101")
    operator.json("accounts", "rename", "acme", "Acme Ltd")
    shown = operator.json("accounts", "show", "acme")
    assert (shown["name"], shown["tier"], shown["running_max"], shown["requests_per_minute"]) == (
        "Acme Ltd",
        "paid",
        3,
        60_000,
    )
    assert shown["own_limits"] == ["tokens_per_minute", "running_max", "models", "spend_hard"]
    lifted = operator.json("accounts", "limits", "acme", "--lift", "spend-hard,models", "--priority", "free")
    assert (lifted["spend_hard"], lifted["models"], lifted["tokens_per_minute"]) == (None, None, 500)
    assert (lifted["priority"], lifted["lifted"]) == ("free", ["models", "spend_hard"])
    assert operator.json("accounts", "limits", "acme", "--spend-hard", "9")["lifted"] == ["models"], "given again"
    shown = operator.json("accounts", "show", "acme")
    assert (shown["priority"], shown["lifted_limits"], shown["spend_hard"]) == ("free", ["models"], "9")
    assert operator.json("accounts", "limits", "acme", "--reset")["tokens_per_minute"] is None
    assert operator.json("accounts", "show", "acme")["priority"] == "paid"

    operator.json("users", "add", "acme", "auth0|7", "--name", "Ada")
    assert 'has no user "grace"' in operator.refused("keys", "create", "acme", "--user", "grace")
    hers = operator.json("keys", "create", "acme", "--name", "laptop", "--user", "auth0|7", "--expires", "90d")
    assert 'a live key called "laptop"' in operator.refused("keys", "create", "acme", "--name", "laptop")
    listed = operator.json("keys", "list", "acme")["keys"]
    assert [(key["key_id"], key["state"], key["name"]) for key in listed] == [
        (made["key_id"], "live", None),
        (hers["key_id"], "live", "laptop"),
    ]
    assert listed[1]["expires_at"] == hers["expires_at"]
    assert [user["user_id"] for user in operator.json("users", "list", "acme")["users"]] == ["auth0|7"]
    assert operator.json("users", "remove", "acme", "auth0|7")["keys_revoked"] == [hers["key_id"]]
    assert operator.json("users", "unknown", "acme", "admit")["unknown_users"] == "admit"
    operator.json("keys", "revoke", "acme", made["key_id"])
    operator.json("keys", "revoke", "acme", made["key_id"])
    gone = operator.json("keys", "list", "acme")["keys"]
    assert {key["state"] for key in gone} == {"revoked"}
    assert hers["key_id"] in {key["key_id"] for key in gone if key["user_id"] == "auth0|7"}

    closed_at = operator.json("accounts", "close", "acme")["closed_at"]
    assert operator.json("accounts", "close", "acme")["closed_at"] == closed_at
    for refused in (["keys", "create", "acme"], ["users", "add", "acme", "x"], ["accounts", "tier", "acme", "free"]):
        assert 'The account "acme" is closed' in operator.refused(*refused)
    (listed_account,) = operator.json("accounts", "list")["accounts"]
    assert listed_account["closed_at"] == closed_at
    accounts = read_accounts(provisioned.kafka_bootstrap, provisioned.namespace)
    assert accounts.opened_by(key_hash(made["api_key"]), 1) is None
    records = every_record(provisioned)
    assert made["key_id"].encode() in records
    for key in (made["api_key"], hers["api_key"]):
        assert key.encode() not in records


def test_tables_are_for_people(operator: Operator) -> None:
    assert operator.text("accounts", "list") == "No accounts.\n"
    operator.json("accounts", "create", "acme")
    head, row = operator.text("accounts", "list").splitlines()
    assert head.split()[:3] == ["account_id", "name", "tier"]
    assert row.split()[:3] == ["acme", "acme", "free"]
    assert operator.text("users", "list", "acme") == "No users.\n"
    assert operator.text("keys", "list", "acme").splitlines()[1].split()[1] == "live"
    assert "tokens_per_minute    40000" in operator.text("accounts", "show", "acme")
    assert 'There is no account "nobody"' in operator.refused("accounts", "show", "nobody")


def every_record(deployment: Deployment) -> bytes:
    log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "tests")
    reader = log.reader([Partition("accounts", number) for number in range(log.partitions("accounts"))], BEGINNING)
    found: list[bytes] = []
    ends = reader.ends()
    while any(reader.positions()[partition] < end for partition, end in ends.items()):
        found += [record.value or b"" for record in reader.poll(0.2)]
    reader.close()
    log.close()
    return b"\n".join(found)
