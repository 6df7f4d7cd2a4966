"""The configurations and outputs that `tensorrt_llm.llmapi` exports."""

from tensorrt_llm.llmapi.llm_args import (
    CapacitySchedulerPolicy,
    KvCacheConfig,
    KvCacheRetentionConfig,
    OlderSchedulerConfig,
    SchedulerConfig,
    TorchLlmArgs,
    WaitingQueuePolicy,
)
from tensorrt_llm.outputs import CompletionOutput, RequestError, RequestOutput

__all__ = [
    "CapacitySchedulerPolicy",
    "CompletionOutput",
    "KvCacheConfig",
    "KvCacheRetentionConfig",
    "OlderSchedulerConfig",
    "RequestError",
    "RequestOutput",
    "SchedulerConfig",
    "TorchLlmArgs",
    "WaitingQueuePolicy",
]
