"""One generation's answer: from the parts of an upstream's stream to chunks that may be shown, and counted tokens."""

import math
from collections.abc import Awaitable, Callable

from inference_workers.chunks import ChunkStream
from inference_workers.engine import EngineError, Finish, GenerationRequest, InvalidRequest
from inference_workers.engines.chat_completions import Characters, Part, Tokens, finish_of
from inference_workers.engines.failures import Failed, Source, of_words
from inference_workers.text import TextAssembler

MESSAGE_TOKENS = 4
"""What a chat template adds to each message, for estimates."""


CHARACTERS_PER_TOKEN = 64
"""More than any vocabulary's tokens have over a whole answer: an answer that is longer than its token limit times
this is none."""

CHUNKS_PER_TOKEN = 16
"""An upstream that tells of fewer tokens than one for so many chunks has not counted."""

SPARE_TOKENS = 16
"""Beyond the token limit and an eighth of it an upstream's count is not believed: it may count an end, or a thought."""

OVERRUN = 4
OVERRUN_SPARE = 64
"""An upstream that does not keep the token limit is stopped at so many times the limit, and these. Not at the limit
itself, because where tokens are counted by chunks there may be more chunks than tokens."""


class TooMuchText(ValueError):
    """An answer is longer than its token limit allows."""


class Answer:
    """What has come for one generation. Over its retries too: nothing counts before it has `begun`."""

    __slots__ = (
        "_assembler",
        "_characters",
        "_chunks",
        "_estimate",
        "_most",
        "_output_most",
        "_prompt_most",
        "_stopped",
        "_text_left",
        "_word",
        "begun",
        "stream",
    )

    def __init__(
        self,
        request: GenerationRequest,
        close: Callable[[], Awaitable[None]],
        bytes_per_token: float,
        context_tokens: int,
    ) -> None:
        """The request is one that `engine.check` takes; `context_tokens` bound what an upstream may say it read."""
        self.stream = ChunkStream(close)
        self.begun = False
        """Some of the answer has come, shown or thought."""
        self._assembler = TextAssembler(tuple(filter(None, request.stop)))
        self._characters = Characters()
        self._estimate = sum(
            MESSAGE_TOKENS + math.ceil(len(message.content.encode()) / bytes_per_token) for message in request.messages
        )
        self._most = OVERRUN * request.max_tokens + OVERRUN_SPARE
        self._text_left = CHARACTERS_PER_TOKEN * (request.max_tokens + OVERRUN_SPARE)
        self._prompt_most = context_tokens + context_tokens // 4 + OVERRUN_SPARE
        self._output_most = request.max_tokens + request.max_tokens // 8 + SPARE_TOKENS
        self._chunks = 0
        self._word: str | None = None
        self._stopped = False

    @property
    def told(self) -> bool:
        """Whether the end has come: what may still follow is not needed."""
        return self._stopped or self._word is not None

    def accepted(self) -> None:
        """An upstream works on the prompt; how long it is, is estimated until the upstream says."""
        self._word = None
        self.stream.input_tokens, self.stream.counted = self._estimate, False

    def take(self, part: Part) -> bool:
        """The next part; True when a stop sequence or far more than the limit has come, and the rest is not wanted.

        Raises:
            TooMuchText: more than any answer of so many tokens can be. Nothing of the part counts.
        """
        self._text_left -= len(part.text)
        if self._text_left < 0:
            raise TooMuchText("the text is longer than the token limit allows")
        tokens = self._count(part)
        self.begun = self.begun or bool(part.text) or part.thought
        shown = self._assembler.add(self._characters.add(part.text).encode())
        if shown.text or tokens:
            self.stream.feed(shown.text, tokens)
        self._word = part.finish or self._word
        self._stopped = shown.stopped
        if self.stream.output_tokens > self._most:
            self._word = self._word or "length"
            return True
        return shown.stopped

    def _count(self, part: Part) -> int:
        """Tokens that are new with this part."""
        stream, some = self.stream, bool(part.text or part.thought)
        self._chunks += some
        if part.tokens is None or not self._credible(part.tokens):
            stream.counted = stream.counted and not some and part.tokens is None
            return int(some)
        stream.counted = True
        stream.input_tokens, stream.cached_tokens = part.tokens.prompt, part.tokens.cached
        new = part.tokens.output - stream.output_tokens
        if new < 0:  # more chunks than tokens: the upstream's count holds
            stream.output_tokens = part.tokens.output
        return max(0, new)

    def _credible(self, tokens: Tokens) -> bool:
        """Whether the upstream's count may be one of this generation. Some servers send zeros until the end."""
        return (
            0 < tokens.prompt <= self._prompt_most
            and (tokens.output > 0 or not self.begun)
            and self._chunks <= CHUNKS_PER_TOKEN * (tokens.output + 1)
            and tokens.output <= self._output_most
        )

    def end(self, source: Source) -> None:
        """The stream is over.

        Raises:
            Failed: it broke off.
            EngineError: it ended in a way that is no answer.
        """
        if self._stopped:
            self.stream.feed("", 0, "stop")
            return
        if self._word is None:
            raise Failed(of_words(source, "broken", "the stream ended without a finish_reason"))
        finish = finish_of(self._word)
        match finish:
            case "stop" | "length":
                self._finish(finish)
            case "aborted":
                raise Failed(of_words(source, "broken", f"it broke off: finish_reason {self._word}"))
            case "filtered":
                text = of_words(source, "request", f"its content filter ended the answer ({self._word})").text
                raise EngineError(text) if self.begun else InvalidRequest(text)
            case "tool":
                raise EngineError(of_words(source, "request", "it called a tool, which nobody offered").text)
            case "unknown":
                raise EngineError(of_words(source, "broken", f"unknown finish_reason {self._word!r}").text)

    def _finish(self, finish: Finish) -> None:
        last = self._assembler.add(self._characters.rest().encode())
        rest = self._assembler.finish(cut=finish == "length")
        self.stream.feed(last.text + rest.text, 0, "stop" if rest.stopped else finish)
