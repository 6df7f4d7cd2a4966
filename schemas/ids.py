"""Identities: who may see a thing, and where its events are, are in its id.

    conversation   conv_<unique 16><tag 6>
    user message   msg_<unique of its conversation 16><unique 10><tag 6>
    reply          rep_<unique of its conversation 16><unique 10><tag 6>

Bytes are written in lower-case base32hex without padding. The tag is a MAC (HMAC-SHA256, first 6 bytes) over
kind, account and the unique bytes, with the deployment's secret. Therefore, with no look-up and while every store
is down, any API process can tell whether an id belongs to the caller, and which conversation (partition key) a
message is in. An id of another account has a wrong tag, exactly like one that does not exist.

With a client message id the unique bytes are a MAC of account and client message id, so that a repeated send gives
the same ids without shared state; without one they are a UUIDv7 (conversation) or random (message). Of a conversation
that a client names itself they are a MAC of account and name.
"""

import base64
import binascii
import hashlib
import hmac
import os
from typing import Literal

import msgspec
import uuid_utils

Kind = Literal["conv", "msg", "rep"]

_CONVERSATION = 16
_MESSAGE = 10
_TAG = 6


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """An id of the caller's own. `conversation_id` is itself for a conversation."""

    kind: Kind
    id: str
    conversation_id: str


class Identities(msgspec.Struct, frozen=True):
    """Makes and checks ids with a deployment's secret (at least 16 bytes, the same in every API process)."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise ValueError("the secret must have at least 16 bytes")

    def conversation(self, account_id: str, client_message_id: str | None) -> str:
        """The id of the conversation that a message without one begins."""
        if client_message_id is None:
            unique = uuid_utils.uuid7().bytes
        else:
            unique = self._mac("unique-conv", account_id, client_message_id.encode())[:_CONVERSATION]
        return self._written("conv", account_id, unique)

    def named_conversation(self, account_id: str, name: str) -> str:
        """The id of the conversation that a client calls by a name of its own."""
        unique = self._mac("unique-name", account_id, name.encode())[:_CONVERSATION]
        return self._written("conv", account_id, unique)

    def message(self, account_id: str, conversation_id: str, client_message_id: str | None) -> str:
        """The id of a user message in a conversation."""
        return self._in_conversation("msg", account_id, conversation_id, client_message_id)

    def reply(self, account_id: str, conversation_id: str, client_message_id: str | None) -> str:
        """The id of the reply that answers the message (or regeneration) with the same arguments."""
        return self._in_conversation("rep", account_id, conversation_id, client_message_id)

    def parse(self, account_id: str, text: str) -> Parsed | None:
        """What an id says, or None: malformed, made with another secret, or another account's."""
        kind, _, body = text.partition("_")
        if kind not in ("conv", "msg", "rep"):
            return None
        kind_: Kind = kind  # type: ignore[assignment]
        raw = _bytes(body)
        length = _CONVERSATION + (0 if kind == "conv" else _MESSAGE)
        if raw is None or len(raw) != length + _TAG:
            return None
        unique, tag = raw[:length], raw[length:]
        if not hmac.compare_digest(tag, self._tag(kind_, account_id, unique)):
            return None
        conversation = self._written("conv", account_id, unique[:_CONVERSATION])
        parsed = Parsed(kind=kind_, id=text, conversation_id=conversation)
        return parsed if self._written(kind_, account_id, unique) == text else None

    def _in_conversation(self, kind: Kind, account_id: str, conversation_id: str, client_message_id: str | None) -> str:
        raw = _bytes(conversation_id.removeprefix("conv_"))
        if raw is None or len(raw) != _CONVERSATION + _TAG:
            raise ValueError(f"not a conversation id: {conversation_id!r}")
        if client_message_id is None:
            unique = os.urandom(_MESSAGE)
        else:
            unique = self._mac("unique-" + kind, account_id, client_message_id.encode())[:_MESSAGE]
        return self._written(kind, account_id, raw[:_CONVERSATION] + unique)

    def _written(self, kind: Kind, account_id: str, unique: bytes) -> str:
        body = base64.b32hexencode(unique + self._tag(kind, account_id, unique))
        return f"{kind}_{body.decode().rstrip('=').lower()}"

    def _tag(self, kind: str, account_id: str, unique: bytes) -> bytes:
        return self._mac("tag-" + kind, account_id, unique)[:_TAG]

    def _mac(self, purpose: str, account_id: str, data: bytes) -> bytes:
        account = account_id.encode()
        message = b"%s\0%d\0%s%s" % (purpose.encode(), len(account), account, data)
        return hmac.digest(self.secret, message, "sha256")


def _bytes(body: str) -> bytes | None:
    try:
        return base64.b32hexdecode(body.upper() + "=" * (-len(body) % 8))
    except (binascii.Error, ValueError):
        return None


def generation_id() -> str:
    """A new generation's id: one attempt at a reply by one worker."""
    return f"gen_{uuid_utils.uuid7().hex}"


def instance_id() -> str:
    """An id for one run of a process."""
    return uuid_utils.uuid7().hex


def text_digest(text: str) -> str:
    """First 16 hex digits of the SHA-256 of the text's UTF-8 bytes, as `GenerationEnded` carries it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def key_hash(api_key: str) -> str:
    """How an API key is stored: SHA-256, hex."""
    return hashlib.sha256(api_key.encode()).hexdigest()
