"""Options that several commands share, and settings made of options and environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings

Data = Annotated[Path | None, typer.Option(help="The data folder. [default: .turnlog]")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]

S = TypeVar("S", bound=BaseSettings)


def settings_from(kind: type[S], options: Mapping[str, Any]) -> S:
    """Settings from the environment, options first. Leaves with 2 when they are wrong."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return kind(**given)
    except ValidationError as failure:
        for sentence in sentences(failure):
            typer.echo(f"Error: {sentence}", err=True)
        sys.exit(2)


def sentences(failure: ValidationError) -> list[str]:
    """One sentence for each setting that is wrong or missing."""
    said = []
    for error in failure.errors():
        setting = f"TURNLOG_{'_'.join(str(part) for part in error['loc']).upper()}"
        if error["type"] == "missing":
            said.append(f"{setting} is not set.")
        else:
            said.append(f"{setting} is {error['input']!r}: {error['msg']}.")
    return said
