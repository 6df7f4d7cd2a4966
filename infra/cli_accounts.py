"""`turnlog accounts`: accounts, in the log itself."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from infra import cli_keys
from infra.accounts_log import AccountId, account_id_of, accounts_log, now_ms, show, show_all, time_of
from infra.cli_options import AsJson, Data, settings_from
from infra.errors import StackError
from infra.known_accounts import refuse_existing, the_account, the_open_account
from schemas.account import Account, effective, with_own
from schemas.tiers import LIFTABLE, REQUESTS_PER_MINUTE_MAX, TOKENS_MAX, Tiers, rules_of, slow_refill
from schemas.values import PRIORITIES, Priority, Tier

accounts = typer.Typer(no_args_is_help=True, help="Accounts.")

Name = Annotated[str, typer.Argument(help="Lower-case letters, digits, - and _; it becomes the account's id.")]
TierName = Annotated[str, typer.Option(help="free, paid, or another of TURNLOG_TIERS.")]
Organisation = Annotated[str | None, typer.Option(help="Whose limits it shares with its other accounts.")]
Requests = Annotated[int | None, typer.Option(min=1, max=REQUESTS_PER_MINUTE_MAX)]
Count = Annotated[int | None, typer.Option(min=1, max=TOKENS_MAX)]
Money = Annotated[str | None, typer.Option(help="Of a calendar month (UTC), such as 100.50.")]
Queue = Annotated[str | None, typer.Option(help="paid or free: which of the workers' queues its requests wait in.")]
Lift = Annotated[
    str | None, typer.Option(help=f"Its tier's that do not hold for it, with commas between: {', '.join(LIFTABLE)}.")
]
Models = Annotated[str | None, typer.Option(help="The only ones that it may ask for, with commas between.")]

PLACES_MAX = 12
"""Of an amount of money, behind the point."""
LIMITS = (
    "requests_per_minute",
    "tokens_per_minute",
    "burst_tokens",
    "output_tokens_max",
    "running_max",
    "models",
    "spend_soft",
    "spend_hard",
    "priority",
)


def add_to(app: typer.Typer) -> None:
    """Register the commands, those for users and keys too."""
    app.add_typer(accounts, name="accounts")
    cli_keys.add_to(app)


@accounts.command("create")
def create(
    name: Name,
    tier: TierName = "free",
    organisation: Organisation = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Open an account with one key, which is shown this once."""
    from infra.accounts import issue_key, open_account
    from schemas.ids import key_id, new_key

    account_id, chosen = account_id_of(name), tier_of(tier)
    organisation_id = None if organisation is None else account_id_of(organisation)
    log = accounts_log(data)
    refuse_existing(log.known(), account_id)
    key, now = new_key(), now_ms()
    log.append([open_account(account_id, name, chosen, now, organisation_id), issue_key(account_id, key, now)])
    made = {"account_id": account_id, "tier": chosen, "key_id": key_id(key), "api_key": key}
    show(made | ({} if organisation_id is None else {"organisation_id": organisation_id}), as_json=as_json)


@accounts.command("list")
def list_all(data: Data = None, as_json: AsJson = False) -> None:
    """All accounts, closed ones too."""
    rows = [
        {
            "account_id": account.id,
            "name": account.name,
            "tier": account.tier,
            "organisation_id": account.organisation_id,
            "opened_at": time_of(account.opened_at_ms),
            "closed_at": time_of(account.closed_at_ms),
        }
        for account in accounts_log(data).known().accounts()
    ]
    show_all("accounts", rows, as_json=as_json)


@accounts.command("show")
def show_one(account: AccountId, data: Data = None, as_json: AsJson = False) -> None:
    """An account, with the limits that hold for it."""
    known = accounts_log(data).known()
    _show_account(the_account(known, account_id_of(account)), as_json=as_json)


@accounts.command("tier")
def change_tier(
    account: AccountId,
    tier: Annotated[str, typer.Argument(help="free, paid, or another of TURNLOG_TIERS.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Change an account's tier; holds for all that it sends from now on."""
    from schemas.events import TierChanged

    account_id, chosen = account_id_of(account), tier_of(tier)
    log = accounts_log(data)
    if the_open_account(log.known(), account_id).tier != chosen:
        log.append([TierChanged(account_id=account_id, tier=chosen, changed_at_ms=now_ms())])
    show({"account_id": account_id, "tier": chosen}, as_json=as_json)


@accounts.command("limits")
def change_limits(
    account: AccountId,
    *,
    requests_per_minute: Requests = None,
    tokens_per_minute: Count = None,
    burst_tokens: Count = None,
    output_tokens_max: Count = None,
    running_max: Count = None,
    models: Models = None,
    spend_soft: Money = None,
    spend_hard: Money = None,
    priority: Queue = None,
    lift: Lift = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget its own limits first.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Give an account limits of its own, before its tier's, or lift its tier's; those not named stay as they are."""
    from schemas.events import LimitsChanged

    account_id = account_id_of(account)
    given: dict[str, Any] = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "burst_tokens": burst_tokens,
        "output_tokens_max": output_tokens_max,
        "running_max": running_max,
        "models": None if models is None else _models_of(models),
        "spend_soft": None if spend_soft is None else _money_of("--spend-soft", spend_soft),
        "spend_hard": None if spend_hard is None else _money_of("--spend-hard", spend_hard),
        "priority": None if priority is None else _priority_of(priority),
    }
    lifting = () if lift is None else _liftable(lift)
    given = {name: value for name, value in given.items() if value is not None}
    if both := sorted(set(lifting) & set(given)):
        raise typer.BadParameter(f"{', '.join(both)}: lifted and given.")
    if not given and not lifting and not reset:
        raise typer.BadParameter("name a limit, or --reset.")
    log = accounts_log(data)
    found = the_open_account(log.known(), account_id)
    before = None if reset else found.limits
    kept = {} if before is None else {name: getattr(before, name) for name in LIMITS if name not in lifting}
    free = {*lifting, *(() if before is None else before.lifted)} - set(given)
    lifted = tuple(name for name in LIFTABLE if name in free)
    changed = LimitsChanged(account_id=account_id, changed_at_ms=now_ms(), lifted=lifted, **(kept | given))
    if changed.spend_soft and changed.spend_hard and Decimal(changed.spend_soft) > Decimal(changed.spend_hard):
        raise StackError(f"--spend-soft ({changed.spend_soft}) must not be above --spend-hard ({changed.spend_hard}).")
    if wrong := slow_refill(with_own(rules_of(tiers(), found.tier), changed)):
        raise StackError(wrong)
    log.append([changed])
    own = {name: getattr(changed, name) for name in LIMITS}
    show({"account_id": account_id, **own, "lifted": list(lifted)}, as_json=as_json)


@accounts.command("rename")
def rename(account: AccountId, name: str, data: Data = None, as_json: AsJson = False) -> None:
    """Call an account by another name; its id stays."""
    from schemas.events import AccountRenamed

    account_id = account_id_of(account)
    if not 1 <= len(name) <= 200:
        raise typer.BadParameter("a name has 1 to 200 characters.")
    log = accounts_log(data)
    if the_open_account(log.known(), account_id).name != name:
        log.append([AccountRenamed(account_id=account_id, name=name, renamed_at_ms=now_ms())])
    show({"account_id": account_id, "name": name}, as_json=as_json)


@accounts.command("close")
def close(account: AccountId, data: Data = None, as_json: AsJson = False) -> None:
    """Nothing opens the account any more, for good. What it used and owes stays; replies that run end as they do."""
    from schemas.events import AccountClosed

    account_id = account_id_of(account)
    log = accounts_log(data)
    closed_at_ms = the_account(log.known(), account_id).closed_at_ms
    if closed_at_ms is None:
        closed_at_ms = now_ms()
        log.append([AccountClosed(account_id=account_id, closed_at_ms=closed_at_ms)])
    show({"account_id": account_id, "closed_at": time_of(closed_at_ms)}, as_json=as_json)


def tiers() -> Tiers:
    """The tiers of this environment. Leaves with 2."""
    import os

    from schemas.tiers import DEFAULT_TIERS, parse_tiers

    try:
        return parse_tiers(text) if (text := os.environ.get("TURNLOG_TIERS")) else DEFAULT_TIERS
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def tier_of(name: str, also: Iterable[Tier] = ()) -> Tier:
    """One of the tiers, or of those that are known besides. Leaves with 2."""
    if name not in (known := {*tiers(), *also}):
        raise typer.BadParameter(f"{name!r} is no tier: {', '.join(sorted(known))} (TURNLOG_TIERS has them).")
    return name


def _models_of(text: str) -> tuple[str, ...]:
    """Models out of a list with commas, all of which this environment serves. Leaves with 2."""
    from infra.price_settings import PriceSettings

    models = tuple(name.strip() for name in text.split(",") if name.strip())
    if not models:
        raise typer.BadParameter("--models names none.")
    served = sorted(model.name for model in settings_from(PriceSettings, {}).models)
    if unserved := sorted(set(models) - set(served)):
        raise typer.BadParameter(f"{', '.join(unserved)}: no such model. TURNLOG_MODELS has {', '.join(served)}.")
    return models


def _money_of(option: str, text: str) -> str:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    fits = amount.is_finite() and not amount.is_signed() and amount < Decimal(10) ** 15
    if not fits or round(amount, PLACES_MAX) != amount:
        raise typer.BadParameter(f"{option} is {text!r}: not an amount of money, such as 100.50.")
    return f"{amount:f}"


def _priority_of(text: str) -> Priority:
    for priority in PRIORITIES:
        if priority == text:
            return priority
    raise typer.BadParameter(f"--priority is {text!r}: one of {', '.join(PRIORITIES)}.")


def _liftable(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().replace("-", "_") for name in text.split(",") if name.strip())
    if unknown := sorted(set(names) - set(LIFTABLE)):
        raise typer.BadParameter(f"{', '.join(unknown)}: cannot be lifted; {', '.join(LIFTABLE)} can.")
    if not names:
        raise typer.BadParameter("--lift names none.")
    return names


def _show_account(account: Account, *, as_json: bool) -> None:
    rules = effective(account, rules_of(tiers(), account.tier))
    own = [] if account.limits is None else [name for name in LIMITS if getattr(account.limits, name) is not None]
    limits = {name: getattr(rules, name) for name in LIMITS}
    shown = {name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in limits.items()}
    show(
        {
            "account_id": account.id,
            "name": account.name,
            "tier": account.tier,
            "organisation_id": account.organisation_id,
            "unknown_users": account.unknown_users,
            "opened_at": time_of(account.opened_at_ms),
            "closed_at": time_of(account.closed_at_ms),
            "own_limits": own,
            "lifted_limits": [] if account.limits is None else list(account.limits.lifted),
            **shown,
        },
        as_json=as_json,
    )
