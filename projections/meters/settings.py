"""Settings of the meters, from `TURNLOG_…` variables."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from pydantic import AwareDatetime, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from projections.meters.rules import Measure, Rules
from streams.log.process import ProcessSettings

DAY_S = 86_400


class MetersSettings(ProcessSettings):
    """`python -m projections meters`."""

    meter: Literal["stripe", "openmeter"] = "stripe"
    """The billing provider."""
    meter_key: SecretStr = Field(min_length=1)
    """The provider's API key."""
    meter_url: str | None = None
    """Where the provider is, if not at its own address: needed for `openmeter`, `http://host:8888`."""
    meter_event_name: str = Field(default="turnlog_usage", min_length=1, max_length=100)
    """Of the meter, as the provider has it."""
    meter_measure: Measure = "tokens"
    """What a charge counts as: all its `tokens`, its `output_tokens`, or its `cost`."""
    meter_tiers: Annotated[frozenset[str], NoDecode] = frozenset({"paid"})
    """Tiers whose charges are told, with commas between."""
    meter_customers: Annotated[Mapping[str, str], NoDecode] = {}
    """JSON object: account -> the provider's customer."""
    meter_customer_prefix: str | None = None
    """The customer of all other accounts is this and the account's id; absent: they have none, and are not metered."""
    meter_at_once: int = Field(default=16, ge=1, le=256)
    """Charges that are told at a time."""
    meter_waiting_max: int = Field(default=5_000, ge=1, le=100_000)
    meter_timeout_s: float = Field(default=20.0, gt=0, le=300)
    meter_age_max_s: float = Field(default=23 * 3_600, gt=0, le=35 * DAY_S)
    """A charge that is older may have been told before, and the provider may have forgotten it (Stripe remembers for 24
    hours, OpenMeter as long as its deduplication is set to): it is not told, and becomes a dead letter. Raise it only
    for as long as you know that nothing was told."""
    meter_since: AwareDatetime | None = None
    """From when on usage is metered, such as `2026-11-01T00:00:00Z`: what ended before is not told. Absent: from the
    first start on."""

    @field_validator("meter_tiers", mode="before")
    @classmethod
    def _parse_tiers(cls, value: object) -> object:
        return frozenset(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("meter_customers", mode="before")
    @classmethod
    def _parse_customers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return msgspec.json.decode(value or "{}", type=dict[str, str])
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise ValueError(f"no JSON object of customers by account: {error}") from error

    @model_validator(mode="after")
    def _somebody_is_metered(self) -> "MetersSettings":
        if not self.meter_customers and self.meter_customer_prefix is None:
            raise ValueError("TURNLOG_METER_CUSTOMERS or TURNLOG_METER_CUSTOMER_PREFIX is needed: nobody is metered")
        if self.meter == "openmeter" and not self.meter_url:
            raise ValueError("TURNLOG_METER_URL is needed with TURNLOG_METER=openmeter")
        return self

    def rules(self) -> Rules:
        """The values that its rules take."""
        return Rules(
            event_name=self.meter_event_name,
            measure=self.meter_measure,
            tiers=self.meter_tiers,
            customers=self.meter_customers,
            customer_prefix=self.meter_customer_prefix,
            age_max_ms=round(self.meter_age_max_s * 1000),
            since_ms=round(self.meter_since.timestamp() * 1000) if self.meter_since is not None else 0,
        )
