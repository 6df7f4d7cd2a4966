"""Bodies of the Vercel AI SDK's transport (`DefaultChatTransport`), and what each asks for.

Source: `HttpChatTransport` and `AbstractChat` of the package `ai`, 6.0 and 7.0, whose requests are the tests' examples.

Rules:

1. A chat's id names a conversation of the account. The client sends all its messages; the newest is the user's.
2. The message follows the newest reply of this conversation among them. Where there is none it opens a new beginning.
3. What stands between that reply and the message, or before it where there is no such reply, is not in the
   conversation: then the client's messages are what the answer is made from. Otherwise the conversation's are.
4. A text that is repeated (the same chat, message id, text, place and options) is one message with one reply. Another
   text under the same id, which is what an edit sends, is another message beside it.
5. The members of a transport's `body` are the native ones of a send; others are refused by name.
6. Parts that are not text are refused in the newest message, unless they only mark a place (`step-start`, a transient
   `data-…`), and left out of older ones. `metadata` of a message is ignored.
"""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import Brought, Options, RegenerateBody, SendBody, System, digest, text_at_most
from api.problems import bad_request
from schemas.codec import to_json
from schemas.conversation import Conversation, Message
from schemas.events import MessageSubmitted
from schemas.ids import Identities, Parsed
from schemas.limits import CONTENT_BYTES_MAX, HISTORY_MESSAGES_MAX, METADATA_VALUE_CHARS_MAX, SYSTEM_BYTES_MAX
from schemas.values import PromptMessage

MESSAGE_ID = "ai_sdk_message_id"
"""Name of the metadata that holds the client's id of a user's message."""

ChatId = Annotated[str, Field(min_length=1, max_length=128)]


class UiMessage(BaseModel):
    """A message as the page holds it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    id: Annotated[str, Field(max_length=METADATA_VALUE_CHARS_MAX)]
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """Its text parts, with an empty line between."""
        texts = [part.get("text") for part in self.parts if part.get("type") == "text"]
        return "\n\n".join(text for text in texts if isinstance(text, str) and text)


class AiSdkBody(Options):
    """What the transport posts."""

    id: ChatId
    messages: Annotated[list[UiMessage], Field(max_length=HISTORY_MESSAGES_MAX + 1)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = None  # noqa: N815 - the transport's name
    system: System | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is to be sent."""

    body: SendBody
    brought: Brought


def asked(ids: Identities, account_id: str, body: AiSdkBody, idempotency_key: str | None) -> Asked:
    """The native send. Raises `Problem` 400 where the newest message is none that can be sent."""
    conversation_id = ids.named_conversation(account_id, body.id)
    text = _newest_text(body)
    *before, newest = body.messages
    at = next((i for i in range(len(before) - 1, -1, -1) if _own(ids, account_id, before[i], conversation_id)), -1)
    lost = any(said.text and said.role != "system" for said in before[at + 1 :])
    send = SendBody(
        **_options(body),
        content=text,
        conversation_id=conversation_id,
        parent_id=before[at].id if at >= 0 else conversation_id,
        system=body.system or _system(before),
    )
    brought = Brought(history=tuple(_history(before)) if lost else (), metadata={MESSAGE_ID: newest.id}, begins=at < 0)
    key = idempotency_key or f"ai-sdk-{digest(send, brought=to_json(brought).decode())}"
    return Asked(body=send.model_copy(update={"client_message_id": key}), brought=brought)


def named_reply(ids: Identities, account_id: str, body: AiSdkBody) -> Parsed | None:
    """The reply that `messageId` names, where it is one of this chat."""
    reply = ids.parse(account_id, body.messageId or "")
    own = reply is not None and reply.conversation_id == ids.named_conversation(account_id, body.id)
    return reply if own and reply is not None and reply.kind == "rep" else None


def reply_to_newest(conversation: Conversation, body: AiSdkBody) -> Message | None:
    """The first reply to the newest of the client's messages, which the client has cut off to get another one.

    It is the same however often the message was answered, so that a call with a key can be repeated.
    """
    text = _newest_text(body)
    found: Message | None = None
    for message in conversation.messages.values():
        question = conversation.messages.get(message.parent_id or "") if message.role == "assistant" else None
        if question is None or (found is not None and found.parent_id == question.id):
            continue
        request = question.request
        if isinstance(request, MessageSubmitted) and request.content == text:
            found = message if request.metadata.get(MESSAGE_ID) == body.messages[-1].id else found
    return found


def again(body: AiSdkBody, idempotency_key: str | None) -> RegenerateBody:
    """The native regeneration. Without a key each call is a new one."""
    return RegenerateBody(**_options(body), client_message_id=idempotency_key)


def _options(body: AiSdkBody) -> dict[str, Any]:
    return {name: getattr(body, name) for name in Options.model_fields}


def _newest_text(body: AiSdkBody) -> str:
    index = len(body.messages) - 1
    if index < 0 or body.messages[index].role != "user":
        raise bad_request([("messages", "the last one must be the user's")])
    newest = body.messages[index]
    for at, part in enumerate(newest.parts):
        kind = part.get("type")
        marks = kind == "step-start" or (str(kind).startswith("data-") and part.get("transient") is True)
        if not marks and not (kind == "text" and isinstance(part.get("text"), str)):
            raise bad_request([(f"messages.{index}.parts.{at}", f"is of type {kind}; only text is supported")])
    if not newest.text:
        raise bad_request([(f"messages.{index}.parts", "must have a text that is not empty")])
    return _within(CONTENT_BYTES_MAX, newest.text, f"messages.{index}.parts")


def _own(ids: Identities, account_id: str, said: UiMessage, conversation_id: str) -> bool:
    parsed = ids.parse(account_id, said.id) if said.role == "assistant" else None
    return parsed is not None and parsed.kind == "rep" and parsed.conversation_id == conversation_id


def _history(before: list[UiMessage]) -> list[PromptMessage]:
    return [PromptMessage(role=said.role, content=said.text) for said in before if said.text and said.role != "system"]


def _system(before: list[UiMessage]) -> str | None:
    texts = "\n\n".join(said.text for said in before if said.role == "system" and said.text)
    return _within(SYSTEM_BYTES_MAX, texts, "messages") or None


def _within(limit: int, text: str, field: str) -> str:
    try:
        return text_at_most(limit, text)
    except ValueError as error:
        raise bad_request([(field, str(error))]) from None
