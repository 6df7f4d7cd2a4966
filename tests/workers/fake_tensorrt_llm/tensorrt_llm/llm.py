"""`LLM`: what is asked for, checked, and handed to the executor."""

import threading
from collections.abc import AsyncIterator
from typing import Any

from tensorrt_llm import faults
from tensorrt_llm.executor import Executor
from tensorrt_llm.llmapi.llm_args import KvCacheRetentionConfig, TorchLlmArgs
from tensorrt_llm.outputs import IterationResult, RequestOutput, empty_async_iterable
from tensorrt_llm.sampling_params import SamplingParams
from tensorrt_llm.tokenizer import ByteTokenizer, TransformersTokenizer

LATEST: list["LLM"] = []
"""The models made in this process, for tests that look inside."""


class LLM:
    def __init__(
        self,
        model: str,
        tokenizer: str | None = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.args = TorchLlmArgs(
            model=model,
            tokenizer=tokenizer,
            tokenizer_mode=tokenizer_mode,
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            **kwargs,
        )
        if model == "nowhere":
            raise OSError("nowhere is not a local folder and is not a valid model identifier on the hub")
        if tensor_parallel_size > 8:
            raise RuntimeError(f"Only 8 GPUs are available, but {tensor_parallel_size} are required.")
        self.tokenizer = None if skip_tokenizer_init else TransformersTokenizer(ByteTokenizer())
        self._executor: Executor | None = Executor(self.args, self.tokenizer)
        self.submitted: list[dict[str, Any]] = []
        LATEST.append(self)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
        priority: float = 0.5,
        conversation_params: Any = None,
    ) -> RequestOutput:
        if not 0 <= priority <= 1:
            raise ValueError(f"priority must be in [0, 1], got {priority}")
        if self._executor is None or self._executor.dead:
            raise RuntimeError("LLM is shutting down")
        params = sampling_params or SamplingParams()
        params._setup(self.tokenizer)
        self.submitted.append(
            {
                "prompt": list(inputs),
                "sampling_params": params,
                "kv_cache_retention_config": kv_cache_retention_config,
                "cache_salt": cache_salt,
                "priority": priority,
            }
        )
        return self._executor.submit(list(inputs), params, cache_salt, priority, streaming=streaming)

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult | AsyncIterator[Any]:
        if faults.current.stats_not_implemented:
            raise NotImplementedError("aget_stats is not implemented")
        if self._executor is None or self._executor.stats is None or not self.args.enable_iter_perf_stats:
            return empty_async_iterable()
        self._executor.stats.set_timeout(timeout or 2)
        return self._executor.stats

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> IterationResult | AsyncIterator[Any]:
        if self._executor is None or self._executor.events is None:
            return empty_async_iterable()
        self._executor.events.set_timeout(timeout or 2)
        return self._executor.events

    def shutdown(self) -> None:
        if faults.current.hanging_shutdown:
            threading.Event().wait()
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


class OlderLLM(LLM):
    """A version without salts, priorities and retention."""

    def generate_async(  # type: ignore[override]
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
    ) -> RequestOutput:
        return super().generate_async(inputs, sampling_params, streaming=streaming)
