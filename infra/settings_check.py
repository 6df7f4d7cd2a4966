"""Whether the parts of the local stack would take their settings, before any of them starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from inference_workers.registry import ENGINES
from inference_workers.settings import WorkerSettings
from infra.settings import StackSettings, sentences
from infra.settings_table import SECTIONS
from projections.meters.settings import MetersSettings

SOMEWHERE = {
    "kafka_bootstrap": "127.0.0.1:1",
    "redis_url": "redis://127.0.0.1:1/0",
    "clickhouse_url": "http://127.0.0.1:1",
    "secret": "made with the data folder",
    "api_port": 1,
}
"""What `turnlog up` chooses later, and always well."""


ALIKE = 0.8
"""From how alike on a name is taken for a misspelt setting; others may be anybody's own, as the key of a provider."""
NO_SETTINGS = {"CACHE", "KEY", "URL", "STACK"}
"""Variables of ours that no process reads as a setting."""


def misspelt(variables: Iterable[str]) -> list[str]:
    """One sentence for each variable that is no setting of any process, and nearly is one."""
    known = {name.upper() for _, _, kind in SECTIONS for name in kind.model_fields} | NO_SETTINGS
    found = []
    for variable in sorted(variables):
        name = variable.removeprefix("TURNLOG_")
        if name == variable or name in known or name.startswith("TEST_"):
            continue
        if alike := difflib.get_close_matches(name, known, n=1, cutoff=ALIKE):
            found.append(f"{variable} is no setting and is not read: TURNLOG_{alike[0]} is one.")
    return found


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
    left_out.add(MetersSettings)  # not a part of the stack: it needs a provider
    left_out |= {StackSettings} if settings.planned else {StackSettings, WorkerSettings}
    return [kind for _, _, kind in SECTIONS if kind not in left_out]
