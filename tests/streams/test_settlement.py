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
from schemas.models import DEFAULT_MODELS, SMOLLM2
from schemas.prices import parse_prices
from schemas.values import Timings, Usage
from streams.log.memory import MemoryLog
from streams.log.steps import Arrived, Busy, Partition, Record
from streams.settlement.rules import Alarm, Tariff, exclusive, plain
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

    def __init__(self, tariff: Tariff | None = None, **limits: int) -> None:
        self.log = MemoryLog(real_time=False)
        self.alarms: list[Alarm] = []
        tariff = tariff or Tariff(models=DEFAULT_MODELS)
        self.step = Settle(self.log.writer("streams/settlement"), tariff, Limits(**limits), self.alarms.append)
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


@pytest.mark.parametrize(("given_up_at_ms", "gpu_ms"), [(NOW + 900, 900), (NOW - 5, 0), (None, None)])
def test_a_void_attempt_had_its_slot_until_it_was_given_up(given_up_at_ms: int | None, gpu_ms: int | None) -> None:
    settling = Settling()
    reset = GenerationReset(
        reply_id="rep_1", conversation_id="conv_a", attempt=2, reason="worker_lost", reset_at_ms=given_up_at_ms
    )
    settling.submit(queued(), replace(started(), started_at_ms=NOW), piece(1, "a"), reset)
    settling.submit(started(attempt=2), piece(1, "b", attempt=2), ended(2, "b", attempt=2))
    _, void = settling.usage()
    assert void.gpu_ms == gpu_ms


def test_what_was_said_of_a_void_attempt_is_stored_with_it() -> None:
    settling = Settling()
    reset = GenerationReset(reply_id="rep_1", conversation_id="conv_a", attempt=2, reason="interrupted", detail="said")
    settling.submit(queued(), started(), piece(1, "a"), reset)
    settling.submit(started(attempt=2), piece(1, "b", attempt=2), ended(2, "b", attempt=2))
    [stored] = settling.stored()
    [void] = stored.void_attempts
    assert (void.attempt, void.reason, void.detail) == (1, "interrupted", "said")


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


def recorded(usage: Usage, **members: object) -> UsageRecorded:
    settling = Settling()
    settling.submit(queued(), started(), replace(ended(1, ""), usage=usage, **members))  # type: ignore[arg-type]
    [record] = settling.usage()
    return record


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=0, output_tokens=0),
        Usage(input_tokens=100, output_tokens=0),
        Usage(input_tokens=100, output_tokens=5, cached_input_tokens=100),
        Usage(input_tokens=100, output_tokens=5, cached_input_tokens=40, cache_write_tokens=60),
        Usage(
            input_tokens=100,
            output_tokens=5,
            cached_input_tokens=10,
            cache_write_tokens=20,
            cache_write_long_tokens=30,
            reasoning_tokens=5,
        ),
    ],
)
def test_the_parts_of_the_input_exclude_each_other_and_are_the_whole(usage: Usage) -> None:
    record = recorded(usage)
    parts = (
        record.uncached_input_tokens,
        record.cache_read_input_tokens,
        record.cache_write_input_tokens,
        record.cache_write_long_input_tokens,
    )
    assert min(parts) >= 0
    assert sum(parts) == usage.input_tokens
    price = SMOLLM2.price
    each = (price.input, price.cached_input, price.cache_write, price.long_write)
    cost = sum(count * amount for count, amount in zip(parts, each, strict=True)) + usage.output_tokens * price.output
    assert Decimal(record.cost) == cost / 1_000_000
    assert (record.output_tokens, record.reasoning_tokens) == (usage.output_tokens, usage.reasoning_tokens)


def test_parts_that_do_not_fit_into_the_whole_are_an_alarm_and_the_whole_counts() -> None:
    settling = Settling()
    wrong = Usage(input_tokens=10, output_tokens=2, cached_input_tokens=8, cache_write_tokens=8, reasoning_tokens=5)
    settling.submit(queued(), started(), replace(ended(1, ""), usage=wrong))
    [record] = settling.usage()
    assert (record.uncached_input_tokens, record.cache_read_input_tokens, record.cache_write_input_tokens) == (0, 8, 2)
    assert record.reasoning_tokens == 2
    assert [alarm.code for alarm in settling.alarms] == ["usage_differs"]
    negative = exclusive(Usage(input_tokens=-1, output_tokens=-1, cached_input_tokens=-1))
    assert negative == Usage(input_tokens=0, output_tokens=0)


def test_an_explicit_zero_stays_zero_and_stays_counted() -> None:
    record = recorded(Usage(input_tokens=0, output_tokens=0))
    assert (record.output_tokens, record.cost, record.counted, record.charged) == (0, "0", True, True)


@pytest.mark.parametrize("counted", [True, False])
def test_an_abort_after_some_chunks_is_one_record_of_at_least_those_which_says_how_they_were_counted(
    counted: bool,
) -> None:
    settling = Settling()
    settling.submit(queued(), started(), *(piece(n, "x") for n in range(1, 8)))
    cancelled = replace(ended(8, "xxxxxxx"), status="cancelled")
    if counted:
        cancelled = replace(cancelled, usage=Usage(input_tokens=10, output_tokens=9))
    else:
        cancelled = replace(cancelled, generation_id="", seq=0, usage=None, text_bytes=None, text_digest=None)
    settling.submit(cancelled)
    [record] = settling.usage()
    assert (record.status, record.counted, record.charged) == ("cancelled", counted, True)
    assert record.output_tokens == (9 if counted else 7)
    assert Decimal(record.cost) > 0


def test_what_never_started_is_a_record_of_nothing() -> None:
    settling = Settling()
    settling.submit(queued(), replace(ended(0), generation_id="", seq=0, usage=None, status="cancelled"))
    [record] = settling.usage()
    assert (record.record_kind, record.output_tokens, record.cost, record.gpu_ms) == ("reply", 0, "0", None)


def test_the_time_in_the_queue_and_on_the_gpu_is_on_the_record() -> None:
    record = recorded(USAGE, timings=Timings(queued_ms=300, first_token_ms=350, total_ms=1_300))
    assert (record.queued_ms, record.gpu_ms) == (300, 1_000)
    assert recorded(USAGE).queued_ms is None


def prices(*entries: str) -> Tariff:
    made = ", ".join(
        f'{{"version": "{version}", "model": "{model}", "valid_from": "{since}", "input": "1", "output": "{output}"}}'
        for version, model, since, output in (entry.split("|") for entry in entries)
    )
    return Tariff(models=DEFAULT_MODELS, prices=parse_prices(f"[{made}]"))


def test_the_price_is_that_of_the_acceptance_and_its_version_is_on_the_record() -> None:
    # NOW is the acceptance; the end is on another day.
    tariff = prices(f"before|{MODEL}|1970-01-01T00:00:00Z|3", f"after|{MODEL}|2199-01-01T00:00:00Z|5")
    settling = Settling(tariff)
    settling.submit(queued(), started(), ended(1, ""))
    [record] = settling.usage()
    assert record.price_version == "before"
    assert Decimal(record.cost) == (6 * 1 + 4 * Decimal("0.1") + 2 * 3) / 1_000_000


def test_a_model_that_is_not_served_any_more_costs_what_the_list_says() -> None:
    settling = Settling(prices("old|gone|1970-01-01T00:00:00Z|3"))
    settling.submit(replace(queued(), model="gone"), started(model="gone"), ended(1, ""))
    assert settling.usage()[0].price_version == "old"
    assert settling.alarms == []


def test_a_smaller_model_that_took_over_costs_its_own_price() -> None:
    small = replace(SMOLLM2, name="small", price=replace(SMOLLM2.price, version="small", output=Decimal(1)))
    settling = Settling(Tariff(models=(*DEFAULT_MODELS, small)))
    settling.submit(queued(), started(model="small"), ended(1, ""))
    assert (settling.usage()[0].model, settling.usage()[0].price_version) == ("small", "small")
