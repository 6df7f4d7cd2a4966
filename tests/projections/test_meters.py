"""Charges are told to a billing provider, each once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from deployment import Deployment
from msgspec.structs import replace

from infra import usage_log
from projections.meters.meter import Later, Meter, Never, Told
from projections.meters.openmeter import OpenMeter
from projections.meters.rules import IMPORT_SOURCE, MeterEvent, Rules, Skipped, TooOld, meter_event
from projections.meters.step import MetersStep
from projections.meters.stripe_meter import StripeMeter
from schemas import events as e
from schemas.codec import Envelope
from schemas.examples import EXAMPLES
from streams.log.encoding import decoded
from streams.log.kafka import KafkaLog
from streams.log.kafka.offsets import Offsets
from streams.log.kafka.records import Names
from streams.log.kafka.settings import client
from streams.log.log import BEGINNING
from streams.log.memory import MemoryLog
from streams.log.steps import Arrived, Busy, LogError, Output, Partition, Record, TooManyDead
from tests.projections.meter_servers import OpenMeterHandler, Provider, StripeHandler

NOW_MS = time.time_ns() // 1_000_000
USAGE = Partition("usage", 0)
RULES = Rules(
    event_name="tokens",
    measure="tokens",
    tiers=frozenset({"paid"}),
    customers={"acme": "cus_acme", "gone": "cus_gone"},
    customer_prefix=None,
    age_max_ms=82_800_000,
)


def used(n: int = 1, account: str = "acme", **members: object) -> e.UsageRecorded:
    example = EXAMPLES[e.UsageRecorded]
    assert isinstance(example, e.UsageRecorded)
    names = {"reply_id": f"rep_{n:04d}", "account_id": account, "tier": "paid", "ended_at_ms": NOW_MS - 1_000}
    return replace(example, **{**names, **members})  # type: ignore[arg-type]


def test_a_charge_is_one_event_with_the_replys_id() -> None:
    event = meter_event(used(), RULES, NOW_MS)
    assert event == MeterEvent(
        identifier="rep_0001", event_name="tokens", customer="cus_acme", value="38", at_ms=NOW_MS - 1_000
    )


@pytest.mark.parametrize(("measure", "value"), [("tokens", "38"), ("output_tokens", "7"), ("cost", "0.00000223")])
def test_what_a_charge_counts_as_is_chosen(measure: str, value: str) -> None:
    event = meter_event(used(), replace(RULES, measure=measure), NOW_MS)  # type: ignore[arg-type]
    assert isinstance(event, MeterEvent)
    assert event.value == value


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (used(charged=False), "uncharged"),
        (used(record_kind="attempt-1"), "void"),
        (used(revision=2), "revision"),
        (used(tier="free"), "tier"),
        (used(account="stranger"), "customer"),
        (EXAMPLES[e.UsageAdjusted], "correction"),
        (EXAMPLES[e.PeriodClosed], "other"),
        (
            used(
                uncached_input_tokens=0,
                cache_read_input_tokens=0,
                cache_write_input_tokens=0,
                cache_write_long_input_tokens=0,
                output_tokens=0,
            ),
            "nothing",
        ),
    ],
)
def test_what_is_none_of_the_providers_business_is_not_told(event: e.Event, why: str) -> None:
    assert meter_event(event, RULES, NOW_MS) == Skipped(why)


def test_accounts_without_a_customer_of_their_own_have_the_prefixs() -> None:
    event = meter_event(used(account="other"), replace(RULES, customer_prefix="t-"), NOW_MS)
    assert isinstance(event, MeterEvent)
    assert event.customer == "t-other"


def test_what_the_provider_may_have_forgotten_is_not_told_by_itself() -> None:
    at_limit = used(ended_at_ms=NOW_MS - RULES.age_max_ms)
    assert isinstance(meter_event(at_limit, RULES, NOW_MS), MeterEvent)
    assert meter_event(at_limit, RULES, NOW_MS + 1) == TooOld(RULES.age_max_ms + 1)


def test_what_ended_before_usage_is_metered_is_not_told() -> None:
    since = replace(RULES, since_ms=NOW_MS - 10_000)
    assert isinstance(meter_event(used(ended_at_ms=NOW_MS - 10_000), since, NOW_MS), MeterEvent)
    assert meter_event(used(ended_at_ms=NOW_MS - 10_001), since, NOW_MS) == Skipped("before")
    assert meter_event(used(ended_at_ms=1), since, NOW_MS) == Skipped("before")


def test_what_an_import_brings_is_passed_over_when_it_is_old() -> None:
    old = used(ended_at_ms=NOW_MS - RULES.age_max_ms - 1)
    assert meter_event(old, RULES, NOW_MS, IMPORT_SOURCE) == Skipped("imported")
    assert isinstance(meter_event(used(), RULES, NOW_MS, IMPORT_SOURCE), MeterEvent)
    assert IMPORT_SOURCE == usage_log.SOURCE


def test_an_end_in_the_future_is_told_as_now() -> None:
    event = meter_event(used(ended_at_ms=NOW_MS + 600_000), RULES, NOW_MS)
    assert isinstance(event, MeterEvent)
    assert event.at_ms == NOW_MS


# --- both providers ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["stripe", "openmeter"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def provider(kind: str) -> Iterator[Provider]:
    running = Provider(StripeHandler if kind == "stripe" else OpenMeterHandler)
    yield running
    running.close()


def meter_of(kind: str, provider: Provider, key: str | None = None, timeout_s: float = 5.0) -> Meter:
    made = StripeMeter if kind == "stripe" else OpenMeter
    return made(key or provider.key, provider.url, timeout_s)


def told(n: int = 1, customer: str = "cus_acme") -> MeterEvent:
    return MeterEvent(
        identifier=f"rep_{n:04d}{'x' * (n % 2)}", event_name="tokens", customer=customer, value="38", at_ms=NOW_MS
    )


def test_an_event_is_taken_once_however_often_it_is_told(kind: str, provider: Provider) -> None:
    meter = meter_of(kind, provider)
    for n in (1, 2):
        assert meter.tell(told(n)) == Told()
        assert meter.tell(told(n)) == Told(again=kind == "stripe")
    assert list(provider.taken.values()) == [{"value": "38", "customer": "cus_acme", "event": "tokens"}] * 2


def test_an_answer_that_is_lost_is_asked_for_again(kind: str, provider: Provider) -> None:
    provider.faults.append("lost")
    meter = meter_of(kind, provider)
    assert isinstance(meter.tell(told()), Later)
    assert isinstance(meter.tell(told()), Told)
    assert len(provider.taken) == 1


@pytest.mark.parametrize("status", [409, 429, 500, 502, 503])
def test_what_passes_is_tried_again(kind: str, provider: Provider, status: int) -> None:
    provider.faults.append(status)
    outcome = meter_of(kind, provider).tell(told())
    assert isinstance(outcome, Later)
    assert not outcome.blocked
    assert (outcome.after_s == 0.0) == (status == 429)


def test_a_wrong_key_waits_for_a_person_and_is_not_shown(kind: str, provider: Provider) -> None:
    outcome = meter_of(kind, provider, key="sk_wrong_key_of_ours").tell(told())
    assert isinstance(outcome, Later)
    assert outcome.blocked
    assert "sk_wrong_key_of_ours" not in outcome.reason


def test_what_the_provider_will_never_take_is_said_with_its_words(kind: str, provider: Provider) -> None:
    outcome = meter_of(kind, provider).tell(told(customer="cus_gone"))
    assert isinstance(outcome, Never)
    assert "400" in outcome.reason


def test_a_provider_that_is_away_is_tried_again(kind: str) -> None:
    away = Provider(StripeHandler if kind == "stripe" else OpenMeterHandler)
    away.close()
    assert isinstance(meter_of(kind, away, timeout_s=1.0).tell(told()), Later)


# --- the step ------------------------------------------------------------------------------------------------------


class Stepping:
    """The step, on a log in memory, fed by hand."""

    def __init__(self, meter: Meter, *, at_once: int = 4, waiting_max: int = 1_000) -> None:
        self.log = MemoryLog(real_time=False)
        self.step = MetersStep(
            meter, RULES, self.log.writer("test"), at_once=at_once, waiting_max=waiting_max, jitter=lambda: 1.0
        )
        self.step.assigned({USAGE: 0})
        self.offset = 0
        self.now_ms = NOW_MS

    def submit(self, *events: e.Event) -> None:
        batch = []
        for event in events:
            record = Record(*USAGE, self.offset, event.key(), b"{}", (), self.now_ms)
            batch.append(Arrived(record, Envelope(event=event, source="test")))
            self.offset += 1
        self.step.submit(batch, self.now_ms)

    def until(self, condition: Callable[[], bool], *, pass_ms: int = 10) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, (self.step.counts, self.step.trouble)
            self.now_ms += pass_ms
            self.step.poll(self.now_ms)
            time.sleep(0.001)

    def finish(self, *, pass_ms: int = 10) -> None:
        self.until(lambda: self.step.settled() == {USAGE: self.offset}, pass_ms=pass_ms)


def test_a_stream_of_charges_with_faults_and_repetitions_is_told_once_each(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider))
    provider.faults += [500, "lost", 429, 503, "lost"]
    events = [used(n) for n in range(40)]
    stepping.submit(*events)
    stepping.finish(pass_ms=200)
    stepping.submit(*events[:10], used(100, tier="free"))
    stepping.finish()
    assert sorted(provider.taken) == sorted(event.reply_id for event in events)
    assert stepping.step.counts.failures >= 3
    assert stepping.step.counts.skipped == {"tier": 1}
    assert stepping.step.trouble == ""


def test_nothing_is_settled_past_a_charge_that_is_not_told(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider), at_once=1)
    stepping.submit(used(1))
    stepping.finish()
    provider.faults += [503] * 3
    stepping.submit(used(2), used(3))
    stepping.until(lambda: bool(stepping.step.trouble))
    assert stepping.step.settled() == {USAGE: 1}
    stepping.finish(pass_ms=500)
    assert len(provider.taken) == 3


def test_what_is_never_taken_becomes_a_dead_letter_and_the_rest_goes_on(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider))
    stepping.submit(used(1), used(2, account="gone"), used(3), used(4, ended_at_ms=NOW_MS - RULES.age_max_ms - 60_000))
    stepping.finish()
    assert sorted(provider.taken) == ["rep_0001", "rep_0003"]
    dead = stepping.log.records("usage.dead")
    reasons = sorted(dict(record.headers)["dead_error"].decode() for record in dead)  # type: ignore[union-attr]
    assert "23.0 hours old" in reasons[0]
    assert "400" in reasons[1]
    assert (stepping.step.counts.dead, stepping.step.counts.too_old) == (1, 1)


def test_however_many_are_too_old_they_stop_nothing_and_are_counted_and_kept(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider))
    old_ms = NOW_MS - RULES.age_max_ms - 60_000
    stepping.submit(*(used(n, ended_at_ms=old_ms) for n in range(500)), used(600), used(601, account="gone"))
    stepping.finish()
    assert sorted(provider.taken) == ["rep_0600"]
    assert (stepping.step.counts.too_old, stepping.step.counts.dead) == (500, 1)
    assert len(stepping.log.records("usage.dead")) == 501


def test_when_most_are_refused_the_process_stops_instead_of_giving_them_up(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider))
    stepping.submit(*(used(n, account="gone") for n in range(60)))
    with pytest.raises(TooManyDead):
        stepping.finish()
    assert len(stepping.log.records("usage.dead")) < 25


def test_what_waits_too_long_for_the_provider_is_not_told_when_it_may_have_been_forgotten() -> None:
    class Away:
        calls = 0

        def tell(self, event: MeterEvent) -> Later:
            self.calls += 1
            return Later("away")

        def close(self) -> None:
            return

    away = Away()
    stepping = Stepping(away)
    stepping.submit(used(1))
    stepping.until(lambda: away.calls > 0 and bool(stepping.step.trouble))
    stepping.now_ms += RULES.age_max_ms
    stepping.finish()
    assert (stepping.step.counts.dead, stepping.step.counts.too_old) == (0, 1)


def test_records_that_wait_are_bounded(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider), waiting_max=2)
    provider.faults += [503] * 20
    stepping.submit(used(1), used(2))
    with pytest.raises(Busy):
        stepping.submit(used(3))


def test_a_partition_that_moves_away_is_told_again_by_the_next(kind: str, provider: Provider) -> None:
    stepping = Stepping(meter_of(kind, provider))
    stepping.submit(*(used(n) for n in range(8)))
    stepping.step.revoked([USAGE])
    assert stepping.step.settled() == {}
    stepping.step.assigned({USAGE: 0})
    stepping.offset = 0
    stepping.submit(*(used(n) for n in range(8)))
    stepping.finish()
    assert len(provider.taken) == 8


# --- the process ---------------------------------------------------------------------------------------------------


@pytest.mark.servers
@pytest.mark.timeout(240)
def test_a_process_that_is_killed_and_restarted_tells_each_charge_once(
    provisioned: Deployment, kind: str, provider: Provider
) -> None:
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test")
    writer = log.writer("test")
    environment = {
        **os.environ,
        **provisioned.environment(),
        "TURNLOG_METER": kind,
        "TURNLOG_METER_KEY": provider.key,
        "TURNLOG_METER_URL": provider.url,
        "TURNLOG_METER_CUSTOMER_PREFIX": "cus_",
        "TURNLOG_METER_AT_ONCE": "4",
        "TURNLOG_METER_SINCE": "2020-01-01T00:00:00Z",
    }
    expected: set[str] = set()
    process: subprocess.Popen[bytes] | None = None
    try:
        for life in range(6):
            process = subprocess.Popen([sys.executable, "-m", "projections", "meters"], env=environment)
            events = [
                replace(used(life * 100 + n), account_id=f"a{n % 9}", ended_at_ms=time.time_ns() // 1_000_000)
                for n in range(60)
            ]
            expected |= {event.reply_id for event in events}
            provider.faults += [503, "lost", 429, "lost"]
            for event in (*events, *events[:20]):
                writer.append(Output(event=event))
            writer.flush(30)
            enough = len(provider.taken) + (10 if life < 5 else 0)
            deadline = time.monotonic() + 60
            while len(provider.taken) < (enough if life < 5 else len(expected)):
                assert time.monotonic() < deadline, (len(provider.taken), len(expected), process.poll())
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL if life < 5 else signal.SIGTERM)
            assert process.wait(60) == (-signal.SIGKILL if life < 5 else 0)
        assert set(provider.taken) == expected
        if kind == "stripe":
            assert provider.refused > 0, "no identifier was ever told twice"
    finally:
        if process is not None and process.poll() is None:
            process.kill()
        log.close()


HOUR_MS = 3_600_000


class Metered:
    """A deployment's `usage`, and the process that tells a provider of it."""

    def __init__(self, deployment: Deployment, kind: str, provider: Provider) -> None:
        self.deployment = deployment
        self.provider = provider
        self.log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "test")
        self.writer = self.log.writer("streams/settlement")
        self.partitions = [Partition("usage", number) for number in range(self.log.partitions("usage"))]
        self.offsets = Offsets(client(deployment.kafka_bootstrap, "test"), Names(deployment.namespace))
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            **deployment.environment(),
            "TURNLOG_METER": kind,
            "TURNLOG_METER_KEY": provider.key,
            "TURNLOG_METER_URL": provider.url,
            "TURNLOG_METER_CUSTOMER_PREFIX": "cus_",
        }

    def append(self, first: int, count: int, age_ms: int = 0) -> set[str]:
        """So many charges, their ids."""
        ended_ms = time.time_ns() // 1_000_000 - age_ms
        events = [used(n, account=f"a{n % 9}", ended_at_ms=ended_ms) for n in range(first, first + count)]
        for event in events:
            self.writer.append(Output(event=event))
        self.writer.flush(30)
        return {event.reply_id for event in events}

    def start(self, **settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "projections", "meters"], env={**self.environment, **settings}
        )

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.process is not None
            assert time.monotonic() < deadline, (len(self.provider.taken), self.process.poll())
            assert self.process.poll() is None, "the process has stopped"
            time.sleep(0.02)

    def stop(self, sign: int = signal.SIGTERM) -> int:
        assert self.process is not None
        os.kill(self.process.pid, sign)
        return self.process.wait(60)

    def has_begun(self) -> bool:
        """Where it goes on is durable, for each partition."""
        return all(self.offsets.has_begun("meters", [one]) for one in self.partitions)

    def go_back(self) -> None:
        """As `kafka-consumer-groups.sh --reset-offsets` does, which also has to wait until the member is forgotten."""
        deadline = time.monotonic() + 90
        while True:
            try:
                self.offsets.begin("meters", dict.fromkeys(self.partitions, 0))
            except LogError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
            else:
                return

    def dead(self) -> list[Record]:
        reader = self.log.reader([Partition("usage.dead", 0)], BEGINNING)
        (end,) = reader.ends().values()
        found: list[Record] = []
        while reader.positions()[Partition("usage.dead", 0)] < end:
            found += reader.poll(0.2)
        reader.close()
        return found

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture
def metered(provisioned: Deployment, kind: str, provider: Provider) -> Iterator[Metered]:
    made = Metered(provisioned, kind, provider)
    yield made
    made.close()


@pytest.mark.servers
@pytest.mark.timeout(240)
def test_meters_that_are_switched_on_for_a_history_begin_with_what_comes_then(
    metered: Metered, provider: Provider
) -> None:
    metered.append(0, 500, age_ms=30 * 24 * HOUR_MS)
    metered.append(500, 50)
    metered.start()
    metered.until(metered.has_begun)
    assert metered.stop(signal.SIGKILL) == -signal.SIGKILL
    new = metered.append(600, 20)
    metered.start()
    metered.until(lambda: set(provider.taken) >= new)
    assert metered.stop() == 0
    assert set(provider.taken) == new
    assert metered.dead() == []


@pytest.mark.servers
@pytest.mark.timeout(240)
def test_a_time_from_when_on_usage_is_metered_counts_for_a_new_group_too(metered: Metered, provider: Provider) -> None:
    metered.append(0, 30, age_ms=50 * HOUR_MS)
    told = metered.append(100, 30, age_ms=30 * HOUR_MS)
    since = datetime.fromtimestamp(time.time() - 40 * 3_600, UTC).isoformat()
    metered.start(TURNLOG_METER_SINCE=since, TURNLOG_METER_AGE_MAX_S=str(48 * 3_600))
    metered.until(lambda: set(provider.taken) >= told)
    assert metered.stop() == 0
    assert set(provider.taken) == told
    assert metered.dead() == []


@pytest.mark.servers
@pytest.mark.timeout(240)
def test_an_outage_longer_than_the_limit_leaves_a_list_of_what_was_not_told_and_is_made_good_from_the_log(
    metered: Metered, provider: Provider
) -> None:
    began = datetime.fromtimestamp(time.time() - 40 * 3_600, UTC).isoformat()
    metered.start()
    metered.until(metered.has_begun)
    before = metered.append(0, 20)
    metered.until(lambda: set(provider.taken) >= before)
    assert metered.stop() == 0
    missed = metered.append(100, 300, age_ms=30 * HOUR_MS)
    after = metered.append(500, 20)
    metered.start()
    metered.until(lambda: set(provider.taken) >= after and len(metered.dead()) >= 300)
    assert metered.stop() == 0
    assert set(provider.taken) == before | after
    assert {decoded(one).event.reply_id for one in metered.dead()} == missed  # type: ignore[union-attr]
    metered.go_back()
    metered.start(TURNLOG_METER_SINCE=began, TURNLOG_METER_AGE_MAX_S=str(48 * 3_600))
    metered.until(lambda: set(provider.taken) >= missed)
    assert metered.stop() == 0
    assert set(provider.taken) == before | missed | after
    assert len(metered.dead()) == 300
