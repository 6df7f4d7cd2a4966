"""Settings of an API process, from TURNLOG_… variables."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from api.cors import origins_of
from api.issuers import Issuer, parse_issuers
from api.limits import Leases
from api.limits_door import LimitPolicy
from api.limits_local import WithoutRedis
from api.prompt_tokens import parse_tokenizers
from api.reading import Patience
from api.stores import PageLimit
from schemas.models import DEFAULT_MODELS, Model, parse_models
from schemas.prices import PriceEntry, parse_prices
from schemas.tiers import DEFAULT_TIERS, Tiers, parse_tiers
from streams.log.process import ProcessSettings, database_of

DOOR_S = 10.0
"""What a send may take at the door beside waiting for the log."""
SETTLED_MS = 60_000
"""So long after its deadline the end of a reply is settled, at the latest."""


OPERATOR_KEY_CHARS_MIN = 16


class ApiSettings(ProcessSettings):
    """Times are in seconds, unless the name says otherwise."""

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    clickhouse_url: SecretStr = SecretStr("http://127.0.0.1:8123")
    secret: SecretStr = Field(min_length=16)
    """Keys the tags of all ids: the same in every API process, kept for ever."""
    models: str | None = None
    """JSON list of [models](#the-models)."""

    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=1, le=65535)
    """Several processes may share one: the kernel spreads connections (SO_REUSEPORT)."""
    api_own_port: int | None = Field(default=None, ge=1, le=65535)
    """A second port, of this process alone: for probes, and to reach one of several. Absent: none."""

    cors_origins: str = ""
    """Origins whose pages may use the API from a browser, with commas between; `*`: all."""

    tiers: Annotated[Tiers, NoDecode] = DEFAULT_TIERS
    """JSON object of [tiers](#the-tiers): members given go before those of the default."""

    operator_key: SecretStr | None = None
    """Opens the operator's calls, [`/v1/admin/…`](accounts.md#the-operators-calls); absent: there are none. Begin it
    with `tlo_`, and let 24 random characters or more follow: such keys are hidden wherever they turn up."""
    jwt_issuers: Annotated[tuple[Issuer, ...], NoDecode] = ()
    """JSON list of [issuers](#the-issuers-of-tokens) whose tokens (JWT) open accounts."""

    limits_without_redis: WithoutRedis = "local"
    """While Redis is away or has lost the [limits](limits.md): `local`, each process grants from a share of its own;
    `refuse`, sends are answered with 503."""
    limits_local_share: float = Field(default=0.1, gt=0, le=1)
    """How much of each bucket a process grants by itself then."""
    tokenizers: Annotated[Mapping[str, Path], NoDecode] = {}
    """JSON object, model -> file of its tokenizer (`tokenizer.json`, or a GGUF): prompts are counted by it before they
    are let in. Without one by bytes."""
    deadline_s: float = Field(default=900.0, gt=0, le=86_400)
    """As [turns](#turns) has it: for how long what is reserved for a reply stands, if nothing is heard of it."""

    prices: Annotated[tuple[PriceEntry, ...], NoDecode] = ()
    """JSON list of [price entries](#the-prices), as all processes have it; models without one have their own price."""

    ticket_s: int = Field(default=300, ge=1, le=86_400)
    """How long a ticket opens its stream, also again after a broken connection."""
    append_timeout_s: float = Field(default=10.0, gt=0)
    """How long a send waits for Kafka before it is answered with 503."""
    heartbeat_s: float = Field(default=15.0, gt=0)
    send_timeout_s: float = Field(default=30.0, gt=0)
    """A reader that takes nothing for so long is cut off."""
    outage_s: float = Field(default=120.0, gt=0)
    """How long an open stream outlives Redis."""
    stream_idle_s: float = Field(default=900.0, gt=0)
    """How long a stream stays open without an event."""
    streams_max: int = Field(default=20_000, ge=1)
    """Open streams of this process; more are answered with 503. Each is an open file (`ulimit -n`)."""
    shutdown_s: float = Field(default=5.0, gt=0)
    """Within so long a process that is told to stop ends its streams after a whole event, and answers what it has."""

    @field_validator("models")
    @classmethod
    def _models_are_valid(cls, value: str | None) -> str | None:
        if value:
            parse_models(value)
        return value or None

    @field_validator("tiers", mode="before")
    @classmethod
    def _parse_tiers(cls, value: object) -> object:
        return parse_tiers(value) if isinstance(value, str) else value

    @field_validator("operator_key", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None

    @field_validator("operator_key")
    @classmethod
    def _can_be_sent(cls, value: SecretStr | None) -> SecretStr | None:
        text = value.get_secret_value() if value is not None else None
        if text is not None and (len(text) < OPERATOR_KEY_CHARS_MIN or not re.fullmatch(r"[!-~]+", text)):
            raise ValueError(f"must have {OPERATOR_KEY_CHARS_MIN} characters or more, all of ASCII and no blanks")
        return value

    @field_validator("jwt_issuers", mode="before")
    @classmethod
    def _parse_issuers(cls, value: object) -> object:
        return (parse_issuers(value) if value else ()) if isinstance(value, str) else value

    @field_validator("tokenizers", mode="before")
    @classmethod
    def _parse_tokenizers(cls, value: object) -> object:
        return parse_tokenizers(value) if isinstance(value, str) else value

    @field_validator("prices", mode="before")
    @classmethod
    def _parse_prices(cls, value: object) -> object:
        return (parse_prices(value) if value else ()) if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_valid(cls, value: str) -> str:
        origins_of(value)
        return value

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins that are let in."""
        return origins_of(self.cors_origins)

    @property
    def served(self) -> tuple[Model, ...]:
        """The models."""
        return parse_models(self.models) if self.models else DEFAULT_MODELS

    @property
    def limit_policy(self) -> LimitPolicy:
        """How limits hold. A turn may wait for as long as a reply may run before it begins."""
        door_ms = round((self.append_timeout_s + DOOR_S) * 1000)
        reply_ms = round(2 * self.deadline_s * 1000) + SETTLED_MS
        return LimitPolicy(
            leases=Leases(door_ms=door_ms, reply_ms=reply_ms),
            without_redis=self.limits_without_redis,
            local_share=self.limits_local_share,
        )

    @property
    def database(self) -> str:
        """Name of the ClickHouse database."""
        return database_of(self.namespace)

    @property
    def patience(self) -> Patience:
        """How long streams wait."""
        return Patience(
            heartbeat_s=self.heartbeat_s,
            send_timeout_s=self.send_timeout_s,
            outage_s=self.outage_s,
            idle_s=self.stream_idle_s,
            page=PageLimit(frames=1000, bytes=65_536),
        )
