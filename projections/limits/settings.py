"""Settings of the limits' projection, from `TURNLOG_…` variables."""

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from schemas.tiers import DEFAULT_TIERS, Tiers, parse_tiers
from streams.log.process import ProcessSettings


class LimitsSettings(ProcessSettings):
    """`python -m projections limits`."""

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", min_length=1)
    tiers: Annotated[Tiers, NoDecode] = DEFAULT_TIERS
    """JSON object of [tiers](#the-tiers): members given go before those of the default."""

    @field_validator("tiers", mode="before")
    @classmethod
    def _parse_tiers(cls, value: object) -> object:
        return parse_tiers(value) if isinstance(value, str) else value
