"""The price list as the command line reads it."""

from __future__ import annotations

from typing import Annotated

from pydantic import field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from schemas.models import DEFAULT_MODELS, Model, parse_models
from schemas.prices import PriceEntry, parse_prices


class PriceSettings(BaseSettings):
    """Models and prices, as the processes have them."""

    model_config = SettingsConfigDict(env_prefix="TURNLOG_", frozen=True, extra="ignore")

    models: Annotated[tuple[Model, ...], NoDecode] = DEFAULT_MODELS
    prices: Annotated[tuple[PriceEntry, ...], NoDecode] = ()

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: object) -> object:
        return parse_models(value) if isinstance(value, str) and value else value or DEFAULT_MODELS

    @field_validator("prices", mode="before")
    @classmethod
    def _parse_prices(cls, value: object) -> object:
        return parse_prices(value) if isinstance(value, str) and value else value or ()
