"""How many tokens a request's texts are, by the model's own tokenizer. The only module that imports
tokenizers.

Rules:

1. A model's tokenizer is a file: a `tokenizer.json`, or a GGUF with a byte-pair vocabulary in it (TURNLOG_TOKENIZERS).
   It is read on a thread while the process serves; until it is there, and for models without one, a token is taken for
   `Model.bytes_per_token` bytes.
2. What the model's template puts around messages is taken for `MESSAGE_TOKENS` each and `PROMPT_TOKENS` once. Names of
   special tokens in a text are counted as the text that they are.
3. Long texts are counted on a thread.
"""

import asyncio
import math
import mmap
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
import structlog

from schemas.models import Model

log = structlog.get_logger()

MESSAGE_TOKENS = 12
PROMPT_TOKENS = 24
"""A system prompt of the template's own, and what calls for the answer."""
AT_ONCE_CHARS = 8_192


class TokenizerUnusable(ValueError):
    """A file is no tokenizer that can be used; says which and why."""


class Tokenizer(Protocol):
    """Counts the tokens of texts."""

    def count(self, texts: Sequence[str]) -> int:
        """All together."""


class PromptTokens:
    """Counts for the models of a deployment."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._tokenizers: dict[str, Tokenizer] = {}

    def start(self) -> None:
        """Begin to read the files."""
        if self._files:
            threading.Thread(target=self._read, name="tokenizers", daemon=True).start()

    def ready(self, model: str) -> bool:
        """Whether the model's own tokenizer counts."""
        return model in self._tokenizers

    async def count(self, model: Model, texts: Sequence[str]) -> int:
        """Tokens of messages of these texts, with what the template puts around each."""
        tokenizer = self._tokenizers.get(model.name)
        around = MESSAGE_TOKENS * len(texts)
        if tokenizer is None:
            return around + estimated(model, texts)
        if sum(map(len, texts)) > AT_ONCE_CHARS:
            return around + await asyncio.to_thread(tokenizer.count, texts)
        return around + tokenizer.count(texts)

    def _read(self) -> None:
        read: dict[Path, Tokenizer] = {}
        for model, path in self._files.items():
            try:
                self._tokenizers[model] = read[path] = read.get(path) or load(path)
            except TokenizerUnusable as error:
                log.warning("prompts are estimated by their bytes", model=model, reason=str(error))
            else:
                log.info("tokenizer read", model=model, path=str(path))


def parse_tokenizers(text: str) -> Mapping[str, Path]:
    """The setting TURNLOG_TOKENIZERS: a JSON object, model -> file.

    Raises:
        ValueError: it is none, or there is no such file.
    """
    try:
        named = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"TURNLOG_TOKENIZERS: no JSON object of files by model: {error}") from error
    for model, path in named.items():
        if not Path(path).is_file():
            raise ValueError(f"TURNLOG_TOKENIZERS: {model}: there is no file {path}")
    return {model: Path(path) for model, path in named.items()}


def estimated(model: Model, texts: Sequence[str]) -> int:
    """By bytes."""
    return sum(math.ceil(len(text.encode("utf-8", "surrogatepass")) / model.bytes_per_token) for text in texts)


class _Loaded:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, texts: Sequence[str]) -> int:
        encoded = self._tokenizer.encode_batch([*texts], add_special_tokens=False)
        return sum(len(one) for one in encoded)


def load(path: Path) -> Tokenizer:
    """The tokenizer of a file.

    Raises:
        TokenizerUnusable: it is none, or of a kind that is not known here.
    """
    if not path.is_file():
        raise TokenizerUnusable(f"there is no file {path}")
    if path.suffix == ".gguf":
        return _Loaded(_of_gguf(path))
    from tokenizers import Tokenizer as Rust

    try:
        return _Loaded(Rust.from_file(str(path)))
    except Exception as error:
        raise TokenizerUnusable(f"{path} is no tokenizer.json: {error}") from error


_GGUF_KEYS = tuple(f"tokenizer.ggml.{name}" for name in ("model", "pre", "tokens", "merges"))


def _of_gguf(path: Path) -> Any:
    from tokenizers import Tokenizer as Rust
    from tokenizers import models

    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            fields = _Gguf(data).fields(
                frozenset(f"tokenizer.ggml.{name}" for name in ("model", "pre", "tokens", "merges"))
            )
        kind, cut, tokens, merges = (fields[f"tokenizer.ggml.{name}"] for name in ("model", "pre", "tokens", "merges"))
    except (KeyError, ValueError, OSError, struct.error) as error:
        raise TokenizerUnusable(f"{path} holds no byte-pair tokenizer ({error}); give its tokenizer.json") from error
    before = _before(cut)
    if kind != "gpt2" or before is None:
        raise TokenizerUnusable(f"{path}: its tokenizer is a {kind}/{cut}, not known here; give its tokenizer.json")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Rust(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = before
    return tokenizer


class _Gguf:
    """The metadata of a GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

    The package `gguf` takes seconds for a vocabulary, during which this process would serve nobody.
    """

    SIZES: ClassVar = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    STRING, ARRAY = 8, 9

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def fields(self, wanted: frozenset[str]) -> dict[str, Any]:
        """Texts and lists of texts by their keys. Raises `ValueError` or `struct.error`."""
        if self._data[:4] != b"GGUF":
            raise ValueError("no GGUF")
        self._at = 16
        found: dict[str, Any] = {}
        for _ in range(self._number("<Q")):
            key = self._text()
            value = self._value(self._number("<I"))
            if key in wanted:
                found[key] = value
                if len(found) == len(wanted):
                    break
        return found

    def _value(self, kind: int) -> Any:
        if kind == self.STRING:
            return self._text()
        if kind == self.ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            if inner == self.STRING:
                return [self._text() for _ in range(count)]
            self._at += self.SIZES[inner] * count
            return None
        self._at += self.SIZES[kind]
        return None

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(number)

    def _text(self) -> str:
        size = self._number("<Q")
        self._at += size
        return self._data[self._at - size : self._at].decode("utf-8", "replace")


_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _before(kind: str) -> Any:
    """How text is cut before pairs are merged, by the name that GGUF has for it; None: not known."""
    from tokenizers import Regex, pre_tokenizers

    def split(pattern: str) -> Any:
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])

    match kind:
        case "smollm" | "starcoder" | "refact" | "command-r":
            level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
        case "gpt-2" | "default":
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        case "llama-bpe" | "llama3":
            return split(_LLAMA3)
        case "qwen2":
            return split(_QWEN2)
        case _:
            return None
