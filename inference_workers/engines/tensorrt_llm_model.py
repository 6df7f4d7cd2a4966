"""A model that TensorRT-LLM has loaded: prompts in, ids out. No queue, no text that grows: that is the engine's."""

import copy
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from inference_workers.engine import ContextTooLong, EngineUnavailable, GenerationRequest, InvalidRequest
from inference_workers.engines.tensorrt_llm_api import Library, llm_arguments, retention
from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings
from schemas.values import PromptMessage

_TOO_LONG = re.compile(r"max_seq_len|max_num_tokens|max_input_len|prompt length|context length", re.IGNORECASE)


class Model:
    """A loaded model. All calls from the thread that made it, except `render`."""

    def __init__(self, library: Library, settings: TensorRtLlmSettings, slots: int, context_tokens: int) -> None:
        """Load it; takes minutes.

        Raises:
            EngineUnavailable: it cannot be loaded with these settings.
        """
        self.library = library
        self._priority = settings.tensorrt_system_prompt_priority if settings.tensorrt_kv_block_reuse else 0
        if settings.tensorrt_kv_block_reuse and "cache_salt" not in library.optional:
            raise EngineUnavailable(
                f"TensorRT-LLM {library.version} has no cache_salt, so accounts would share cached prefixes: install"
                " a newer one, or set TURNLOG_TENSORRT_KV_BLOCK_REUSE=false"
            )
        arguments = llm_arguments(library, settings, slots, context_tokens)
        try:
            self._llm = library.module.LLM(**arguments)
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            raise EngineUnavailable(
                f"TensorRT-LLM {library.version} cannot load {settings.tensorrt_model!r}: {error}"
            ) from error
        tokenizer = getattr(self._llm, "tokenizer", None)
        if tokenizer is None:
            raise EngineUnavailable(
                f"{settings.tensorrt_model!r} has no tokenizer: name one in TURNLOG_TENSORRT_TOKENIZER"
            )
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        self._renderer = copy.deepcopy(self._tokenizer)  # a fast tokenizer must not be used by two threads at once
        self._pinned: dict[str, tuple[int, ...]] = {}

    def render(self, messages: Sequence[PromptMessage]) -> tuple[list[int], int]:
        """The prompt's ids, and how many at its beginning are the system prompt. In one thread, any one.

        Raises:
            InvalidRequest: the model's chat template does not take these messages.
        """
        try:
            ids = self._ids(messages, answer=True)
        except self.library.template_errors as error:
            raise InvalidRequest(f"messages: the model's chat template does not take them: {error}") from error
        if messages[0].role != "system" or not self._priority:
            return ids, 0
        return ids, common_length(ids, self._system(messages[0]))

    def _system(self, message: PromptMessage) -> Sequence[int]:
        known = self._pinned.get(message.content)
        if known is None:
            try:
                known = tuple(self._ids((message,), answer=False))
            except self.library.template_errors:
                known = ()  # a template that wants a user's message
            if len(self._pinned) >= 256:
                self._pinned.clear()
            self._pinned[message.content] = known
        return known

    def _ids(self, messages: Sequence[PromptMessage], *, answer: bool) -> list[int]:
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        rendered = self._renderer.apply_chat_template(
            conversation, tokenize=True, add_generation_prompt=answer, return_dict=False
        )
        if isinstance(rendered, Mapping):
            rendered = rendered["input_ids"]
        return [int(token) for token in (rendered[0] if rendered and isinstance(rendered[0], list) else rendered)]

    def decode(self, ids: Sequence[int]) -> str:
        """The full decode: no special tokens, no tidied spaces."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str) -> list[int]:
        """The text's ids, without special tokens."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def submit(self, request: GenerationRequest, prompt: list[int], pinned: int, max_tokens: int) -> Any:
        """Begin; the request's output, iterated until it has `finished`: the same object each time.

        Raises:
            InvalidRequest: the library does not accept it.
        """
        more: dict[str, Any] = {}
        if "cache_salt" in self.library.optional and request.cache_salt is not None:
            more["cache_salt"] = request.cache_salt
        if "priority" in self.library.optional:
            more["priority"] = min(1.0, max(0.0, request.priority))
        if "kv_cache_retention_config" in self.library.optional and pinned and self._priority:
            more["kv_cache_retention_config"] = retention(self.library.module, pinned, self._priority)
        try:
            return self._llm.generate_async(
                prompt, sampling_params=self._sampling(request, max_tokens), streaming=True, **more
            )
        except ValueError as error:
            raise refusal(str(error)) from error

    def _sampling(self, request: GenerationRequest, max_tokens: int) -> Any:
        """Everything is said: the library's defaults are others (32 tokens, its own seed)."""
        return self.library.module.SamplingParams(
            max_tokens=max_tokens,
            temperature=request.temperature or 1.0,  # some versions refuse 0; with top_k=1 all of them are greedy
            top_p=request.top_p,
            top_k=(request.top_k or 0) if request.temperature else 1,
            seed=secrets.randbits(31) if request.seed is None else request.seed % 2**63,
            stop=list(request.stop) or None,
            include_stop_str_in_output=True,  # the ids stay whole; the text is cut by ourselves
            **({"detokenize": False} if self.library.detokenizes_by_wish else {}),
        )

    def stats(self, timeout_s: float) -> AsyncIterator[Mapping[str, Any]]:
        """Statistics of the iterations; ends when none came for so long. One consumer only."""
        return _again(self._llm.get_stats_async(timeout_s))

    def kv_events(self, timeout_s: float) -> AsyncIterator[Mapping[str, Any]]:
        """Events of the KV cache's blocks, likewise."""
        return _again(self._llm.get_kv_cache_events_async(timeout_s))

    def shutdown(self) -> None:
        """Stop. May take long, or never end, when the engine is dead."""
        self._llm.shutdown()


def refusal(message: str) -> InvalidRequest:
    """What the library says of a request that it does not take."""
    return ContextTooLong(message) if _TOO_LONG.search(message) else InvalidRequest(message)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids at the beginning are the same."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def _again(result: Any) -> AsyncIterator[Mapping[str, Any]]:
    """It ends when nothing came for a while and then stays ended until the next request: begin anew."""
    begin = getattr(result, "mark_undone", None)
    if begin is not None:
        begin()
    rounds: AsyncIterator[Mapping[str, Any]] = result
    return rounds
