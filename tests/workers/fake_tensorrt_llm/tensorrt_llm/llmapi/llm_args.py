"""Arguments of `LLM`: strict models, which refuse what they do not know with a ValueError."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = Field(default=0.9, ge=0, le=1)
    host_cache_size: int | None = None
    event_buffer_max_size: int = 0
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    dtype: str = "auto"
    tokens_per_block: int = 32


class CapacitySchedulerPolicy(StrEnum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"


class WaitingQueuePolicy(StrEnum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class SchedulerConfig(StrictBaseModel):
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    waiting_queue_policy: WaitingQueuePolicy = WaitingQueuePolicy.FCFS


class OlderSchedulerConfig(StrictBaseModel):
    """A version that serves in order of arrival, whatever is asked for."""

    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    waiting_queue_policy: Literal["fcfs"] = "fcfs"


class TorchLlmArgs(StrictBaseModel):
    model: str
    tokenizer: str | None = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    pipeline_parallel_size: int = 1
    load_format: Literal["auto", "dummy"] = "auto"
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    scheduler_config: SchedulerConfig = Field(default_factory=SchedulerConfig)
    enable_chunked_prefill: bool = False
    enable_iter_perf_stats: bool = False
    max_batch_size: int | None = 2048
    max_num_tokens: int | None = 8192
    max_seq_len: int | None = None
    stream_interval: int = 1
    cuda_graph_config: Any = None


@dataclass(frozen=True)
class _TokenRange:
    token_start: int
    token_end: int | None
    priority: int
    duration_ms: timedelta | None = None


class KvCacheRetentionConfig:
    TokenRangeRetentionConfig = _TokenRange

    def __init__(
        self,
        token_range_retention_configs: list[_TokenRange],
        decode_retention_priority: int = 35,
        decode_duration_ms: timedelta | None = None,
    ) -> None:
        if not all(0 <= one.priority <= 100 for one in token_range_retention_configs):
            raise ValueError("a priority must be between 0 and 100")
        self.token_range_retention_configs = token_range_retention_configs
        self.decode_retention_priority = decode_retention_priority
