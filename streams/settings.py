"""Settings of the four processes: environment variables `TURNLOG_…`, besides those that all processes have."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from schemas.models import DEFAULT_MODELS, Model, parse_models
from schemas.prices import PriceEntry, parse_prices
from schemas.tiers import DEFAULT_TIERS, Tiers, parse_tiers
from streams.demand.fleet import Rules
from streams.demand.forecast import Smoothing
from streams.demand.scaling import Scaling
from streams.dispatch.limits import Limits, NoWorker, Placement, Queueing
from streams.dispatch.load import Thresholds
from streams.log.process import ProcessSettings
from streams.turns.policy import Policy


class StreamSettings(ProcessSettings):
    """What all four know."""

    models: Annotated[tuple[Model, ...], NoDecode] = DEFAULT_MODELS
    """All [models](#the-models) of the deployment (JSON)."""
    tiers: Annotated[Tiers, NoDecode] = DEFAULT_TIERS
    """JSON object of [tiers](#the-tiers): members given go before those of the default."""
    prices: Annotated[tuple[PriceEntry, ...], NoDecode] = ()
    """JSON list of [price entries](#the-prices); models without one have their own price."""

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: object) -> object:
        return parse_models(value) if isinstance(value, str) else value

    @field_validator("tiers", mode="before")
    @classmethod
    def _parse_tiers(cls, value: object) -> object:
        return parse_tiers(value) if isinstance(value, str) else value

    @field_validator("prices", mode="before")
    @classmethod
    def _parse_prices(cls, value: object) -> object:
        return (parse_prices(value) if value else ()) if isinstance(value, str) else value

    def pools(self) -> tuple[str, ...]:
        """The pools that the models name."""
        return tuple(sorted({model.pool for model in self.models}))


class TurnsSettings(StreamSettings):
    """Turns. Limits are per partition of `messages`."""

    deadline_s: float = Field(default=900.0, gt=0, le=86_400)
    """From acceptance until a reply that has not ended has failed."""
    sweep_margin_s: float = Field(default=30.0, gt=0, le=3_600)
    window_chars_max: int = Field(default=400_000, ge=10_000)
    conversation_messages_max: int = Field(default=2_000, ge=4)
    conversation_running_max: int = Field(default=4, ge=1)
    """Replies of one conversation that run at a time; further ones wait."""
    conversations_max: int = Field(default=50_000, ge=1)
    conversations_chars_max: int = Field(default=64_000_000, ge=1_000_000)

    def policy(self) -> Policy:
        """The values that its rules take."""
        return Policy(
            models=self.models,
            tiers=self.tiers,
            deadline_ms=round(self.deadline_s * 1000),
            sweep_margin_ms=round(self.sweep_margin_s * 1000),
            window_chars_max=self.window_chars_max,
            messages_max=self.conversation_messages_max,
            conversation_running_max=self.conversation_running_max,
            conversations_max=self.conversations_max,
            chars_max=self.conversations_chars_max,
        )


class DispatchSettings(StreamSettings):
    """Dispatch. Limits are per pool."""

    lease_s: float = Field(default=3.0, ge=2.5, le=300)
    """A worker that has not renewed its lease for so long is dead."""
    lease_stale_s: float = Field(default=2.0, ge=1.5, le=300)
    """A worker that has not renewed its lease for so long counts as full."""
    attempts_max: int = Field(default=3, ge=1, le=10)
    """Attempts that workers may lose; from 3 on the last one runs alone among its like, so that its death says why."""
    queue_max: int = Field(default=10_000, ge=1)
    queue_chars_max: int = Field(default=256_000_000, ge=1_000_000)
    account_waiting_max: int = Field(default=1_000, ge=1)
    """Waiting requests of one account in a pool; one more is refused."""
    ageing_s: float = Field(default=30.0, gt=0)
    """A request that waited so long takes part in the share of the aged."""
    ageing_share: int = Field(default=8, ge=1)
    """One placement in so many goes to the aged request that waits longest."""
    account_running_max_free: int = Field(default=16, ge=1)
    """Generations that one account of this tier has at a time in a pool; more wait."""
    account_running_max_paid: int = Field(default=1_024, ge=1)
    others_share: int = Field(default=8, ge=2)
    """One slot of a model in so many, one at least, no account may have while others ask for it."""
    others_s: float = Field(default=60.0, ge=0)
    """Others ask while one of them did within so long; 0: one account may always have all."""
    placement: Placement = "prefix"
    """How a worker is chosen; all but `prefix` are there to compare with."""
    queueing: Queueing = "fair"
    """How requests wait; `fifo`, without priorities and accounts, is there to compare with."""
    no_worker: NoWorker = "queue"
    """What becomes of requests for a model that no worker runs: they wait, or are refused with 503."""
    no_worker_s: float = Field(default=10.0, ge=0)
    """So long a model may be without a worker before it counts as such."""
    overload_stages: bool = True
    """Whether service is degraded in stages under overload."""
    shorten_s: float = Field(default=2.0, gt=0)
    """Forecast of the wait from which on free replies are shortened."""
    shorten_kv_share: float = Field(default=0.95, gt=0, le=1)
    """Part of the KV cache that is spoken for, from which on free replies are shortened while anything waits."""
    smaller_model_s: float = Field(default=6.0, gt=0)
    """Forecast of the wait from which on the smaller model answers."""
    refuse_s: float = Field(default=15.0, gt=0)
    """The same, from which on they are refused, with a time to try again."""
    paid_patience: float = Field(default=8.0, ge=1)
    """For paid traffic these are so many times as long."""
    shortened_tokens: int = Field(default=256, ge=16)
    """Longest output of a shortened reply."""

    @model_validator(mode="after")
    def _stages_in_order(self) -> Self:
        if not self.shorten_s < self.smaller_model_s < self.refuse_s:
            raise ValueError("TURNLOG_SHORTEN_S < TURNLOG_SMALLER_MODEL_S < TURNLOG_REFUSE_S is needed")
        if self.lease_stale_s > self.lease_s:
            raise ValueError("TURNLOG_LEASE_STALE_S may not be above TURNLOG_LEASE_S")
        return self

    def limits(self, inboxes: int) -> Limits:
        """The values that its rules take."""
        return Limits(
            lease_ms=round(self.lease_s * 1000),
            stale_ms=round(self.lease_stale_s * 1000),
            attempts_max=self.attempts_max,
            queue_max=self.queue_max,
            queue_chars_max=self.queue_chars_max,
            account_waiting_max=self.account_waiting_max,
            ageing_ms=round(self.ageing_s * 1000),
            ageing_share=self.ageing_share,
            running_max_free=self.account_running_max_free,
            running_max_paid=self.account_running_max_paid,
            others_share=self.others_share,
            others_ms=round(self.others_s * 1000),
            inboxes=inboxes,
            placement=self.placement,
            queueing=self.queueing,
            no_worker=self.no_worker,
            no_worker_ms=round(self.no_worker_s * 1000),
            thresholds=Thresholds(
                enabled=self.overload_stages,
                shorten_ms=round(self.shorten_s * 1000),
                smaller_ms=round(self.smaller_model_s * 1000),
                refuse_ms=round(self.refuse_s * 1000),
                kv_share=self.shorten_kv_share,
                paid_patience=self.paid_patience,
                shortened_tokens=self.shortened_tokens,
            ),
        )


class SettlementSettings(StreamSettings):
    """Settlement."""

    abandoned_s: float = Field(default=1_800.0, ge=60)
    """After so long without any event an open reply is given up, with an alarm."""
    open_replies_max: int = Field(default=200_000, ge=1)
    open_chars_max: int = Field(default=1_000_000_000, ge=1_000_000)


class DemandSettings(StreamSettings):
    """Demand."""

    demand_window_s: float = Field(default=10.0, ge=1, le=3_600)
    """Demand is counted and said in windows of this length."""
    demand_headroom: float = Field(default=1.25, ge=1, le=10)
    """So many times what is expected is provided for."""
    demand_lead_s: float = Field(default=300.0, ge=0, le=7_200)
    """How long a worker takes from being desired to running: what is usual by then is provided for."""
    demand_slot_s: float = Field(default=600.0, ge=300, le=14_400)
    """The day's pattern is learnt in slots of this length; a window, if that is longer."""
    demand_days: int = Field(default=5, ge=1, le=14)
    """A slot is expected to be as the median of so many days; fewer than half of them may be odd."""
    demand_replicas_min: int = Field(default=1, ge=0)
    """Fewest workers that are desired of each model in each pool."""
    demand_replicas_max: int = Field(default=16, ge=1)
    """The most of each; all models of a pool share its inboxes: 16, in production 64."""
    demand_target_utilisation: float = Field(default=0.8, gt=0, le=1)
    """Share of a worker's slots that shall be taken."""
    demand_scale_down_windows: int = Field(default=30, ge=1, le=10_000)
    """Fewer workers are desired only after so many windows in a row that need fewer."""
    demand_backlog_s: float = Field(default=60.0, gt=0, le=86_400)
    """What waits for a slot shall be done within so long, beside what arrives."""
    demand_folder: Path | None = None
    """For Faust's own files; by default a folder among the temporary ones."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.demand_replicas_min > self.demand_replicas_max:
            raise ValueError("TURNLOG_DEMAND_REPLICAS_MIN may not be above TURNLOG_DEMAND_REPLICAS_MAX")
        return self

    def rules(self) -> Rules:
        """The values that its forecasts and wishes depend on."""
        window_ms = round(self.demand_window_s * 1000)
        return Rules(
            smoothing=Smoothing(
                window_ms=window_ms,
                headroom=self.demand_headroom,
                slot_ms=max(round(self.demand_slot_s * 1000), window_ms),
                days=self.demand_days,
            ),
            scaling=Scaling(
                replicas_min=self.demand_replicas_min,
                replicas_max=self.demand_replicas_max,
                target_utilisation=self.demand_target_utilisation,
                scale_down_windows=self.demand_scale_down_windows,
                backlog_s=self.demand_backlog_s,
            ),
            lead_ms=round(self.demand_lead_s * 1000),
        )
