"""What a send asks of its account's buckets, and what they answer. Pure.

The rules are those of `schemas.tiers.buckets` and of `schemas/tiers/limits.lua`, which keeps the buckets in Redis;
`api.limits_twin` is the same in memory. What a prompt costs:

1. Its tokens: those that the request brings, counted by `api.prompt_tokens`, and those of the conversation before it,
   as the newest reply left it; and the longest output that it may have. Together never more than the model takes.
2. Reserved at the door for the time that it takes to get into the log (`Leases.door_ms`); once it is there, for as long
   as the reply may run (`Leases.reply_ms`). Settled by `projections limits` when the reply has ended.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from schemas.tiers import MICRO, REQUESTS, RUNNING, TOKENS, Bucket, Holder, time_for_us
from schemas.tiers.library import DENIED, GRANTED, KNOWN, TOO_LARGE

Before = Literal["none", "last", "most"] | int
"""What the model reads of the conversation before the new message: nothing; as much as the newest reply left; the most
that any left; or so many tokens."""

RUNNING_RETRY_S = 1.0
"""When to look again where as many replies run as may: nobody knows when one of them ends."""


class Leases(msgspec.Struct, frozen=True, kw_only=True):
    """How long a reservation stands, unless something is heard of it."""

    door_ms: int
    reply_ms: int


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a send or regeneration needs."""

    holder: Holder
    reply_id: str
    conversation_id: str
    buckets: tuple[Bucket, ...]
    running_max: int
    prompt_tokens: int
    """Those that the request brings."""
    output_tokens: int
    """The longest output that it may have."""
    context_tokens: int
    """What the model takes, prompt and output."""
    before: Before = "none"
    leases: Leases
    keep_ms: int


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket as it is now. `available` and `capacity` are in requests or tokens."""

    bucket: Bucket
    micro: int

    @property
    def available(self) -> int:
        """What can be had at once."""
        return max(self.micro // MICRO, 0)

    @property
    def full_in_s(self) -> int:
        """When it will be full again, if nothing is taken; rounded up."""
        return -(-time_for_us(self.bucket.capacity * MICRO - self.micro, self.bucket.per_minute) // 1_000_000)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How the account's limits stand."""

    levels: tuple[Level, ...]
    running: int
    running_max: int

    def level(self, name: str) -> Level | None:
        """One of them."""
        return next((level for level in self.levels if level.bucket.name == name), None)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """It may go on. `fresh`: by this call; otherwise it was reserved before."""

    fresh: bool
    standing: Standing


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """Not now: this one lacks."""

    lacking: str
    retry_after_ms: int
    standing: Standing


class TooLarge(msgspec.Struct, frozen=True, kw_only=True):
    """Not ever: this bucket holds less when it is full."""

    lacking: str
    tokens: int
    capacity: int
    standing: Standing


class Unweighed(msgspec.Struct, frozen=True):
    """Redis does not know what the conversation weighs: ask again and say it."""


Outcome = Granted | Denied | TooLarge | Unweighed


class Reserved(msgspec.Struct, frozen=True):
    """What the store answers. `whole`: its buckets hold all that was ever taken, so that its word counts."""

    whole: bool
    outcome: Outcome


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """All buckets of an account, with what is reserved of each (in tokens)."""

    standing: Standing
    reserved: tuple[int, ...]


class Told:
    """How the limits stood when a request was decided, for the headers of its answer."""

    __slots__ = ("spend", "standing")

    def __init__(self) -> None:
        self.standing: Standing | None = None
        self.spend: str | None = None


def outcome(answer: Sequence[Any], demand: Demand) -> Outcome:
    """What the answer of `RESERVE` says."""
    code, tokens, name, wait_us, running = answer[1:6]
    lacking = name.decode() if isinstance(name, bytes) else str(name)
    levels = tuple(Level(bucket=b, micro=int(micro)) for b, micro in zip(demand.buckets, answer[6:], strict=True))
    standing = Standing(levels=levels, running=int(running), running_max=demand.running_max)
    match code:
        case _ if code in (GRANTED, KNOWN):
            return Granted(fresh=code == GRANTED, standing=standing)
        case _ if code == DENIED:
            retry_ms = -(-int(wait_us) // 1000) if lacking != RUNNING else round(RUNNING_RETRY_S * 1000)
            return Denied(lacking=lacking, retry_after_ms=max(retry_ms, 1), standing=standing)
        case _ if code == TOO_LARGE:
            capacity = next(bucket.capacity for bucket in demand.buckets if bucket.name == lacking)
            return TooLarge(lacking=lacking, tokens=int(tokens), capacity=capacity, standing=standing)
        case _:
            return Unweighed()


def looked(answer: Sequence[Any], buckets: Sequence[Bucket], running_max: int) -> Looked:
    """What the answer of `LOOK` says."""
    figures = [int(figure) for figure in answer[2:]]
    levels = tuple(Level(bucket=b, micro=micro) for b, micro in zip(buckets, figures[::2], strict=True))
    standing = Standing(levels=levels, running=int(answer[1]), running_max=running_max)
    return Looked(standing=standing, reserved=tuple(micro // MICRO for micro in figures[1::2]))


def bucket_words(buckets: Sequence[Bucket]) -> list[bytes]:
    """The buckets as the functions take them."""
    words: list[bytes] = []
    for bucket in buckets:
        words += (bucket.name.encode(), b"%d" % (bucket.capacity * MICRO), b"%d" % bucket.per_minute)
    return words


def reserve_words(demand: Demand) -> list[bytes]:
    """The arguments of `RESERVE`."""
    return [
        demand.reply_id.encode(),
        demand.conversation_id.encode(),
        b"%d" % (demand.leases.door_ms * 1000),
        b"%d" % demand.keep_ms,
        b"%d" % demand.running_max,
        b"%d" % demand.prompt_tokens,
        b"%d" % demand.output_tokens,
        b"%d" % demand.context_tokens,
        before_word(demand.before),
        *bucket_words(demand.buckets),
    ]


def confirm_words(demand: Demand) -> list[bytes]:
    """The arguments of `CONFIRM`."""
    return [
        demand.reply_id.encode(),
        demand.conversation_id.encode(),
        b"%d" % (demand.leases.reply_ms * 1000),
        b"%d" % demand.prompt_tokens,
        b"%d" % demand.output_tokens,
        b"%d" % demand.context_tokens,
        before_word(demand.before),
    ]


def before_word(before: Before) -> bytes:
    """`Before` as the functions take it."""
    return b"0" if before == "none" else str(before).encode()


def unit(name: str) -> str:
    """What a bucket of this name counts."""
    return {REQUESTS: "requests", RUNNING: "replies"}.get(name, TOKENS)
