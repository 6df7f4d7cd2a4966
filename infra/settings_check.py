"""Whether the parts of the local stack would take their settings, before any of them starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from inference_workers.registry import ENGINES
from inference_workers.settings import WorkerSettings
from infra.settings import StackSettings, sentences
from infra.settings_table import SECTIONS

SOMEWHERE = {
    "kafka_bootstrap": "127.0.0.1:1",
    "redis_url": "redis://127.0.0.1:1/0",
    "clickhouse_url": "http://127.0.0.1:1",
    "secret": "made with the data folder",
    "api_port": 1,
}
"""What `turnlog up` chooses later, and always well."""


def wrong_settings(settings: StackSettings) -> list[str]:
    """One sentence for each setting that a part would refuse, in the environment of this process."""
    given = told(settings)
    found: list[str] = []
    unreadable: list[str] = []
    for kind, own in _told_apart(settings):
        try:
            kind(**given, **own)
        except ValidationError as failure:
            found += sentences(failure)
        except SettingsError as failure:
            unreadable.append(f"{kind.__name__}: {failure}.")
    return list(dict.fromkeys(found or unreadable))


def told(settings: StackSettings) -> dict[str, Any]:
    """What the stack tells its parts, over their environment."""
    chosen = {"namespace": settings.namespace, "engine": settings.engine, "api_host": settings.api_host, "replica": 0}
    return {**SOMEWHERE, **chosen, "status_file": None}


def _told_apart(settings: StackSettings) -> Iterator[tuple[type[BaseSettings], dict[str, Any]]]:
    """Each kind, with what the stack tells some parts of it and not others: each worker its pool and its model."""
    places = dict.fromkeys((worker.pool, worker.model) for worker in settings.planned)
    for kind in kinds(settings):
        if kind is not WorkerSettings:
            yield kind, {}
            continue
        for pool, model in places:
            yield kind, {"pool": pool, "model": model} if pool and model else {}


def kinds(settings: StackSettings) -> list[type[BaseSettings]]:
    """The settings classes of the processes that would run."""
    chosen = ENGINES[settings.engine].settings if settings.planned else None
    left_out: set[type[BaseSettings]] = {offer.settings for offer in ENGINES.values() if offer.settings is not chosen}
    left_out |= {StackSettings} if settings.planned else {StackSettings, WorkerSettings}
    return [kind for _, _, kind in SECTIONS if kind not in left_out]
