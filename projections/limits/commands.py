"""Calls of the functions in `schemas/tiers/limits.lua` that settle replies and mark how far that has come. Pure.

Also what a check of them asks: with what a reply was settled, and how far the store has come.
"""

import msgspec

from projections.redis.client import Command, pack
from schemas.account import Accounts, effective, rules_for
from schemas.events import UsageRecorded
from schemas.tiers import (
    MICRO,
    REQUESTS,
    Bucket,
    Holder,
    TierRules,
    Tiers,
    buckets_of,
    keep_ms,
    rules_of,
    window_ms,
)
from schemas.tiers.library import CORRECT, NOTE, SETTLE, marker_keys

MARGIN_MS = 600_000
"""How far clocks may be apart, how late a record may come, and how long it may take until a loss is noticed."""


class Owner(msgspec.Struct, frozen=True):
    """Whose buckets a reply took from, and what they hold."""

    holder: Holder
    rules: TierRules


class Owners:
    """The accounts, as their fold says now. Of one that is not known (yet), the tier on the record counts."""

    def __init__(self, accounts: Accounts, tiers: Tiers) -> None:
        self._accounts = accounts
        self._tiers = tiers

    def owner(self, event: UsageRecorded) -> Owner:
        """Of a reply."""
        account = self._accounts.account(event.account_id)
        if account is None:
            return Owner(Holder(event.account_id), rules_of(self._tiers, event.tier))
        return Owner(Holder(account.id, account.organisation_id), rules_for(self._accounts, account, self._tiers))

    def window_ms(self) -> int:
        """The longest of all accounts: what is older need not be known to make the buckets again."""
        own = (
            effective(account, rules_of(self._tiers, account.tier))
            for account in self._accounts.accounts()
            if account.limits is not None
        )
        return max(map(window_ms, (*self._tiers.values(), *own)), default=0)


def charged_tokens(event: UsageRecorded) -> int:
    """What counts against buckets: the prompt but for what came from a cache, and the output."""
    written = event.cache_write_input_tokens + event.cache_write_long_input_tokens
    return event.uncached_input_tokens + written + event.output_tokens


def settling(namespace: str, event: UsageRecorded, owner: Owner, now_ms: int, *, again: bool) -> Command:
    """The call that settles a reply. `again`: the buckets are made again from usage.

    A record is charged without a reservation while it is younger than the account's window (twice that, where buckets
    are made again) and a margin; the mark that it was settled is kept for longer, so it is charged once, however often
    it comes.
    """
    window = window_ms(owner.rules)
    young = now_ms - event.ended_at_ms <= (2 * window if again else window) + MARGIN_MS
    written = event.cache_write_input_tokens + event.cache_write_long_input_tokens
    prompt = event.uncached_input_tokens + event.cache_read_input_tokens + written
    buckets = buckets_of(owner.rules, event.model, event.pool, owner.holder)
    if not again:  # its request was taken when it came, and is not given back
        buckets = tuple(bucket for bucket in buckets if bucket.name != REQUESTS)
    account_key, shared_key = owner.holder.keys(namespace)
    words = [
        b"FCALL",
        SETTLE,
        b"2",
        account_key,
        shared_key,
        event.reply_id.encode(),
        event.conversation_id.encode(),
        b"%d" % (2 * window + 2 * MARGIN_MS),
        b"%d" % keep_ms(owner.rules),
        b"1" if young else b"0",
        b"%d" % ((now_ms - MARGIN_MS) * 1000 if again else 0),
        b"%d" % (event.ended_at_ms * 1000),
        b"%d" % charged_tokens(event),
        b"%d" % prompt,
        b"%d" % event.output_tokens,
    ]
    for bucket in buckets:
        words += _bucket(bucket)
    return Command(account_key, pack(words))


def settled_with(namespace: str, event: UsageRecorded, owner: Owner) -> Command:
    """Asks with how many tokens a reply was settled; nil: it was not, or too long ago (twice `window_ms` and
    `MARGIN_MS`)."""
    account_key, _ = owner.holder.keys(namespace)
    key = b"%b:done:%b" % (account_key, event.reply_id.encode())
    return Command(key, pack([b"GET", key]))


def correcting(namespace: str, event: UsageRecorded, owner: Owner) -> Command:
    """The call that charges or gives back what a reply was settled with wrongly."""
    account_key, shared_key = owner.holder.keys(namespace)
    names = [bucket.name.encode() for bucket in buckets_of(owner.rules, event.model, event.pool, owner.holder)]
    words = [b"FCALL", CORRECT, b"2", account_key, shared_key, event.reply_id.encode(), b"%d" % charged_tokens(event)]
    return Command(account_key, pack([*words, *(name for name in names if name != REQUESTS.encode())]))


def reached(namespace: str, partitions: int) -> tuple[Command, Command]:
    """Ask for the store's name and how far each partition has come, and for what says that it is whole: the name."""
    marker, whole = marker_keys(namespace)
    words = [b"HMGET", marker, b"name", *(b"%d" % number for number in range(partitions))]
    return Command(marker, pack(words)), Command(whole, pack([b"GET", whole]))


def noting(
    namespace: str, fresh: str, expected: str, partition: int, least: int, position: int | None, partitions: int
) -> Command:
    """The call that asks whether the store is still the same, and says how far a partition has come."""
    marker, whole = marker_keys(namespace)
    words = [b"FCALL", NOTE, b"2", marker, whole, fresh.encode(), expected.encode(), b"%d" % partition, b"%d" % least]
    words += [b"" if position is None else b"%d" % position, b"%d" % partitions]
    return Command(marker, pack(words))


def _bucket(bucket: Bucket) -> tuple[bytes, bytes, bytes]:
    return bucket.name.encode(), b"%d" % (bucket.capacity * MICRO), b"%d" % bucket.per_minute
