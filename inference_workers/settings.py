"""The worker's settings: environment variables `TURNLOG_…`, besides those that all processes have."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from inference_workers.outcomes import Patience
from inference_workers.policy import Policy
from schemas.models import DEFAULT_MODELS, Model, find, parse_models
from streams.log.process import ProcessSettings

EngineName = Literal["llama_cpp", "scripted", "simulated", "tensorrt_llm", "openai_compatible"]


class WorkerSettings(ProcessSettings):
    """Settings of one worker. `TURNLOG_REPLICA` is its ordinal in the pool: its inbox."""

    replica: int = Field(default=0, ge=0, lt=1024)
    engine: EngineName = "llama_cpp"
    pool: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    models: Annotated[tuple[Model, ...], NoDecode] = DEFAULT_MODELS
    """All [models](#the-models) of the deployment (JSON); it serves the first one of its pool, or the one of MODEL."""
    model: str = Field(default="", validate_default=True)
    slots: int = Field(default=0, ge=0, le=4096)
    """Generations that run at a time; 0: as many as suit the engine."""
    context_tokens: int = Field(default=0, ge=0)
    """0: as the model declares."""

    drain_grace_s: float = Field(default=20.0, ge=0, le=3600)
    first_token_timeout_s: float = Field(default=300.0, gt=0)
    token_timeout_s: float = Field(default=60.0, gt=0)
    abort_timeout_s: float = Field(default=10.0, gt=0)
    waiting_max: int = Field(default=64, ge=0, le=10_000)

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: object) -> object:
        return parse_models(value) if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _is_in_the_pool(cls, value: str, info: ValidationInfo) -> str:
        pool, models = info.data.get("pool"), info.data.get("models")
        if pool is None or models is None:
            return value  # they are wrong, and said to be
        if find(tuple(model for model in models if model.pool == pool), value or "auto") is None:
            raise ValueError(f"the pool {pool!r} has no model {value!r} in TURNLOG_MODELS")
        return value

    def served(self) -> Model:
        """The model that this worker serves."""
        here = tuple(model for model in self.models if model.pool == self.pool)
        return find(here, self.model or "auto") or here[0]

    def policy(self) -> Policy:
        """The worker's times and bounds."""
        return Policy(
            grace_s=self.drain_grace_s,
            abort_s=self.abort_timeout_s,
            waiting_max=self.waiting_max,
            patience=Patience(first_token_s=self.first_token_timeout_s, token_s=self.token_timeout_s),
        )
