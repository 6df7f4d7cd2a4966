"""The context of a turn: which messages of its branch the model gets. A sliding window, in whole blocks.

1. The system prompt (the newest on the branch) and the newest message are always in.
2. A message that brought a history of its own is preceded by that, and by nothing else of its branch.
3. Replies that were refused or are empty are left out; messages of one role that then follow each other are joined,
   because chat templates want roles to alternate.
4. Everything fits: when prompt and output exceed the model's context, old messages are dropped. The cut is moved in
   blocks of a quarter of the room, counted from the root, so that from turn to turn the prefix mostly stays and the
   engine's prefix cache hits. The window begins with a user message.
5. A message that does not fit alone shortens the output, down to `OUTPUT_TOKENS_MIN`; then it is too large.

Tokens are estimated from bytes (`Model.bytes_per_token`); the worker's tokenizer has the last word.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from schemas.conversation import Message
from schemas.events import MessageSubmitted
from schemas.models import Model
from schemas.values import Notice, PromptMessage

MESSAGE_TOKENS = 8
"""What a chat template puts around a message, at most."""
OUTPUT_TOKENS_MIN = 16
BLOCKS = 4


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A context that fits."""

    prompt: tuple[PromptMessage, ...]
    prompt_tokens: int
    output_tokens_max: int
    notices: tuple[Notice, ...] = ()


class TooLarge(msgspec.Struct, frozen=True, kw_only=True):
    """The newest message with the system prompt leaves no room to answer."""

    prompt_tokens: int
    prompt_tokens_max: int


def estimate(text: str, model: Model) -> int:
    """Tokens of one message, its template included."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / model.bytes_per_token) + MESSAGE_TOKENS


def fit(path: Sequence[Message], model: Model, output_tokens: int | None) -> Fitted | TooLarge:
    """The context for the answer to the last message of a path from the root.

    Args:
        path: ends with the user message to be answered.
        model: whose limits count.
        output_tokens: longest output that was asked for; None: the model's default.
    """
    path = _self_contained(path)
    system = system_prompt(path)
    spoken = [said for message in path for said in _spoken(message)]
    costs = [estimate(said.content, model) for said in spoken]
    fixed = estimate(system, model) if system else 0
    alone = fixed + costs[-1]
    if alone + OUTPUT_TOKENS_MIN > model.context_tokens:
        return TooLarge(prompt_tokens=alone, prompt_tokens_max=model.context_tokens - OUTPUT_TOKENS_MIN)
    asked = min(output_tokens or model.output_tokens_default, model.output_tokens_max)
    output = min(asked, model.context_tokens - alone)
    start = _start([said.role for said in spoken], costs, model.context_tokens - output - fixed)
    return Fitted(
        prompt=_prompt(system, spoken[start:]),
        prompt_tokens=fixed + sum(costs[start:]),
        output_tokens_max=output,
        notices=(_shortened(output),) if output < asked else (),
    )


def system_prompt(path: Sequence[Message]) -> str | None:
    """The newest system prompt that a message of the path brought."""
    for message in reversed(path):
        if isinstance(message.request, MessageSubmitted) and message.request.system is not None:
            return message.request.system or None
    return None


def _self_contained(path: Sequence[Message]) -> Sequence[Message]:
    """The path from the newest message on that brought its own history."""
    for index in range(len(path) - 1, -1, -1):
        request = path[index].request
        if path[index].role == "user" and isinstance(request, MessageSubmitted) and request.history:
            return path[index:]
    return path


def _spoken(message: Message) -> tuple[PromptMessage, ...]:
    """What was said with a message: its history, and itself unless it does not count."""
    request = message.request
    before = request.history if message.role == "user" and isinstance(request, MessageSubmitted) else ()
    if message.role == "assistant" and (message.status == "refused" or message.text == ""):
        return ()
    return (*before, PromptMessage(role=message.role, content=message.text))


def _start(roles: Sequence[str], costs: Sequence[int], room: int) -> int:
    """Index of the first message of the window."""
    before = [0, *accumulate(costs)]
    excess = before[-1] - room
    if excess <= 0:
        return 0
    block = max(1, room // BLOCKS)
    cut = math.ceil(excess / block) * block
    last = len(costs) - 1
    starts = (index for index in range(last) if before[index] >= cut and roles[index] == "user")
    return next(starts, last)


def _prompt(system: str | None, spoken: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
    prompt: list[PromptMessage] = [PromptMessage(role="system", content=system)] if system else []
    for said in spoken:
        if prompt and prompt[-1].role == said.role:
            joined = f"{prompt[-1].content}\n\n{said.content}"
            prompt[-1] = PromptMessage(role=said.role, content=joined)
        else:
            prompt.append(said)
    return tuple(prompt)


def _shortened(output: int) -> Notice:
    return Notice(code="output_shortened", detail=f"The message leaves room for {output} tokens of reply.")
