"""The prefix of a prompt as blocks with names: what dispatch and workers compare to find a warm cache.

1. A prompt is rendered as its messages in order, role and content, with marks that no text contains between them; so
   equal beginnings here are equal beginnings of what a chat template renders.
2. It is cut into blocks of `BLOCK_BYTES`; what is left at the end has no name. A block's name stands for the block,
   for all before it, and for the salt: prompts of different salts never share one.
3. Names are 32-bit numbers. Two blocks of one name cost a worse choice of worker, and nothing else.
"""

import base64
import hashlib
import struct
from collections.abc import Collection, Iterable

from schemas.values import PromptMessage

BLOCK_BYTES = 512
"""About 130 tokens of English: four to eight blocks of an engine's own cache."""


def salt_of(account_id: str) -> str:
    """The salt of an account's prefixes: a hash, so that it may leave the house."""
    return hashlib.sha256(f"prefix/{account_id}".encode()).hexdigest()[:16]


def rendered(prompt: Iterable[PromptMessage]) -> bytes:
    """The prompt as it is cut into blocks."""
    return b"".join(
        b"\xfe%s\xff%s" % (message.role.encode(), message.content.encode("utf-8", "surrogatepass"))
        for message in prompt
    )


def blocks(salt: str, prompt: Iterable[PromptMessage]) -> tuple[int, ...]:
    """Names of the prompt's full blocks, in order."""
    return named(salt, rendered(prompt))


def named(salt: str, text: bytes) -> tuple[int, ...]:
    """The same of a rendered prompt."""
    names: list[int] = []
    name = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        name = hashlib.blake2b(text[start : start + BLOCK_BYTES], digest_size=16, key=name).digest()
        names.append(int.from_bytes(name[:4], "big"))
    return tuple(names)


def packed(names: Collection[int]) -> str:
    """Block names as text."""
    return base64.b64encode(struct.pack(f">{len(names)}I", *names)).decode()


def unpacked(text: str) -> tuple[int, ...]:
    """The names that `packed` packed; what is no such text holds none."""
    try:
        data = base64.b64decode(text, validate=True)
        return struct.unpack(f">{len(data) // 4}I", data)
    except (ValueError, struct.error):
        return ()
