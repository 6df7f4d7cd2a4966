"""Settings of the engine `simulated`: environment variables `TURNLOG_SIMULATED_…`."""

from typing import Any

import msgspec
from pydantic import Field

from inference_workers.engines.settings import EngineSettings
from inference_workers.engines.simulated_presets import PRESETS, PresetName
from inference_workers.engines.simulation import Batching, Faults, Reserve, SimulatedSettings


class SimulatedEngineSettings(EngineSettings):
    """The server that is modelled, and what goes wrong in it. What has no default is as the preset says."""

    simulated_preset: PresetName = "small"
    """Rates and memory of a server: see "The simulated engine" in docs/operations.md."""
    simulated_batching: Batching = "iteration"
    """`request`: a batch enters when the one before it has ended."""
    simulated_reserve: Reserve = "nothing"
    """KV tokens that a sequence takes in advance: none, its token limit, or the whole context."""
    simulated_prefix_cache: bool = True
    simulated_prefill_tokens_per_s: float | None = Field(default=None, gt=0)
    simulated_prefill_chunk_tokens: int | None = Field(default=None, ge=1)
    """Prompt tokens that one step reads at most."""
    simulated_step_overhead_ms: float | None = Field(default=None, ge=0)
    simulated_token_ms: float | None = Field(default=None, ge=0)
    """Reading the weights once: what a step takes, however many sequences it gives a token."""
    simulated_sequence_us: float | None = Field(default=None, ge=0)
    """What a step takes for each sequence that decodes."""
    simulated_kv_token_ns: float | None = Field(default=None, ge=0)
    """What a step takes for each KV token that the decoding sequences hold."""
    simulated_attention_ns: float | None = Field(default=None, ge=0)
    """What a step takes for each pair of a prompt token that it reads and a token before that."""
    simulated_kv_tokens: int | None = Field(default=None, ge=1024)
    simulated_block_tokens: int | None = Field(default=None, ge=1, le=1024)
    simulated_start_s: float | None = Field(default=None, ge=0)
    simulated_jitter: float = Field(default=0.05, ge=0, le=1)
    """Standard deviation of a step's duration, as a share of it."""
    simulated_output_tokens: int = Field(default=120, ge=1)
    """Mean length of an answer, where the message names none."""
    simulated_prefix_block_tokens: int = Field(default=512, ge=1)
    """Tokens that each number of a message's `prefix` stands for."""
    simulated_seed: int = 1
    simulated_speed: float = Field(default=1.0, gt=0)
    """How much faster than the clock its time goes."""

    simulated_hang_at: int | None = Field(default=None, ge=0)
    """After that many tokens each generation falls silent."""
    simulated_crash_at: int | None = Field(default=None, ge=1)
    """After that many tokens of any generation the engine dies."""
    simulated_ignore_abort: bool = False
    simulated_duplicate_diff: bool = False
    simulated_split_utf8: bool = False
    simulated_stall_at: int | None = Field(default=None, ge=0)
    """After that many tokens in total the engine makes no more steps, and its statistics age."""
    simulated_lose_stats_at: int | None = Field(default=None, ge=0)
    """After that many tokens in total its statistics stay as they are, and age."""

    def simulation(self, model: str, slots: int, context_tokens: int) -> SimulatedSettings:
        """The modelled server."""
        return msgspec.structs.replace(
            PRESETS[self.simulated_preset].server,
            model=model,
            slots=slots,
            context_tokens=context_tokens,
            batching=self.simulated_batching,
            reserve=self.simulated_reserve,
            prefix_cache=self.simulated_prefix_cache,
            jitter=self.simulated_jitter,
            output_tokens_mean=self.simulated_output_tokens,
            prefix_block_tokens=self.simulated_prefix_block_tokens,
            seed=self.simulated_seed,
            faults=self._faults(),
            **self._overrides(),
        )

    def _faults(self) -> Faults:
        return Faults(
            hang_at=self.simulated_hang_at,
            crash_at=self.simulated_crash_at,
            ignore_abort=self.simulated_ignore_abort,
            duplicate_diff=self.simulated_duplicate_diff,
            split_utf8=self.simulated_split_utf8,
            stall_at=self.simulated_stall_at,
            lose_stats_at=self.simulated_lose_stats_at,
        )

    def _overrides(self) -> dict[str, Any]:
        """Members of the preset that were set one by one."""
        given = (
            ("prefill_tokens_per_s", self.simulated_prefill_tokens_per_s, 1),
            ("prefill_chunk_tokens", self.simulated_prefill_chunk_tokens, 1),
            ("step_overhead_s", self.simulated_step_overhead_ms, 1e-3),
            ("token_s", self.simulated_token_ms, 1e-3),
            ("sequence_s", self.simulated_sequence_us, 1e-6),
            ("kv_token_s", self.simulated_kv_token_ns, 1e-9),
            ("attention_s", self.simulated_attention_ns, 1e-9),
            ("kv_tokens", self.simulated_kv_tokens, 1),
            ("block_tokens", self.simulated_block_tokens, 1),
            ("start_s", self.simulated_start_s, 1),
        )
        return {name: value * unit for name, value, unit in given if value is not None}
