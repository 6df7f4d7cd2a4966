"""What a request asks of the simulated engine: its prompt in tokens, and the answer it will get.

A prompt is the words of its messages and the role of each, one token each, and the role that answers. The answer is
words by chance, its length too: the same for the same seed or, without one, the same messages.

Where the newest user message is a JSON object it may say more, every member being optional:

    {"output_tokens": 200, "prompt_tokens": 1155, "prefix": [0, 14, 15], "hang_at": 5, "crash_at": 5}

- `output_tokens`: the answer has exactly that many tokens, or `max_tokens` if those are fewer.
- `prefix`: the prompt begins with a block of `prefix_block_tokens` tokens for each number; equal numbers are equal
  tokens. So traces with hashed prefixes are replayed with small messages.
- `prompt_tokens`: the prompt counts as so many tokens: what there is (`prefix`, then the messages) is cut to that
  length, or followed by tokens that are equal for equal messages only.
- `hang_at`, `crash_at`: after that many tokens this generation falls silent, or the process is killed.

Other members are ignored; an object that has one of these with a wrong type is text like any other.
"""

import hashlib
import random
import zlib
from typing import Annotated

import msgspec

from inference_workers.engine import GenerationRequest
from inference_workers.engines.kv_blocks import Run, chain, root
from inference_workers.engines.sequences import Sequence
from inference_workers.engines.simulation import SimulatedSettings
from inference_workers.text import even_edges

WORDS = ("the", "log", "is", "an", "ordered", "record", "über", "naïve", "数据", "流", "🎉", "of", "what", "happened")

TOKENS = tuple(f" {WORDS[code % len(WORDS)]}" for code in range(256))
"""Text of a token of an answer, by its code; the first of an answer has no space."""

TOKEN_IDS = tuple(zlib.crc32(token.strip().encode()) for token in TOKENS)
"""The same tokens as they count in the next prompt."""

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a message says about its own generation."""

    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    prefix: tuple[int, ...] = ()
    hang_at: Count | None = None
    crash_at: Count | None = None


_NOTHING = Asked()
_decode = msgspec.json.Decoder(Asked).decode


class Answer(msgspec.Struct, frozen=True):
    """The tokens of a whole answer. `pieces` where they end in the middle of characters, else `codes`."""

    codes: bytes
    pieces: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.codes)

    def text(self, position: int) -> str:
        """A token, where characters are not split."""
        text = TOKENS[self.codes[position]]
        return text if position else text[1:]

    def data(self, position: int) -> bytes:
        """A token's bytes."""
        return self.pieces[position] if self.pieces else self.text(position).encode()


def asked(request: GenerationRequest) -> Asked:
    """What the newest user message says."""
    newest = next((message.content for message in reversed(request.messages) if message.role == "user"), "")
    if not newest.lstrip().startswith("{"):
        return _NOTHING
    try:
        return _decode(newest)
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING


def prompt(request: GenerationRequest, wish: Asked, settings: SimulatedSettings) -> tuple[Run, ...]:
    """The prompt's tokens, in parts."""
    words = [word for message in request.messages for word in (message.role, *message.content.split())]
    ids = tuple(zlib.crc32(word.encode()) for word in (*words, "assistant"))
    runs = [*(Run(name=number, length=settings.prefix_block_tokens) for number in wish.prefix), Run(tokens=ids)]
    if wish.prompt_tokens is None:
        return tuple(runs)
    kept: list[Run] = []
    left = wish.prompt_tokens
    for run in runs:
        if run.size > left:
            run = Run(tokens=run.tokens[:left], name=run.name, length=min(run.length, left))  # noqa: PLW2901
        if left:
            kept.append(run)
            left -= run.size
    if left:
        kept.append(Run(name=_digest(request), length=left))
    return tuple(kept)


def answer(request: GenerationRequest, wish: Asked, settings: SimulatedSettings) -> Answer:
    """The whole answer, before any limit."""
    from_what = _digest(request) if request.seed is None else request.seed
    chance = random.Random(f"{settings.seed}/{from_what}")
    count = wish.output_tokens or 1 + int(chance.expovariate(1 / settings.output_tokens_mean))
    codes = chance.randbytes(count)
    if not settings.faults.split_utf8:
        return Answer(codes)
    codes = codes[: settings.context_tokens]  # more of it will never be seen, and cutting it takes time
    data = "".join(TOKENS[code] for code in codes)[1:].encode()
    return Answer(codes, tuple(data[start:end] for start, end in even_edges(len(data), len(codes))))


def sequence(
    request: GenerationRequest, runs: tuple[Run, ...], given: Answer, room: int, settings: SimulatedSettings
) -> Sequence:
    """The request in the model; `room`: tokens that it may give."""
    first = root(request.cache_salt or "")
    return Sequence(
        id=request.id,
        prompt_tokens=sum(run.size for run in runs),
        prompt=chain(runs, settings.block_tokens, first),
        first=first,
        output=tuple(map(TOKEN_IDS.__getitem__, given.codes[:room])),
        length=min(len(given), room),
        limit=room,
    )


def _digest(request: GenerationRequest) -> int:
    """A number for the messages."""
    digest = hashlib.blake2b(digest_size=8)
    for message in request.messages:
        digest.update(f"{message.role} {len(message.content)} {message.content}".encode())
    return int.from_bytes(digest.digest()) >> 1
