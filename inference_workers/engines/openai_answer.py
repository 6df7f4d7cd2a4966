"""One generation's answer: from the parts of an upstream's stream to chunks that may be shown, and counted tokens."""

import math
from collections.abc import Awaitable, Callable

from inference_workers.chunks import ChunkStream
from inference_workers.engine import EngineError, Finish, GenerationRequest, InvalidRequest
from inference_workers.engines.chat_completions import Characters, Part, Tokens, finish_of
from inference_workers.engines.failures import Failed, Source, of_words
from inference_workers.text import TextAssembler
from schemas.values import Usage

MESSAGE_TOKENS = 4
"""What a chat template adds to each message, for estimates."""


OVERRUN = 4
OVERRUN_SPARE = 64
"""An upstream that does not keep the token limit is stopped at so many times the limit, and these. Not at the limit
itself, because where tokens are counted by chunks there may be more chunks than tokens."""


class CountedStream(ChunkStream):
    """A stream that says whether its tokens were counted by the upstream."""

    __slots__ = ("counted",)

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(close)
        self.counted = True

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_input_tokens=self.cached_tokens,
            counted=self.counted,
        )


class Answer:
    """What has come for one generation. Over its retries too: nothing counts before it has `begun`."""

    __slots__ = ("_assembler", "_characters", "_estimate", "_most", "_stopped", "_word", "begun", "stream")

    def __init__(
        self, request: GenerationRequest, close: Callable[[], Awaitable[None]], bytes_per_token: float
    ) -> None:
        self.stream = CountedStream(close)
        self.begun = False
        """Some of the answer has come, shown or thought."""
        self._assembler = TextAssembler(tuple(filter(None, request.stop)))
        self._characters = Characters()
        self._estimate = sum(
            MESSAGE_TOKENS + math.ceil(len(message.content.encode()) / bytes_per_token) for message in request.messages
        )
        self._most = OVERRUN * request.max_tokens + OVERRUN_SPARE
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
        """The next part; True when a stop sequence or far more than the limit has come, and the rest is not wanted."""
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
        stream = self.stream
        if part.tokens is None or not _credible(part.tokens, begun=self.begun):
            new = 1 if part.text or part.thought else 0
            stream.counted = stream.counted and not new
            return new
        stream.counted = True
        stream.input_tokens, stream.cached_tokens = part.tokens.prompt, part.tokens.cached
        new = part.tokens.output - stream.output_tokens
        if new < 0:  # more chunks than tokens: the upstream's count holds
            stream.output_tokens = part.tokens.output
        return max(0, new)

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


def _credible(tokens: Tokens, *, begun: bool) -> bool:
    """Some servers send zeros until the end."""
    return tokens.prompt > 0 and (tokens.output > 0 or not begun)
