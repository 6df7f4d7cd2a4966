"""The accounts: a fold of the topic `accounts`, held by every API process, kept up to date by a thread.

Rules:

1. Per record key the newest record counts, a tombstone takes it away (the topic is compacted). Nothing depends on the
   order of different keys.
2. A key opens its account while it is issued, not revoked, and the account exists. Keys are known by their hash only.
3. The tier's limits hold unless the account has its own.
"""

import threading
import time
from collections.abc import Callable

import msgspec
import structlog

from api.stores import Rate
from schemas.codec import Undecodable
from schemas.events import AccountOpened, Event, KeyIssued, LimitsChanged, TierChanged
from schemas.topics import ACCOUNTS
from schemas.values import Tier
from streams.log.encoding import decoded
from streams.log.log import BEGINNING, Log, Reader
from streams.log.steps import LogError, Partition, Record

log = structlog.get_logger()

POLL_S = 0.5
CHECK_EVERY_S = 2.0
RETRY_S = 1.0


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is."""

    account_id: str
    key_id: str
    tier: Tier
    requests_per_minute: int | None
    """The account's own limit; None: the tier's."""


class Accounts:
    """The fold. One thread applies, any thread asks."""

    def __init__(self) -> None:
        self._facts: dict[str, Event] = {}
        self._keys: dict[str, KeyIssued] = {}

    def apply(self, key: str, event: Event | None) -> None:
        """A record of the topic: its key and its event, None for a tombstone."""
        before = self._facts.pop(key, None)
        if isinstance(before, KeyIssued):
            self._keys.pop(before.key_hash, None)
        if event is None:
            return
        self._facts[key] = event
        if isinstance(event, KeyIssued):
            self._keys[event.key_hash] = event

    def caller(self, key_hash: str) -> Caller | None:
        """Who has this key."""
        issued = self._keys.get(key_hash)
        return self._caller(issued) if issued is not None else None

    def caller_of(self, account_id: str, key_id: str) -> Caller | None:
        """Who has the key of this id."""
        issued = self._facts.get(f"{account_id}/key/{key_id}")
        return self._caller(issued) if isinstance(issued, KeyIssued) else None

    def _caller(self, issued: KeyIssued) -> Caller | None:
        account_id = issued.account_id
        opened = self._facts.get(f"{account_id}/account")
        if not isinstance(opened, AccountOpened):
            return None
        changed = self._facts.get(f"{account_id}/tier")
        limits = self._facts.get(f"{account_id}/limits")
        return Caller(
            account_id=account_id,
            key_id=issued.key_id,
            tier=changed.tier if isinstance(changed, TierChanged) else opened.tier,
            requests_per_minute=limits.requests_per_minute if isinstance(limits, LimitsChanged) else None,
        )


def rate_of(caller: Caller, tier_limits: dict[Tier, int]) -> Rate:
    """The caller's limit of requests."""
    return Rate(caller.requests_per_minute or tier_limits[caller.tier])


class AccountsReader:
    """Keeps `Accounts` up to date from the log, and thereby knows whether the log answers."""

    def __init__(
        self,
        log_: Log,
        accounts: Accounts,
        now_s: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        self._log = log_
        self._accounts = accounts
        self._now_s = now_s
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._answered_s: float | None = None
        self._complete = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accounts", daemon=True)

    @property
    def complete(self) -> bool:
        """Everything that was there at the start has been read."""
        return self._complete.is_set()

    def log_answers(self, within_s: float) -> bool:
        """Whether the log answered lately."""
        return self._answered_s is not None and self._now_s() - self._answered_s <= within_s

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waits for the thread a moment."""
        self._stop.set()
        self._thread.join(2 * self._poll_s + RETRY_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except LogError as error:
                log.warning("accounts cannot be read", reason=str(error))
                self._stop.wait(RETRY_S)

    def _read(self) -> None:
        partitions = [Partition(ACCOUNTS.name, n) for n in range(self._log.partitions(ACCOUNTS.name))]
        reader = self._log.reader(partitions, BEGINNING)
        try:
            ends = self._asked(reader)
            asked_s = self._now_s()
            while not self._stop.is_set():
                for record in reader.poll(self._poll_s):
                    self._apply(record)
                if not self._complete.is_set():
                    positions = reader.positions()
                    if all(positions.get(partition, 0) >= end for partition, end in ends.items()):
                        self._complete.set()
                if self._now_s() - asked_s >= CHECK_EVERY_S:
                    self._asked(reader)
                    asked_s = self._now_s()
        finally:
            reader.close()

    def _asked(self, reader: Reader) -> dict[Partition, int]:
        ends = reader.ends()
        self._answered_s = self._now_s()
        return ends

    def _apply(self, record: Record) -> None:
        if record.key is None:
            return
        event = None
        if record.value is not None:
            try:
                event = decoded(record).event
            except Undecodable as error:
                log.warning("record of an account cannot be read", reason=str(error))
                return
        self._accounts.apply(record.key, event)
