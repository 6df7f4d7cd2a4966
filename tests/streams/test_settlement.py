"""Settlement: what ended replies become, and how far the log is settled."""

from decimal import Decimal

import pytest
from msgspec.structs import replace

from schemas.codec import Envelope
from schemas.events import (
    Event,
    GenerationEnded,
    GenerationQueued,
    GenerationReset,
    GenerationStarted,
    ReplyStored,
    TokensGenerated,
    UsageRecorded,
)
from schemas.ids import text_digest
from schemas.models import DEFAULT_MODELS
from schemas.values import Usage
from streams.log.memory import MemoryLog
from streams.log.steps import Arrived, Busy, Partition, Record
from streams.settlement.rules import Alarm, Tariff, plain
from streams.settlement.step import Limits, Settle, TooMuchOpen
from tests.streams.events import MODEL, NOW

TOKENS = Partition("tokens", 0)
USAGE = Usage(input_tokens=10, output_tokens=2, cached_input_tokens=4)


def queued(n: int = 1) -> GenerationQueued:
    return GenerationQueued(
        reply_id=f"rep_{n}",
        message_id=f"msg_{n}",
        conversation_id="conv_a",
        account_id="acc",
        tier="free",
        pool="default",
        model=MODEL,
        submitted_at_ms=NOW,
    )


def started(n: int = 1, attempt: int = 1, model: str = MODEL) -> GenerationStarted:
    return GenerationStarted(
        reply_id=f"rep_{n}",
        conversation_id="conv_a",
        generation_id=f"gen_{n}_{attempt}",
        attempt=attempt,
        model=model,
        worker="w",
        started_at_ms=NOW,
    )


def piece(seq: int, text: str, n: int = 1, attempt: int = 1) -> TokensGenerated:
    return TokensGenerated(
        reply_id=f"rep_{n}",
        conversation_id="conv_a",
        generation_id=f"gen_{n}_{attempt}",
        attempt=attempt,
        seq=seq,
        text=text,
        tokens=1,
    )


def ended(seq: int, text: str | None = None, n: int = 1, attempt: int = 1) -> GenerationEnded:
    return GenerationEnded(
        reply_id=f"rep_{n}",
        conversation_id="conv_a",
        generation_id=f"gen_{n}_{attempt}",
        attempt=attempt,
        seq=seq,
        status="completed",
        ended_at_ms=1_767_225_599_999,
        usage=USAGE,
        text_bytes=None if text is None else len(text.encode()),
        text_digest=None if text is None else text_digest(text),
    )


class Settling:
    """A step on a log in memory, fed by hand."""

    def __init__(self, **limits: int) -> None:
        self.log = MemoryLog(real_time=False)
        self.alarms: list[Alarm] = []
        self.step = Settle(
            self.log.writer("streams/settlement"), Tariff(models=DEFAULT_MODELS), Limits(**limits), self.alarms.append
        )
        self.step.assigned({TOKENS: 0})
        self.offset = 0
        self.now_ms = NOW

    def submit(self, *events: Event) -> None:
        batch = []
        for event in events:
            record = Record(*TOKENS, self.offset, event.key(), b"", (), self.now_ms)
            batch.append(Arrived(record, Envelope(event=event, source="test")))
            self.offset += 1
        self.step.submit(batch, self.now_ms)

    def poll(self) -> None:
        self.step.poll(self.now_ms)

    def stored(self) -> list[ReplyStored]:
        return [event for event in self.log.events("messages") if isinstance(event, ReplyStored)]

    def usage(self) -> list[UsageRecorded]:
        return [event for event in self.log.events("usage") if isinstance(event, UsageRecorded)]

    def settled(self) -> int:
        return self.step.settled()[TOKENS]


def test_an_ended_reply_is_stored_and_billed() -> None:
    settling = Settling()
    settling.submit(queued(), started(), piece(1, "hel"), piece(2, "lo"), ended(3, "hello"))
    [stored] = settling.stored()
    assert (stored.text, stored.status, stored.final_offset, stored.attempt) == ("hello", "completed", 4, 1)
    [usage] = settling.usage()
    assert (usage.uncached_input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (6, 4, 2)
    assert Decimal(usage.cost) == (6 * Decimal("0.05") + 4 * Decimal("0.005") + 2 * Decimal("0.20")) / 1_000_000
    assert usage.usage_day == "2025-12-31"
    assert settling.alarms == []


def test_only_the_last_attempt_counts_and_is_charged() -> None:
    settling = Settling()
    reset = GenerationReset(reply_id="rep_1", conversation_id="conv_a", attempt=2, reason="worker_lost")
    settling.submit(queued(), started(), piece(1, "a"), reset, piece(2, "zombie"))
    settling.submit(started(attempt=2), piece(1, "b", attempt=2), ended(2, "zombie"), ended(2, "b", attempt=2))
    [stored] = settling.stored()
    assert (stored.text, stored.attempt) == ("b", 2)
    charge, void = settling.usage()
    assert (charge.record_kind, charge.attempts, charge.charged) == ("reply", 2, True)
    assert Decimal(charge.cost) > 0
    assert (void.record_kind, void.status, void.attempts, void.output_tokens) == ("attempt-1", "failed", 1, 1)
    assert (void.cost, void.charged, void.counted) == ("0", False, False)


def test_what_failed_is_recorded_and_costs_nothing() -> None:
    settling = Settling()
    settling.submit(queued(), started(), piece(1, "a"), replace(ended(2, "a"), status="failed"))
    [record] = settling.usage()
    assert (record.status, record.cost, record.charged) == ("failed", "0", False)
    assert record.output_tokens > 0


def test_the_day_of_a_record_does_not_depend_on_the_machines_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        settling = Settling()
        settling.submit(queued(), started(), ended(1, ""))
        assert settling.usage()[0].usage_day == "2025-12-31"
    monkeypatch.delenv("TZ")
    time.tzset()


def test_the_checkpoint_is_the_first_event_of_the_oldest_open_reply() -> None:
    settling = Settling()
    settling.submit(queued(1), queued(2), started(2, 1), ended(1, "", n=2))
    settling.poll()
    assert settling.settled() == 0
    settling.submit(started(1), ended(1, ""))
    settling.poll()
    assert settling.settled() == settling.offset


def test_the_checkpoint_waits_for_the_acknowledgement() -> None:
    settling = Settling()
    settling.log.down = True
    settling.submit(queued(1), started(1), ended(1, ""), queued(2))
    settling.poll()
    assert settling.settled() == 0
    settling.log.down = False
    settling.poll()
    assert settling.settled() == 3


def test_the_checkpoint_is_never_between_two_openings_of_an_ended_reply() -> None:
    settling = Settling()
    settling.submit(queued(1), queued(2), started(1), queued(1), queued(3), ended(1, "", n=1))
    settling.poll()
    assert settling.settled() == 0, "from 1 on, the second opening of the first reply would be its beginning"
    settling.submit(started(2), ended(1, "", n=2))
    settling.poll()
    assert settling.settled() == 4


def test_after_a_restart_the_same_is_written_again() -> None:
    settling = Settling()
    events = [queued(1), started(1), piece(1, "x"), ended(2, "x")]
    settling.submit(*events)
    settling.step.assigned({TOKENS: 0})
    settling.offset = 0
    settling.submit(*events)
    first, second = settling.stored()
    assert first == second
    assert len({usage.identity() for usage in settling.usage()}) == 1


def test_what_came_before_a_checkpoint_opens_nothing() -> None:
    settling = Settling()
    settling.submit(started(1), piece(1, "x"), ended(2, "x"))
    assert settling.stored() == []


def test_a_late_opening_of_an_ended_reply_is_ignored() -> None:
    settling = Settling()
    settling.submit(queued(), started(), ended(1, ""), queued())
    assert settling.step.open_replies == 0


def test_a_text_that_differs_from_what_its_worker_counted_is_an_alarm_and_what_was_seen_is_stored() -> None:
    settling = Settling()
    settling.submit(queued(), started(), piece(1, "seen"), ended(2, "meant"))
    assert settling.stored()[0].text == "seen"
    assert [alarm.code for alarm in settling.alarms] == ["text_differs"]


def test_a_model_without_a_price_is_an_alarm_and_charges_nothing() -> None:
    settling = Settling()
    settling.submit(replace(queued(), model="gone"), started(model="gone"), ended(1, ""))
    assert (settling.usage()[0].cost, settling.usage()[0].price_version) == ("0", "unpriced")
    assert [alarm.code for alarm in settling.alarms] == ["unpriced"]


def test_an_end_by_dispatch_is_billed_by_what_reached_the_log() -> None:
    settling = Settling()
    end = replace(ended(0), generation_id="", seq=0, usage=None, status="failed")
    settling.submit(queued(), started(), piece(1, "a"), piece(2, "b"), end)
    [usage] = settling.usage()
    assert (usage.output_tokens, usage.counted, usage.status) == (2, False, "failed")


def test_a_reply_of_which_nothing_is_heard_is_given_up_with_an_alarm() -> None:
    settling = Settling(abandoned_ms=60_000)
    settling.submit(queued(1))
    settling.now_ms += 59_000
    settling.poll()
    assert settling.settled() == 0
    settling.now_ms += 2_000
    settling.poll()
    assert settling.settled() == 1
    assert [alarm.code for alarm in settling.alarms] == ["abandoned"]


def test_records_on_their_way_are_bounded() -> None:
    settling = Settling(unacknowledged_max=1)
    settling.log.down = True
    settling.submit(queued(1), started(1), ended(1, ""))
    with pytest.raises(Busy):
        settling.submit(queued(2))
    settling.log.down = False
    settling.submit(queued(2))


@pytest.mark.parametrize("limits", [{"open_max": 1}, {"open_chars_max": 3}])
def test_more_open_text_than_declared_stops_the_process(limits: dict[str, int]) -> None:
    settling = Settling(**limits)
    with pytest.raises(TooMuchOpen):
        settling.submit(queued(1), queued(2), started(1), piece(1, "long"))


def test_a_revoked_partition_is_forgotten() -> None:
    settling = Settling()
    settling.submit(queued(1))
    settling.step.revoked([TOKENS])
    assert settling.step.settled() == {}
    assert settling.step.open_replies == 0


@pytest.mark.parametrize(("amount", "text"), [("0", "0"), ("1E-7", "0.0000001"), ("100", "100"), ("0.500", "0.5")])
def test_amounts_are_plain_decimals(amount: str, text: str) -> None:
    assert plain(Decimal(amount)) == text
