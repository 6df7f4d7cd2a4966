"""`turnlog provision`: topics, tables and functions on the servers named by the environment."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from infra.cli_options import AsJson, settings_from
from infra.settings import ProvisionSettings

Quiet = Annotated[bool, typer.Option("--quiet", hidden=True)]
DemoFolder = Annotated[Path | None, typer.Option("--demo-account", hidden=True)]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(provision)


def provision(as_json: AsJson = False, quiet: Quiet = False, demo_account: DemoFolder = None) -> None:
    """Create or check topics, tables and functions. Idempotent; refuses a change that would re-map keys.

    Needs TURNLOG_KAFKA_BOOTSTRAP, TURNLOG_REDIS_URL and TURNLOG_CLICKHOUSE_URL; TURNLOG_SIZE is
    `local` or `production` (partition counts), TURNLOG_REPLICATION the copies of each partition.
    """
    from infra.provisioning import provision as provision_all

    settings = settings_from(ProvisionSettings, {})
    done = provision_all(settings)
    if demo_account is not None:
        _append_demo(settings, demo_account)
    if quiet:
        return
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    typer.echo(
        f"Topics: {len(done.topics_created)} created, {len(done.topics_changed)} changed, "
        f"{done.topics_kept} as declared."
    )
    typer.echo(f"Tables: {', '.join(done.migrations_applied) or 'as declared'}.")
    typer.echo(f"Functions: {', '.join(done.functions_loaded) or 'as declared'}.")


def _append_demo(settings: ProvisionSettings, data: Path) -> None:
    from infra.accounts import demo_changes
    from infra.data_folder import DataFolder
    from infra.known_accounts import read_accounts
    from infra.log_append import append

    demo = DataFolder(data).demo(int(time.time() * 1000))
    lacking = demo_changes(demo, read_accounts(settings.kafka_bootstrap, settings.namespace))
    if lacking:
        append(settings.kafka_bootstrap, settings.namespace, lacking)
