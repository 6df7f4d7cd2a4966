"""Settings of the local stack and the command line, from TURNLOG_… variables and a `.env` file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from infra.worker_plan import PlannedWorker, planned_workers
from schemas.models import DEFAULT_MODELS, Model, parse_models
from streams.log.process import database_of, reason_of, stands_alone, variable

Engine = Literal["llama_cpp", "scripted", "simulated", "openai_compatible", "tensorrt_llm"]
UNSHOWN = {"secret", "operator_key", "redis_url", "clickhouse_url", "openai_base_url", "openai_key", "openai_providers"}
"""Settings whose value may hold a password."""
VALUE_CHARS_MAX = 80


def load_env_file(path: Path = Path(".env")) -> None:
    """Put the variables of a `.env` file into the environment, where they are not set already.

    Done once by the command line, so that every process that it starts sees the same settings.
    """
    if not path.is_file():
        return
    from dotenv import dotenv_values

    for name, value in dotenv_values(path).items():
        if value is not None:
            os.environ.setdefault(name, value)


class StackSettings(BaseSettings):
    """What `turnlog up` starts, and where. Ports of 0 mean: any free one, the same as last time if it can be."""

    model_config = SettingsConfigDict(env_prefix="TURNLOG_", frozen=True, extra="ignore")

    data: Path = Path(".turnlog")
    namespace: str = Field(default="turnlog", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")

    kafka_bootstrap: str | None = None
    redis_url: str | None = None
    clickhouse_url: str | None = None

    kafka_port: int = Field(default=0, ge=0, le=65535)
    redis_port: int = Field(default=0, ge=0, le=65535)
    clickhouse_port: int = Field(default=0, ge=0, le=65535)
    clickhouse_native_port: int = Field(default=0, ge=0, le=65535)

    kafka_heap_mb: int = Field(default=320, ge=128, le=65536)
    redis_memory_mb: int = Field(default=512, ge=16, le=1_048_576)
    clickhouse_memory_mb: int = Field(default=2048, ge=512, le=1_048_576)

    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=0, le=65535)

    engine: Engine = "llama_cpp"
    models: str | None = None
    """JSON list of [models](#the-models); the parts are told by the same variable."""
    workers: str = "1"
    """How many, at most 16 in a pool; or how many of each model of TURNLOG_MODELS: `small=1,large=2`."""
    api_processes: int = Field(default=1, ge=1, le=16)
    streams: int = Field(default=1, ge=1, le=8)
    """Instances of turns and of dispatch."""
    metrics: bool = False
    """Whether each part serves Prometheus metrics, on a free port that `turnlog status --json` names."""
    secret: str | None = Field(default=None, min_length=16)

    watchdog_s: float = Field(default=60.0, gt=0)
    grace_s: float = Field(default=15.0, gt=0)

    @field_validator("kafka_bootstrap", "redis_url", "clickhouse_url", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("workers", mode="before")
    @classmethod
    def _number_is_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @field_validator("workers")
    @classmethod
    def _workers_can_run(cls, value: str, info: ValidationInfo) -> str:
        planned_workers(value, _models(info.data.get("models")) if "=" in value else DEFAULT_MODELS)
        return value

    @property
    def planned(self) -> tuple[PlannedWorker, ...]:
        """The workers to start."""
        return planned_workers(self.workers, _models(self.models) if "=" in self.workers else DEFAULT_MODELS)


class ProvisionSettings(BaseSettings):
    """The servers that `turnlog provision` creates topics, tables and functions on."""

    model_config = SettingsConfigDict(env_prefix="TURNLOG_", frozen=True, extra="ignore")

    namespace: str = Field(default="turnlog", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    kafka_bootstrap: str
    redis_url: str
    clickhouse_url: str
    models: str | None = None
    replication: int = Field(default=1, ge=1, le=7)
    size: Literal["local", "production"] = "local"
    """Partition counts: `local` or `production`, as schemas.topics declares them."""

    @property
    def database(self) -> str:
        """Name of the ClickHouse database."""
        return database_of(self.namespace)


def _models(text: str | None) -> tuple[Model, ...]:
    return parse_models(text) if text else DEFAULT_MODELS


def sentences(failure: ValidationError, typed: Mapping[str, str] | None = None) -> list[str]:
    """One sentence for each setting that is wrong or missing; ``typed`` has the options that were given, by setting."""
    said = []
    for error in failure.errors():
        setting = str(error["loc"][0]) if error["loc"] else ""
        name = (typed or {}).get(setting, variable(error))
        value = "wrong" if setting in UNSHOWN else _shown(error["input"])
        if error["type"] == "missing":
            said.append(f"{name} is not set.")
        else:
            said.append(f"{reason_of(error)}." if stands_alone(error) else f"{name} is {value}: {reason_of(error)}.")
    return said


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
