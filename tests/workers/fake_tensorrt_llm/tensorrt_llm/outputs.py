"""What comes back: a request's output, and the shared queues of statistics and events."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm import faults


class RequestError(RuntimeError):
    """An error of one request."""


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _last_text_len: int = 0
    _last_token_ids_len: int = 0

    @property
    def text_diff(self) -> str:
        return self.text[self._last_text_len :]

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]


@dataclass
class Response:
    """What the executor sends: ids, and perhaps an end or an error."""

    ids: list[int]
    finish: str | None = None
    stop_reason: str | None = None
    error: str | None = None


class RequestOutput:
    """Iterating it gives itself, changed by what has come."""

    def __init__(self, executor: Any, request_id: int, prompt: list[int], params: Any) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt
        self.sampling_params = params
        self.outputs = [CompletionOutput(0)]
        self.queue: asyncio.Queue[Response] = asyncio.Queue()
        self._executor = executor
        self._done = False
        if not faults.current.no_cached_tokens:
            self.cached_tokens = 0

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        self._executor.abort_request(self.request_id)

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self._done:
            raise StopAsyncIteration
        response = await self.queue.get()
        while faults.current.coalesced and response.error is None and not self.queue.empty():
            more = self.queue.get_nowait()
            response = Response(response.ids + more.ids, more.finish, more.stop_reason, more.error)
        self._handle(response)
        return self

    def _handle(self, response: Response) -> None:
        self._executor.raise_background_error()
        if response.error is not None:
            raise RequestError(response.error)
        output, params = self.outputs[0], self.sampling_params
        before = len(output.token_ids)
        back = 2 if faults.current.repeated_diffs else -1 if faults.current.skipped_diffs else 0
        output._last_token_ids_len = max(0, before - back)
        output._last_text_len = max(0, len(output.text) - back)
        output.token_ids.extend(response.ids)
        self._done = response.finish is not None
        output.finish_reason = response.finish
        output.stop_reason = response.stop_reason
        if response.stop_reason is not None and not params.include_stop_str_in_output:
            length = len(params._stop_ids[params.stop.index(response.stop_reason)])
            output.token_ids = output.token_ids[:-length]
        if params.detokenize or faults.current.no_detokenize:
            text = self._executor.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            output.text = text.replace(" ", "") if faults.current.lost_spaces else text


class IterationResult:
    """One shared queue. It ends when nothing came for `timeout`, and stays ended until `mark_undone`."""

    def __init__(self) -> None:
        self._done = False
        self._timeout: float = 2
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    def set_timeout(self, timeout: float) -> None:
        self._timeout = timeout

    def mark_undone(self) -> None:
        self._done = False

    def __aiter__(self) -> "IterationResult":
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._done:
            raise StopAsyncIteration
        try:
            return json.loads(await asyncio.wait_for(self.queue.get(), self._timeout))
        except TimeoutError:
            self._done = True
            raise StopAsyncIteration from None


async def empty_async_iterable() -> AsyncIterator[Any]:
    for nothing in ():
        yield nothing
