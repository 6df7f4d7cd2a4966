"""`turnlog users` and `turnlog keys`: who may use an account, and with what."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.accounts_log import AccountId, account_id_of, accounts_log, expiry_of, now_ms, show, show_all, time_of
from infra.cli_options import AsJson, Data
from infra.errors import StackError
from infra.known_accounts import the_account, the_key, the_open_account
from schemas.account import Accounts, key_state, revocation
from schemas.events import Event, KeyIssued, KeyRevoked

users = typer.Typer(no_args_is_help=True, help="Users of an account.")
keys = typer.Typer(no_args_is_help=True, help="API keys.")

UserId = Annotated[str, typer.Argument(help="The user's id; of one with tokens (JWT) their `sub`.")]
KeyId = Annotated[str, typer.Argument(help="The key's id (key_…), as `keys create` printed it.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(users, name="users")
    app.add_typer(keys, name="keys")


@users.command("add")
def add_user(
    account: AccountId,
    user: UserId,
    name: Annotated[str, typer.Option(help="What the user is called.")] = "",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Add a user: keys can belong to it, and its tokens (JWT) open the account."""
    from schemas.events import UserAdded

    account_id, user_id = account_id_of(account), _user_id(user)
    log = accounts_log(data)
    known = log.known()
    the_open_account(known, account_id)
    before = known.user(account_id, user_id)
    if before is None or before.name != name:
        added_at_ms = now_ms() if before is None else before.added_at_ms
        log.append([UserAdded(account_id=account_id, user_id=user_id, name=name, added_at_ms=added_at_ms)])
    show({"account_id": account_id, "user_id": user_id, "name": name}, as_json=as_json)


@users.command("list")
def list_users(account: AccountId, data: Data = None, as_json: AsJson = False) -> None:
    """An account's users."""
    account_id = account_id_of(account)
    known = accounts_log(data).known()
    the_account(known, account_id)
    rows = [
        {"user_id": user.user_id, "name": user.name, "added_at": time_of(user.added_at_ms)}
        for user in known.users(account_id)
    ]
    show_all("users", rows, as_json=as_json)


@users.command("remove")
def remove_user(account: AccountId, user: UserId, data: Data = None, as_json: AsJson = False) -> None:
    """Remove a user: its keys are revoked, and its tokens open nothing any more."""
    from schemas.events import UserRemoved

    account_id, user_id = account_id_of(account), _user_id(user)
    log = accounts_log(data)
    known = log.known()
    unknown = the_account(known, account_id).unknown_users == "refuse" and known.user(account_id, user_id) is None
    if unknown and not known.is_removed(account_id, user_id):
        raise StackError(
            f'The account "{account_id}" has no user "{user_id}"; "turnlog users list {account_id}" lists them.'
        )
    revoked = _live_keys_of(known, account_id, user_id)
    if not known.is_removed(account_id, user_id):
        now = now_ms()
        events: list[Event] = [revocation(key, now) for key in revoked]
        log.append([*events, UserRemoved(account_id=account_id, user_id=user_id, removed_at_ms=now)])
    gone = [key.key_id for key in revoked]
    made = {"account_id": account_id, "user_id": user_id, "removed": True, "keys_revoked": gone}
    show(made, as_json=as_json)


@users.command("unknown")
def unknown_users(
    account: AccountId,
    what: Annotated[str, typer.Argument(metavar="admit|refuse")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Whether tokens (JWT) of users that were never added open the account."""
    from schemas.events import UnknownUsersChosen

    account_id = account_id_of(account)
    if what not in ("admit", "refuse"):
        raise typer.BadParameter(f"{what!r}: admit or refuse.")
    log = accounts_log(data)
    if the_open_account(log.known(), account_id).unknown_users != what:
        chosen: UnknownUsersChosen = UnknownUsersChosen(
            account_id=account_id, unknown_users="admit" if what == "admit" else "refuse", chosen_at_ms=now_ms()
        )
        log.append([chosen])
    show({"account_id": account_id, "unknown_users": what}, as_json=as_json)


@keys.command("create")
def create_key(
    account: AccountId,
    name: Annotated[str, typer.Option(help="What you call it.")] = "",
    user: Annotated[str | None, typer.Option(help="The user that it belongs to; it ends with it.")] = None,
    expires: Annotated[str | None, typer.Option(help="A day, a time, or a span from now: 90d, 12h.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Issue another key of an account; it is shown this once."""
    from infra.accounts import issue_key
    from schemas.ids import key_id, new_key

    account_id, key, now = account_id_of(account), new_key(), now_ms()
    expires_at_ms = None if expires is None else expiry_of(expires, now)
    log = accounts_log(data)
    known = log.known()
    the_open_account(known, account_id)
    if user is not None and known.user(account_id, user) is None:
        raise StackError(
            f'The account "{account_id}" has no user "{user}"; add it with "turnlog users add {account_id} {user}".'
        )
    if name and (same := known.live_key(account_id, name, now)) is not None:
        raise StackError(
            f'The account "{account_id}" has a live key called "{name}" ({same.key_id}): revoke it, or take another '
            "name."
        )
    log.append([issue_key(account_id, key, now, name=name, user_id=user, expires_at_ms=expires_at_ms)])
    made = {"account_id": account_id, "key_id": key_id(key), "api_key": key}
    more = {"name": name or None, "user_id": user, "expires_at": time_of(expires_at_ms)}
    show(made | {name: value for name, value in more.items() if value is not None}, as_json=as_json)


@keys.command("list")
def list_keys(account: AccountId, data: Data = None, as_json: AsJson = False) -> None:
    """An account's keys, revoked ones too. (`GET /v1/admin/accounts/{id}/keys` says when each was last used.)"""
    account_id = account_id_of(account)
    known = accounts_log(data).known()
    the_account(known, account_id)
    show_all("keys", [_row(key, now_ms()) for key in known.keys(account_id)], as_json=as_json)


@keys.command("revoke")
def revoke(account: AccountId, key: KeyId, data: Data = None, as_json: AsJson = False) -> None:
    """A key opens nothing any more, within a second on every API process."""
    account_id = account_id_of(account)
    log = accounts_log(data)
    known = the_key(log.known(), account_id, key)
    if isinstance(known, KeyIssued):
        log.append([revocation(known, now_ms())])
    show({"account_id": account_id, "key_id": key, "revoked": True}, as_json=as_json)


def _row(key: KeyIssued | KeyRevoked, now: int) -> dict[str, str | None]:
    return {
        "key_id": key.key_id,
        "state": key_state(key, now),
        "name": key.name or None,
        "prefix": key.prefix or None,
        "user_id": key.user_id,
        "issued_at": time_of(key.issued_at_ms),
        "expires_at": time_of(key.expires_at_ms),
        "revoked_at": time_of(key.revoked_at_ms if isinstance(key, KeyRevoked) else None),
    }


def _live_keys_of(known: Accounts, account_id: str, user_id: str) -> list[KeyIssued]:
    return [key for key in known.keys(account_id) if isinstance(key, KeyIssued) and key.user_id == user_id]


def _user_id(text: str) -> str:
    from schemas.ids import USER_ID_CHARS_MAX, is_user_id

    if not is_user_id(text):
        raise typer.BadParameter(f"a user's id has 1 to {USER_ID_CHARS_MAX} printable characters.")
    return text
