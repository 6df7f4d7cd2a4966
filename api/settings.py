"""Settings of an API process, from TURNLOG_… variables."""

from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from api.cors import origins_of
from api.issuers import Issuer, parse_issuers
from api.reading import Patience
from api.stores import PageLimit
from schemas.models import DEFAULT_MODELS, Model, parse_models
from schemas.tiers import DEFAULT_TIERS, Tiers, parse_tiers
from streams.log.process import ProcessSettings, database_of


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

    operator_key: SecretStr | None = Field(default=None, min_length=16)
    """Opens the operator's calls, [`/v1/admin/…`](accounts.md#the-operators-calls); absent: there are none. Begin it
    with `tlo_`, and let 24 random characters or more follow: such keys are hidden wherever they turn up."""
    jwt_issuers: Annotated[tuple[Issuer, ...], NoDecode] = ()
    """JSON list of [issuers](#the-issuers-of-tokens) whose tokens (JWT) open accounts."""

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

    @field_validator("jwt_issuers", mode="before")
    @classmethod
    def _parse_issuers(cls, value: object) -> object:
        return (parse_issuers(value) if value else ()) if isinstance(value, str) else value

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
