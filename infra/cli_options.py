"""Options that several commands share, and settings made of options and environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from infra.settings import sentences

Data = Annotated[Path | None, typer.Option(help="The data folder. [default: .turnlog]")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]

S = TypeVar("S", bound=BaseSettings)

DAYS_MAX = 3_660
"""So many days are read at once."""
OPTION_NAMES = {"api_port": "--port", "api_processes": "--api"}
"""Options that are not called as their setting."""


def settings_from(kind: type[S], options: Mapping[str, Any]) -> S:
    """Settings from the environment, options first. Leaves with 2 when they are wrong."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return kind(**given)
    except ValidationError as failure:
        leave_with(sentences(failure, {name: OPTION_NAMES.get(name, f"--{name}") for name in given}))


def leave_with(wrong: Sequence[str]) -> NoReturn:
    """Say each sentence about the settings and leave with 2."""
    for sentence in wrong:
        typer.echo(f"Error: {sentence}", err=True)
    sys.exit(2)
