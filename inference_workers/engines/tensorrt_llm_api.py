"""The installed TensorRT-LLM, found and checked. The only module that imports `tensorrt_llm`.

Its API changes from release to release, so what is called is looked up first (`load`): a name that is needed and not
there ends the start with a sentence, one that may be missing is not used, and `describe` says which.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from inference_workers.engine import EngineUnavailable
from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings

HOW_TO = "install `tensorrt-llm` in an environment of CPython 3.12, on Linux with an NVIDIA driver (docs/gpu.md)"
RETENTION_DEFAULT = 35
"""What the library gives to blocks of which nobody says anything."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "LLM": ("model", "tokenizer", "tensor_parallel_size"),
    "LLM.generate_async": ("inputs", "sampling_params", "streaming"),
    "LLM.get_stats_async": ("timeout",),
    "LLM.shutdown": (),
    "SamplingParams": ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "include_stop_str_in_output"),
    "llmapi.KvCacheConfig": ("enable_block_reuse", "free_gpu_memory_fraction"),
    "llmapi.RequestOutput.abort": (),
    "llmapi.RequestOutput.finished": (),
}
"""Callables, by their place in the package, and the arguments that they have to take."""
OPTIONAL = ("cache_salt", "priority", "kv_cache_retention_config")
"""Arguments of `generate_async` that are passed where it has them."""
BY_PRIORITY = {"waiting_queue_policy": "priority"}
"""What `SchedulerConfig` has to be told: without it the library takes priorities and serves in order of arrival."""


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """The installed package, checked."""

    module: Any
    version: str
    optional: frozenset[str]
    """Those of OPTIONAL that `generate_async` has."""
    orders_by_priority: bool
    """`generate_async` takes a priority, and `SchedulerConfig` what gives it an effect (BY_PRIORITY)."""
    detokenizes_by_wish: bool
    """`SamplingParams.detokenize` exists: the library's own text, which is not used, need not be made."""
    request_error: type[Exception]
    """What is raised for one request; anything else means that the engine is dead."""
    template_errors: tuple[type[Exception], ...]
    """What a chat template raises that does not accept the messages."""

    def describe(self) -> tuple[str, ...]:
        """One line each: versions and what is used of the API."""
        lacking = sorted(set(OPTIONAL) - self.optional)
        return (
            f"tensorrt_llm {self.version}, Python {sys.version.split()[0]}",
            f"generate_async takes {', '.join(sorted(self.optional)) or 'none of the optional arguments'}",
            *([f"not in this version: {', '.join(lacking)}"] if lacking else []),
        )


def load(*, usage_reports: bool = False) -> Library:
    """The installed TensorRT-LLM. It reports to its maker only if it may.

    Raises:
        EngineUnavailable: it cannot be imported, or lacks a name that is needed; the sentence says which.
    """
    if not usage_reports:
        os.environ["TRTLLM_NO_USAGE_STATS"] = "1"  # read at its import, and by the processes that it starts
    try:
        module = importlib.import_module("tensorrt_llm")
        llmapi = importlib.import_module("tensorrt_llm.llmapi")
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineUnavailable(f"TensorRT-LLM cannot be imported ({error}): {HOW_TO}") from error
    version = str(getattr(module, "__version__", "of unknown version"))
    missing = [gap for place, names in NEEDED.items() for gap in _gaps(module, place, names)]
    request_error = getattr(llmapi, "RequestError", None) or _found(module, "executor.RequestError")
    if request_error is None:
        missing.append("llmapi.RequestError")
    if missing or request_error is None:
        raise EngineUnavailable(
            f"TensorRT-LLM {version} lacks what the engine calls: {', '.join(missing)}; written for 1.2: {HOW_TO}"
        )
    takes = _parameters(module.LLM.generate_async) or frozenset()
    optional = {name for name in OPTIONAL if name in takes}
    if retention(module, 1, RETENTION_DEFAULT) is None:
        optional.discard("kv_cache_retention_config")
    return Library(
        module=module,
        version=version,
        optional=frozenset(optional),
        orders_by_priority="priority" in optional and _takes(module, "llmapi.SchedulerConfig", BY_PRIORITY),
        detokenizes_by_wish="detokenize" in (_parameters(module.SamplingParams) or ()),
        request_error=request_error,
        template_errors=_template_errors(),
    )


def llm_arguments(library: Library, settings: TensorRtLlmSettings, slots: int, context_tokens: int) -> dict[str, Any]:
    """The arguments of `LLM`. What has the library's default is left out, so that older versions are not asked for it.

    Raises:
        EngineUnavailable: one is not known to the installed version.
    """
    kv = {
        "enable_block_reuse": settings.tensorrt_kv_block_reuse,
        "free_gpu_memory_fraction": settings.tensorrt_kv_free_gpu_memory_fraction,
        "tokens_per_block": settings.tensorrt_kv_tokens_per_block,
        **_said(
            max_tokens=settings.tensorrt_kv_max_tokens,
            host_cache_size=settings.tensorrt_kv_host_cache_bytes,
            event_buffer_max_size=settings.tensorrt_kv_event_buffer,
            dtype="" if settings.tensorrt_kv_cache_dtype == "auto" else settings.tensorrt_kv_cache_dtype,
        ),
    }
    arguments = {
        "model": settings.tensorrt_model,
        "tensor_parallel_size": settings.tensorrt_tensor_parallel_size,
        "max_batch_size": slots,
        "max_num_tokens": settings.tensorrt_max_num_tokens,
        "max_seq_len": context_tokens,
        "enable_chunked_prefill": settings.tensorrt_chunked_prefill,
        "kv_cache_config": _made(library, "llmapi.KvCacheConfig", kv),
        **_said(
            tokenizer=settings.tensorrt_tokenizer,
            revision=settings.tensorrt_revision,
            trust_remote_code=settings.tensorrt_trust_remote_code,
            dtype="" if settings.tensorrt_dtype == "auto" else settings.tensorrt_dtype,
            load_format="" if settings.tensorrt_load_format == "auto" else settings.tensorrt_load_format,
            enable_iter_perf_stats=settings.tensorrt_iteration_stats,
        ),
    }
    if settings.tensorrt_pipeline_parallel_size > 1:
        arguments["pipeline_parallel_size"] = settings.tensorrt_pipeline_parallel_size
    if settings.tensorrt_stream_interval > 1:
        arguments["stream_interval"] = settings.tensorrt_stream_interval
    policy = BY_PRIORITY if library.orders_by_priority else {}
    if settings.tensorrt_capacity_policy != "guaranteed_no_evict":
        policy = {**policy, "capacity_scheduler_policy": settings.tensorrt_capacity_policy.upper()}
    if policy:
        arguments["scheduler_config"] = _made(library, "llmapi.SchedulerConfig", policy)
    arguments |= settings.tensorrt_extra
    known = _parameters(_found(library.module, "llmapi.TorchLlmArgs"))
    unknown = sorted(set(arguments) - known) if known is not None and "backend" not in arguments else []
    if unknown:
        raise EngineUnavailable(f"TensorRT-LLM {library.version}: LLM has no argument {', '.join(unknown)}")
    return arguments


def waiting_order(library: Library, settings: TensorRtLlmSettings) -> str:
    """In which order what waits inside of the library is served, as one line."""
    if "scheduler_config" in settings.tensorrt_extra:
        return "what waits inside is served as scheduler_config of TURNLOG_TENSORRT_EXTRA says"
    if library.orders_by_priority:
        return "what waits inside is served by priority"
    lacks = "SchedulerConfig takes no waiting_queue_policy=priority"
    why = lacks if "priority" in library.optional else "generate_async takes no priority"
    return f"what waits inside is served in order of arrival: {why}"


def _said(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value}


def _made(library: Library, place: str, arguments: dict[str, Any]) -> Any:
    made: Any = _found(library.module, place)
    try:
        return made(**arguments)
    except (ValueError, TypeError) as error:
        raise EngineUnavailable(
            f"TensorRT-LLM {library.version}: {place} does not take {arguments}: {error}"
        ) from error


def _takes(module: Any, place: str, arguments: Mapping[str, Any]) -> bool:
    """Whether it can be made with these: some versions know a name and not each of its values."""
    made = _found(module, place)
    if made is None or not set(arguments) <= (_parameters(made) or frozenset(arguments)):
        return False
    try:
        made(**arguments)
    except (ValueError, TypeError):
        return False
    return True


def retention(module: Any, tokens: int, priority: int) -> Any | None:
    """The first `tokens` of a prompt keep their blocks with this priority; None where that cannot be said."""
    config = _found(module, "llmapi.KvCacheRetentionConfig")
    span: Callable[..., Any] | None = getattr(config, "TokenRangeRetentionConfig", None)
    if config is None or span is None:
        return None
    try:
        return config([span(0, tokens, priority, None)], RETENTION_DEFAULT, None)
    except (TypeError, ValueError):
        return None


def _found(module: Any, place: str) -> Any | None:
    for name in place.split("."):
        module = getattr(module, name, None)
    return module


def _parameters(made: Any) -> frozenset[str] | None:
    """The names that it takes; None where it does not say."""
    if made is None:
        return None
    fields = getattr(made, "model_fields", None)
    if isinstance(fields, Mapping):
        return frozenset(fields)
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return None
    named = frozenset(parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD)
    return named if named - {"self", "args"} else None


def _gaps(module: Any, place: str, names: Iterable[str]) -> list[str]:
    found = _found(module, place)
    if found is None:
        return [place]
    takes = _parameters(found) if names else None
    return [f"{place}({name})" for name in names if takes is not None and name not in takes]


def _template_errors() -> tuple[type[Exception], ...]:
    """A template is a program of the model's: what it raises is about the messages that it was given."""
    raised = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
    try:
        jinja2 = importlib.import_module("jinja2")
    except ImportError:
        return raised
    return (*raised, jinja2.TemplateError)
