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
import re
import secrets
from typing import Literal

import msgspec
import uuid_utils

Kind = Literal["conv", "msg", "rep"]

ACCOUNT_ID = r"^[a-z0-9][a-z0-9_-]{0,63}$"
"""Ids of accounts and organisations."""
USER_ID_CHARS_MAX = 255
_ACCOUNT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SECRET = re.compile(r"\btl[ko]_[A-Za-z0-9_-]{12,}|\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*")
_KEY_BYTES = 24
_PREFIX_CHARS = 10
_SHOWN = 8
"""Characters of a key or token that are left: enough to tell which one it was."""

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


def is_account_id(text: str) -> bool:
    """Whether an account (or organisation) can have this id."""
    return _ACCOUNT_ID.fullmatch(text) is not None


def is_user_id(text: str) -> bool:
    """Whether a user can have this id: it may be the `sub` of any issuer's token."""
    return 1 <= len(text) <= USER_ID_CHARS_MAX and text.isprintable()


def new_key() -> str:
    """A new API key: 192 random bits."""
    return f"tlk_{secrets.token_urlsafe(_KEY_BYTES)}"


def key_id(api_key: str) -> str:
    """A short name for a key, which does not help to guess it."""
    return f"key_{key_hash(api_key)[:12]}"


def key_prefix(api_key: str) -> str:
    """A key's first characters, to recognise it by, a third of it at most; of ours 156 random bits are left."""
    return api_key[: min(_PREFIX_CHARS, len(api_key) // 3)]


def has_secret(text: str) -> bool:
    """Whether something in it looks like a key or a token."""
    return _may_have_secrets(text) and _SECRET.search(text) is not None


def without_secrets(text: str) -> str:
    """The text, in which what looks like a key (`tlk_…`, `tlo_…`) or a token (JWT) ends after its first characters."""
    return _SECRET.sub(lambda found: found[0][:_SHOWN] + "…", text) if _may_have_secrets(text) else text


def _may_have_secrets(text: str) -> bool:
    """Quick, and true for nearly no text: every line of the logs is asked."""
    return "tlk_" in text or "tlo_" in text or "eyJ" in text
