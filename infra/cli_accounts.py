"""`turnlog accounts` and `turnlog keys`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from infra.cli_options import AsJson, Data, settings_from
from infra.errors import StackError
from infra.known_accounts import KnownAccounts, read_accounts
from infra.settings import StackSettings
from schemas.events import Event
from schemas.values import Tier

ACCOUNT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

accounts = typer.Typer(no_args_is_help=True, help="Accounts.")
keys = typer.Typer(no_args_is_help=True, help="API keys.")

Name = Annotated[str, typer.Argument(help="Lower-case letters, digits, - and _; it becomes the account's id.")]
TierName = Annotated[str, typer.Option(help="free or paid.")]
AccountId = Annotated[str, typer.Argument(help="The account's id.")]
KeyId = Annotated[str, typer.Argument(help="The key's id (key_…), as `keys create` printed it.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(accounts, name="accounts")
    app.add_typer(keys, name="keys")


@accounts.command("create")
def create_account(name: Name, tier: TierName = "free", data: Data = None, as_json: AsJson = False) -> None:
    """Open an account with one key, which is shown this once."""
    from infra.accounts import issue_key, open_account
    from infra.data_folder import key_id, new_key

    account_id, chosen = _account_id(name), _tier(tier)
    broker = _broker(data)
    broker.known().refuse_existing(account_id)
    key, now_ms = new_key(), _now_ms()
    broker.append([open_account(account_id, name, chosen, now_ms), issue_key(account_id, key, now_ms)])
    _show({"account_id": account_id, "tier": chosen, "key_id": key_id(key), "api_key": key}, as_json=as_json)


@keys.command("create")
def create_key(account: AccountId, data: Data = None, as_json: AsJson = False) -> None:
    """Issue another key of an account; it is shown this once."""
    from infra.accounts import issue_key
    from infra.data_folder import key_id, new_key

    account_id, key = _account_id(account), new_key()
    broker = _broker(data)
    broker.known().refuse_unknown(account_id)
    broker.append([issue_key(account_id, key, _now_ms())])
    _show({"account_id": account_id, "key_id": key_id(key), "api_key": key}, as_json=as_json)


@keys.command("revoke")
def revoke(account: AccountId, key: KeyId, data: Data = None, as_json: AsJson = False) -> None:
    """A key opens nothing any more, within a second or two on every API process."""
    from infra.accounts import revoke_key

    account_id = _account_id(account)
    broker = _broker(data)
    broker.known().refuse_unknown_key(account_id, key)
    broker.append([revoke_key(account_id, key, _now_ms())])
    _show({"account_id": account_id, "key_id": key, "revoked": True}, as_json=as_json)


@dataclass(frozen=True)
class _Broker:
    """Where the accounts are."""

    bootstrap: str
    namespace: str

    def known(self) -> KnownAccounts:
        """The accounts now."""
        return read_accounts(self.bootstrap, self.namespace)

    def append(self, events: Sequence[Event]) -> None:
        """Add to them; durable when it returns."""
        from infra.log_append import append

        append(self.bootstrap, self.namespace, events)


def _broker(data: Path | None) -> _Broker:
    """The broker named by the environment, else the one of the stack that runs on the data folder."""
    from infra.data_folder import DataFolder
    from infra.stack import read_snapshot

    settings = settings_from(StackSettings, {"data": data})
    bootstrap = settings.kafka_bootstrap
    if bootstrap is None:
        folder = DataFolder(settings.data.absolute())
        snapshot = read_snapshot(folder.snapshot)
        parts = snapshot["parts"] if snapshot else []
        bootstrap = next((part["address"] for part in parts if part["name"] == "kafka"), None)
        if bootstrap is None:
            raise StackError(
                f"No stack runs on {folder.path}: start `turnlog up`, name another folder with --data, or set "
                "TURNLOG_KAFKA_BOOTSTRAP."
            )
    return _Broker(bootstrap, settings.namespace)


def _account_id(name: str) -> str:
    if not ACCOUNT_ID.fullmatch(name):
        raise typer.BadParameter(f"{name!r} is no account name: lower-case letters, digits, - and _, at most 64.")
    return name


def _tier(name: str) -> Tier:
    if name == "free":
        return "free"
    if name == "paid":
        return "paid"
    raise typer.BadParameter(f"{name!r} is no tier: free or paid.")


def _show(made: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(made))
    else:
        for name, value in made.items():
            typer.echo(f"{name:<12}{value}")


def _now_ms() -> int:
    return int(time.time() * 1000)
