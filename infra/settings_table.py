"""Writes docs/settings.md from the settings classes: `python -m infra.settings_table docs [--check]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

import msgspec
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from api.issuers import Issuer
from api.settings import ApiSettings
from inference_workers.registry import ENGINES
from inference_workers.settings import WorkerSettings
from infra.settings import ProvisionSettings, StackSettings
from projections.buffer.settings import BufferSettings
from projections.limits.settings import LimitsSettings
from projections.meters.settings import MetersSettings
from projections.views.settings import ViewsSettings
from schemas.described import descriptions, members, summary
from schemas.models import Model, Price
from schemas.prices import PriceEntry
from schemas.tiers import DEFAULT_TIERS, TierRules
from streams.log.process import ProcessSettings
from streams.settings import DemandSettings, DispatchSettings, SettlementSettings, StreamSettings, TurnsSettings

NAME = "settings.md"

HEAD = """# Settings

Written from the code by `python -m infra.settings_table docs`; checked by the tests.

Every setting is an environment variable `TURNLOG_<NAME>`; `make run` and `turnlog` also read a `.env` file in the
current folder, behind the environment. A process checks its settings before it connects anywhere: add `--check` to
its command; that and `turnlog up` also warn of a variable that is nearly a setting and none. Durations, sizes and
counts have their unit in their name.
"""

SECTIONS: tuple[tuple[str, str, type[BaseSettings]], ...] = (
    ("Every process", "", ProcessSettings),
    ("The local stack", "`turnlog up`", StackSettings),
    ("Provisioning", "`turnlog provision`", ProvisionSettings),
    ("api", "`turnlog api`", ApiSettings),
    ("streams", "all of `turnlog streams …`", StreamSettings),
    ("turns", "`turnlog streams turns`", TurnsSettings),
    ("dispatch", "`turnlog streams dispatch`", DispatchSettings),
    ("settlement", "`turnlog streams settlement`", SettlementSettings),
    ("demand", "`turnlog streams demand`", DemandSettings),
    ("worker", "`turnlog worker`", WorkerSettings),
    *(
        (f"engine {name}", f"`TURNLOG_ENGINE={name}`", offer.settings)
        for name, offer in ENGINES.items()
        if offer.settings.model_fields
    ),
    ("buffer", "`turnlog projections buffer`", BufferSettings),
    ("views", "`turnlog projections views`", ViewsSettings),
    ("limits", "`turnlog projections limits`", LimitsSettings),
    ("meters", "`turnlog projections meters`", MetersSettings),
)


MODELS = """## The models

`TURNLOG_MODELS`: a JSON list of objects, the same for every process. Unknown members are refused. By itself it is the
local model, `smollm2-135m-instruct`, in the pool `default`. [operations.md](operations.md#a-model-of-your-own) has
examples.
"""

TIERS = """## The tiers

`TURNLOG_TIERS`: a JSON object, the same for every process, from a tier's name (lower-case letters, digits, `-`, `_`) to
its members. Those of `free` and `paid` that are not given are as in the default:

| tier | priority | requests_per_minute | tokens_per_minute | running_max |
|---|---|---|---|---|
"""

PRICES = """## The prices

`TURNLOG_PRICES`: a JSON list of entries, the same for every process; a model without an entry has its own price. What
counts is when a reply was accepted, so an entry can be given before it comes into force. Give a new one its own
version, and keep the old ones.
"""

ISSUERS = """## The issuers of tokens

`TURNLOG_JWT_ISSUERS`: a JSON list, the same for every API process, of at most 16.
[accounts.md](accounts.md#tokens) says what a token must be like.
"""

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def document() -> str:
    """The page."""
    models = (_members("A model", Model), _members("`price` of a model", Price))
    tiers = TIERS + "".join(
        f"| `{name}` | `{rules.priority}` | {rules.requests_per_minute} | {rules.tokens_per_minute} "
        f"| {rules.running_max} |\n"
        for name, rules in DEFAULT_TIERS.items()
    )
    more = (
        tiers,
        _members("A tier", TierRules),
        PRICES,
        _members("An entry", PriceEntry),
        ISSUERS,
        _members("An issuer", Issuer),
    )
    return "\n".join([HEAD, *(_section(*section) for section in SECTIONS), MODELS, *models, *more])


def _members(title: str, cls: type[msgspec.Struct]) -> str:
    head = f"### {title}\n\n{summary(cls)}\n\n| member | type | default | |\n|---|---|---|---|\n"
    rows = []
    for member in members(cls):
        default = "required" if member.default is None else f"`{member.default}`"
        rows.append(f"| `{member.name}` | {_kind(member.type)} | {default} | {member.description} |\n")
    return head + "".join(rows)


def _kind(written: str) -> str:
    return written.replace(" | ", " or ").replace("Decimal", "number, or text of one")


def _section(title: str, command: str, cls: type[BaseSettings]) -> str:
    lead = f"{command}\n\n" if command else ""
    return f"## {title}\n\n{lead}| variable | default | allowed | |\n|---|---|---|---|\n" + "".join(_rows(cls))


def _rows(cls: type[BaseSettings]) -> Iterator[str]:
    above = {name for base in cls.__mro__[1:] for name in getattr(base, "__annotations__", {})}
    said = descriptions(cls)
    for name, field in cls.model_fields.items():
        if name in above and name not in cls.__annotations__:
            continue
        text = (said.get(name) or field.description or "").replace("|", "\\|")
        yield f"| `TURNLOG_{name.upper()}` | {_default(field)} | {_allowed(field)} | {text} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or default in ("", {}, ()):
        return ""
    if hasattr(default, "get_secret_value"):
        default = default.get_secret_value()
    if isinstance(default, tuple):
        return "the local model"
    if isinstance(default, Mapping):
        return "below"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _allowed(field: FieldInfo) -> str:
    kinds = (field.annotation, *get_args(field.annotation))
    choices = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    bounds = [
        f"{sign} {getattr(one, name):,}" for one in field.metadata for name, sign in _BOUNDS if hasattr(one, name)
    ]
    return ", ".join(bounds)


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.settings_table", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is stale")
    options = parser.parse_args(arguments)
    path: Path = options.folder / NAME
    page = document()
    if path.is_file() and path.read_text(encoding="utf-8") == page:
        return 0
    if options.check:
        print(f"{path}: not what the code says; run python -m infra.settings_table {options.folder}", file=sys.stderr)
        return 1
    path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
