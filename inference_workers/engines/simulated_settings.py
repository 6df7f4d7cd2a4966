"""Settings of the engine `simulated`: environment variables `TURNLOG_SIMULATED_…`."""

from pydantic import Field

from inference_workers.engines.settings import EngineSettings
from inference_workers.engines.simulation import Faults, SimulatedSettings


class SimulatedEngineSettings(EngineSettings):
    """The server that is modelled, and what goes wrong in it."""

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

    def simulation(self, model: str, slots: int, context_tokens: int) -> SimulatedSettings:
        """The modelled server."""
        return SimulatedSettings(
            model=model,
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
