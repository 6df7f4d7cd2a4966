"""The command line `turnlog`. Exit codes: 0 done, 1 failed, 2 bad usage."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import typer

from infra import (
    cli_accounts,
    cli_bench,
    cli_chat,
    cli_invoices,
    cli_price,
    cli_processes,
    cli_provision,
    cli_rebuild,
    cli_report,
    cli_stack,
    cli_usage,
)
from infra.errors import StackError
from infra.settings import load_env_file

app = typer.Typer(
    name="turnlog",
    help="An event-sourced LLM chat service: the local stack, one process at a time, and a chat.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for module in (
    cli_stack,
    cli_chat,
    cli_provision,
    cli_accounts,
    cli_usage,
    cli_rebuild,
    cli_report,
    cli_invoices,
    cli_price,
    cli_processes,
    cli_bench,
):
    module.add_to(app)


def main() -> None:
    """Run a command; a failure is one sentence on stderr."""
    load_env_file()
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    try:
        app()
    except StackError as failure:
        fail(str(failure))
    except BrokenPipeError:
        # The reader of our output went away (`turnlog status | head`): nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def fail(sentence: str) -> Any:
    """Say what is wrong and leave with 1."""
    typer.echo(f"Error: {sentence}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
