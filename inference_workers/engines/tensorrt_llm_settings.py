"""Settings of the engine `tensorrt_llm`: environment variables `TURNLOG_TENSORRT_…`. What they cost: docs/gpu.md."""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import NoDecode

from inference_workers.engines.settings import EngineSettings


class TensorRtLlmSettings(EngineSettings):
    """How TensorRT-LLM is run in the worker's process."""

    install: ClassVar[str] = "docs/gpu.md has the ways to install it"

    tensorrt_model: str = Field(min_length=1)
    """A folder with a checkpoint, or a name on the Hugging Face hub."""
    tensorrt_tokenizer: str = ""
    """Empty: the model's own."""
    tensorrt_revision: str = ""
    """Of the model on the hub: a branch, a tag or a commit."""
    tensorrt_trust_remote_code: bool = False
    tensorrt_dtype: str = "auto"
    tensorrt_load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights, to try memory and speed without them."""

    tensorrt_tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """GPUs that share each layer."""
    tensorrt_pipeline_parallel_size: int = Field(default=1, ge=1, le=64)
    """Groups of GPUs that hold the layers one after the other."""

    tensorrt_max_batch_size: int = Field(default=0, ge=0, le=4096)
    """Generations in one step; 0: as many as there are slots. Fewer than slots lowers the slots."""
    tensorrt_max_num_tokens: int = Field(default=8192, ge=64)
    """Tokens in one step, of prompts and outputs together."""
    tensorrt_max_seq_len: int = Field(default=0, ge=0)
    """Prompt and output of one generation; 0: the context of the worker."""
    tensorrt_chunked_prefill: bool = True
    """Read long prompts in pieces between the tokens of others. Without it no prompt may exceed MAX_NUM_TOKENS."""
    tensorrt_capacity_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    """`max_utilization` packs more and may have to read a generation again."""
    tensorrt_stream_interval: int = Field(default=1, ge=1, le=128)
    """Tokens between two outputs of a stream."""

    tensorrt_kv_free_gpu_memory_fraction: float = Field(default=0.9, gt=0, le=1)
    """Share of the memory that is free after loading which the KV cache takes."""
    tensorrt_kv_max_tokens: int = Field(default=0, ge=0)
    """0: as many as the memory holds."""
    tensorrt_kv_tokens_per_block: int = Field(default=32, ge=1, le=1024)
    """Prefixes are shared in whole blocks."""
    tensorrt_kv_cache_dtype: str = "auto"
    """`fp8` halves the cache where the model allows."""
    tensorrt_kv_host_cache_bytes: int = Field(default=0, ge=0)
    """Host memory for blocks that the GPU has no room for."""
    tensorrt_kv_block_reuse: bool = True
    """Prefixes already read are not read again; only within one account (docs/gpu.md, salts)."""
    tensorrt_kv_event_buffer: int = Field(default=0, ge=0)
    """Events of blocks that are kept until they are counted; 0: none are made."""

    tensorrt_iteration_stats: bool = True
    """How full the engine is, from itself. Without: estimated from the tokens of what runs."""
    tensorrt_system_prompt_priority: int = Field(default=90, ge=0, le=100)
    """Retention of a system prompt's blocks; the others have 35. 0: none of their own."""
    tensorrt_warm_up_s: float = Field(default=120.0, gt=0)
    """How long the first short generation may take after loading."""
    tensorrt_usage_reports: bool = False
    """The library may tell its maker about machine and model; by itself it would."""
    tensorrt_extra: Annotated[dict[str, Any], NoDecode] = Field(default_factory=dict)
    """Further arguments of `tensorrt_llm.LLM`, a JSON object; they win over ours."""

    @model_validator(mode="before")
    @classmethod
    def _read_extra(cls, values: Any) -> Any:
        given = values.get("tensorrt_extra") if isinstance(values, dict) else None
        if not isinstance(given, str):
            return values
        try:
            extra = json.loads(given or "{}")
        except ValueError as error:
            raise ValueError(f"TURNLOG_TENSORRT_EXTRA is no JSON: {error}") from error
        if not isinstance(extra, dict):
            raise ValueError("TURNLOG_TENSORRT_EXTRA: a JSON object is needed")  # noqa: TRY004 - pydantic wants it
        return {**values, "tensorrt_extra": extra}

    def packages(self) -> tuple[str, ...]:
        """The library."""
        return ("tensorrt_llm",)

    @model_validator(mode="after")
    def _events_need_reuse(self) -> Self:
        if self.tensorrt_kv_event_buffer and not self.tensorrt_kv_block_reuse:
            raise ValueError("TURNLOG_TENSORRT_KV_EVENT_BUFFER needs TURNLOG_TENSORRT_KV_BLOCK_REUSE")
        return self
