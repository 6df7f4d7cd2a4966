"""What was said, from the lists of messages that OpenAI's clients send.

Rules:

1. Messages of `system` and `developer`, wherever they stand, are one system prompt: their texts in order, with a blank
   line between them (behind `instructions`, where there are any).
2. The last of the others must be the user's: it is the new message. Those before it are its history.
3. A message's parts are texts only, joined with a blank line between them.
4. What is no text, or has a name that is not known here, is refused by its place (`input[2].content[0]`). Of what the
   service itself has sent and gets back, ids, statuses and empty members say nothing.

Sources: https://platform.openai.com/docs/api-reference/responses/create, …/chat/create
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from api.problems import bad_request
from schemas.limits import HISTORY_MESSAGES_MAX
from schemas.values import PromptMessage, Role

Wrong = list[tuple[str, str]]

WRONG_MAX = 20
"""So many wrong places are told at once."""
SYSTEM_JOIN = "\n\n"
PART_JOIN = "\n\n"
UNSUPPORTED = "is not supported; leave it out"

_ROLES: dict[object, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_EMPTY: tuple[object, ...] = (None, [], {}, "")


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """How one API writes messages."""

    list_name: str
    part_types: frozenset[str]
    """Those that are text."""
    echoed: frozenset[str]
    """Members of a message that say nothing when it comes back."""
    echoed_in_parts: frozenset[str] = frozenset()


RESPONSES = Grammar(
    list_name="input",
    part_types=frozenset({"input_text", "output_text", "text"}),
    echoed=frozenset({"id", "status", "phase"}),
    echoed_in_parts=frozenset({"annotations", "logprobs"}),
)
CHAT = Grammar(list_name="messages", part_types=frozenset({"text"}), echoed=frozenset())


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says: the new message, what was said before it, and the system prompt."""

    content: str
    place: str
    """Where the new message stands."""
    history: tuple[PromptMessage, ...] = ()
    system: str | None = None


def said(messages: object, grammar: Grammar, instructions: str | None = None) -> Said:
    """What a list of messages says. Raises `Problem` 400 with each wrong place."""
    if not isinstance(messages, list):
        raise bad_request([(grammar.list_name, "must be a list of messages")])
    wrong: Wrong = []
    spoken: list[tuple[str, PromptMessage]] = []
    system = [instructions] if instructions else []
    for index, message in enumerate(messages):
        place = f"{grammar.list_name}[{index}]"
        read = _message(message, place, grammar, wrong)
        if len(wrong) >= WRONG_MAX:
            break
        if read is not None and read.role == "system":
            system.append(read.content)
        elif read is not None:
            spoken.append((place, read))
    _check_order([one.role for _, one in spoken], grammar.list_name, wrong)
    if wrong:
        raise bad_request(wrong)
    place, newest = spoken[-1]
    return Said(
        content=newest.content,
        place=place,
        history=tuple(one for _, one in spoken[:-1]),
        system=SYSTEM_JOIN.join(text for text in system if text) or None,
    )


def _check_order(roles: list[Role], name: str, wrong: Wrong) -> None:
    if wrong:
        return
    if not roles or roles[-1] != "user":
        wrong.append((name, "must end with a message of the user"))
    if len(roles) - 1 > HISTORY_MESSAGES_MAX:
        wrong.append((name, f"must have at most {HISTORY_MESSAGES_MAX} messages before the newest"))


def _message(message: object, place: str, grammar: Grammar, wrong: Wrong) -> PromptMessage | None:
    if not isinstance(message, dict):
        wrong.append((place, "must be a message: a JSON object"))
        return None
    kind = message.get("type", "message")
    if kind != "message" or (grammar is CHAT and "type" in message):
        wrong.append((f"{place}.type", f"{_named(kind)} {UNSUPPORTED}"))
        return None
    role = _ROLES.get(message.get("role")) if isinstance(message.get("role"), str) else None
    if role is None:
        told = f"must be user, assistant, system or developer; {_named(message.get('role'))} is not supported"
        wrong.append((f"{place}.role", told))
        return None
    before = len(wrong)
    _check_names(message, place, {"type", "role", "content"} | grammar.echoed, wrong)
    text = _text(message.get("content"), f"{place}.content", grammar, wrong)
    return PromptMessage(role=role, content=text) if len(wrong) == before else None


def _text(content: object, place: str, grammar: Grammar, wrong: Wrong) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        wrong.append((place, "must be a text or a list of text parts"))
        return ""
    texts: list[str] = []
    for index, part in enumerate(content):
        if len(wrong) >= WRONG_MAX:
            break
        texts += _part(part, f"{place}[{index}]", grammar, wrong)
    return PART_JOIN.join(texts)


def _part(part: object, place: str, grammar: Grammar, wrong: Wrong) -> tuple[str, ...]:
    if not isinstance(part, dict):
        wrong.append((place, "must be a text part: a JSON object"))
        return ()
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in grammar.part_types:
        wrong.append((place, f"{_named(kind)} {UNSUPPORTED}"))
        return ()
    _check_names(part, place, {"type", "text"} | grammar.echoed_in_parts, wrong)
    text = part.get("text")
    if not isinstance(text, str):
        wrong.append((f"{place}.text", "must be a text"))
        return ()
    return (text,)


def _check_names(members: dict[str, Any], place: str, known: Iterable[str], wrong: Wrong) -> None:
    for name, value in members.items():
        if name not in known and value not in _EMPTY:
            wrong.append((f"{place}.{name}", UNSUPPORTED))


def _named(kind: object) -> str:
    return f"{kind[:40]!r}" if isinstance(kind, str) else "what has no type"
