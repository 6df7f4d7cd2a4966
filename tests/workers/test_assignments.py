"""The worker's decisions, by example and under any interleaving."""

from hypothesis import given
from hypothesis import strategies as st

from inference_workers.assignments import (
    REMEMBER_MS,
    Action,
    Assignments,
    Begin,
    EndUnstarted,
    GiveBack,
    Leave,
    Stop,
)
from schemas.codec import Envelope
from schemas.events import CancellationRequested, GenerationRequested, GenerationRevoked
from schemas.values import Priority, PromptMessage, Sampling

EPOCH = 10


def request(
    name: str,
    *,
    epoch: int = EPOCH,
    attempt: int = 1,
    priority: Priority = "paid",
    deadline_at_ms: int = 10**9,
    kv_tokens: int = 0,
) -> Envelope[GenerationRequested]:
    event = GenerationRequested(
        pool="default",
        priority=priority,
        epoch=epoch,
        reply_id=name,
        conversation_id="c",
        account_id="a",
        generation_id=f"{name}-{attempt}",
        attempt=attempt,
        model="m",
        prompt=(PromptMessage(role="user", content="hi"),),
        sampling=Sampling(max_output_tokens=10),
        submitted_at_ms=0,
        deadline_at_ms=deadline_at_ms,
        kv_tokens=kv_tokens,
    )
    return Envelope(event=event, source="test")


def cancel(name: str) -> CancellationRequested:
    return CancellationRequested(conversation_id="c", reply_id=name, account_id="a", requested_at_ms=0)


def revoke(name: str, attempt: int = 1, epoch: int = EPOCH) -> GenerationRevoked:
    return GenerationRevoked(pool="default", epoch=epoch, reply_id=name, generation_id=f"{name}-{attempt}")


def machine(slots: int = 1, waiting_max: int = 10, kv_tokens: int = 0) -> Assignments:
    return Assignments(epoch=EPOCH, slots=slots, waiting_max=waiting_max, kv_tokens=kv_tokens)


def shown(actions: list[Action]) -> list[object]:
    """Actions as (name, generation) for comparing."""
    out: list[object] = []
    for action in actions:
        match action:
            case Begin(taken) | GiveBack(taken):
                out.append((type(action).__name__, taken.id))
            case EndUnstarted(taken, cancelled):
                out.append(("EndUnstarted", taken.id, "cancelled" if cancelled else "late"))
            case Stop(generation_id, reason):
                out.append(("Stop", generation_id, reason))
            case Leave(epoch):
                out.append(("Leave", epoch))
    return out


def test_a_request_begins_when_a_slot_is_free_and_waits_otherwise() -> None:
    m = machine()
    assert shown(m.requested(request("a"), 0)) == [("Begin", "a-1")]
    assert m.requested(request("b"), 0) == []
    assert m.free_slots == 0
    assert shown(m.freed("a-1", 0)) == [("Begin", "b-1")]


def test_a_stricter_priority_always_goes_first() -> None:
    m = machine()
    m.requested(request("a"), 0)
    m.requested(request("f1", priority="free"), 0)
    m.requested(request("f2", priority="free"), 0)
    m.requested(request("p", priority="paid"), 0)
    order = [shown(m.freed(name, 0))[0] for name in ("a-1", "p-1", "f1-1")]
    assert order == [("Begin", "p-1"), ("Begin", "f1-1"), ("Begin", "f2-1")]


def test_a_repeated_request_is_taken_once() -> None:
    m = machine(slots=2)
    m.requested(request("a"), 0)
    assert m.requested(request("a"), 0) == []
    m.freed("a-1", 0)
    assert m.requested(request("a"), 0) == []


def test_a_lower_epoch_is_ignored_and_a_higher_one_ends_this_worker() -> None:
    m = machine(slots=2)
    assert m.requested(request("old", epoch=EPOCH - 1), 0) == []
    m.requested(request("a"), 0)
    assert shown(m.requested(request("new", epoch=EPOCH + 5), 0)) == [
        ("Stop", "a-1", "superseded"),
        ("Leave", EPOCH + 5),
    ]
    assert m.requested(request("b"), 0) == []
    assert m.free_slots == 0


def test_a_cancel_stops_a_running_one_and_ends_a_waiting_one_that_then_never_starts() -> None:
    m = machine()
    m.requested(request("a"), 0)
    m.requested(request("b"), 0)
    assert shown(m.cancellation(cancel("b"), 0)) == [("EndUnstarted", "b-1", "cancelled")]
    assert shown(m.cancellation(cancel("a"), 0)) == [("Stop", "a-1", "cancelled")]
    assert m.cancellation(cancel("a"), 0) == []
    assert m.freed("a-1", 0) == []


def test_a_cancel_before_its_request_is_remembered_for_a_while() -> None:
    m = machine()
    assert m.cancellation(cancel("a"), 0) == []
    assert shown(m.requested(request("a"), REMEMBER_MS)) == [("EndUnstarted", "a-1", "cancelled")]
    m.cancellation(cancel("b"), 0)
    assert shown(m.requested(request("b"), REMEMBER_MS + 1)) == [("Begin", "b-1")]


def test_a_revoked_generation_stops_silently_also_before_it_came() -> None:
    m = machine()
    m.requested(request("a"), 0)
    m.requested(request("b"), 0)
    assert m.revoked(revoke("b")) == []
    assert m.waiting == 0
    assert shown(m.revoked(revoke("a"))) == [("Stop", "a-1", "revoked")]
    m.revoked(revoke("c"))
    assert m.requested(request("c"), 0) == []


def test_the_first_reason_counts() -> None:
    m = machine()
    m.requested(request("a"), 0)
    assert shown(m.stop("a-1", "stalled")) == [("Stop", "a-1", "stalled")]
    assert m.cancellation(cancel("a"), 0) == []
    assert m.stop("a-1", "deadline") == []


def test_a_higher_attempt_replaces_a_lower_one() -> None:
    m = machine(slots=2)
    m.requested(request("a"), 0)
    assert shown(m.requested(request("a", attempt=2), 0)) == [("Stop", "a-1", "revoked"), ("Begin", "a-2")]
    assert m.requested(request("a", attempt=1), 0) == []


def test_beyond_the_bound_a_request_is_given_back() -> None:
    m = machine(waiting_max=1)
    m.requested(request("a"), 0)
    m.requested(request("b"), 0)
    assert shown(m.requested(request("c"), 0)) == [("GiveBack", "c-1")]


def test_draining_gives_back_what_waits_and_what_arrives() -> None:
    m = machine()
    m.requested(request("a"), 0)
    m.requested(request("b"), 0)
    assert shown(m.drain()) == [("GiveBack", "b-1")]
    assert shown(m.requested(request("c"), 0)) == [("GiveBack", "c-1")]
    assert m.free_slots == 0
    assert shown(m.give_up()) == [("Stop", "a-1", "handed_back")]


def test_a_worker_without_a_queue_takes_what_it_can_begin() -> None:
    m = machine(slots=1, waiting_max=0)
    assert shown(m.requested(request("a"), 0)) == [("Begin", "a-1")]
    assert shown(m.requested(request("b"), 0)) == [("GiveBack", "b-1")]


def test_no_more_start_than_the_kv_cache_holds_and_none_passes_another() -> None:
    m = machine(slots=4, kv_tokens=100)
    assert shown(m.requested(request("a", kv_tokens=60), 0)) == [("Begin", "a-1")]
    assert m.requested(request("large", kv_tokens=41), 0) == []
    assert m.requested(request("small", kv_tokens=10), 0) == []
    assert m.requested(request("free", kv_tokens=1, priority="free"), 0) == []
    assert shown(m.freed("a-1", 0)) == [("Begin", "large-1"), ("Begin", "small-1"), ("Begin", "free-1")]


def test_one_that_is_larger_than_the_kv_cache_runs_alone() -> None:
    m = machine(slots=4, kv_tokens=100)
    assert shown(m.requested(request("huge", kv_tokens=500), 0)) == [("Begin", "huge-1")]
    assert m.requested(request("b", kv_tokens=1), 0) == []
    assert shown(m.freed("huge-1", 0)) == [("Begin", "b-1")]


def test_deadlines_hold_for_waiting_and_running() -> None:
    m = machine()
    m.requested(request("a", deadline_at_ms=100), 0)
    m.requested(request("b", deadline_at_ms=50), 0)
    assert shown(m.tick(60)) == [("EndUnstarted", "b-1", "late")]
    assert shown(m.tick(100)) == [("Stop", "a-1", "deadline")]
    assert m.tick(101) == []


names = st.sampled_from(["a", "b", "c", "d"])
happenings = st.one_of(
    st.tuples(st.just("request"), names, st.integers(min_value=1, max_value=3), st.sampled_from(["paid", "free"])),
    st.tuples(st.just("cancel"), names),
    st.tuples(st.just("revoke"), names, st.integers(min_value=1, max_value=3)),
    st.tuples(st.just("freed"), st.integers(min_value=0, max_value=3)),
    st.tuples(st.just("tick"), st.integers(min_value=0, max_value=200)),
    st.tuples(st.just("drain")),
)


@given(st.lists(happenings, max_size=60))
def test_each_generation_begins_at_most_once_and_slots_hold(history: list[tuple[object, ...]]) -> None:
    m = machine(slots=2, waiting_max=2)
    now_ms, running, begun, over = 0, [], [], []
    for happening in history:
        match happening:
            case ("request", str(name), int(attempt), priority):
                actions = m.requested(
                    request(name, attempt=attempt, priority=priority, deadline_at_ms=500),  # type: ignore[arg-type]
                    now_ms,
                )
            case ("cancel", str(name)):
                actions = m.cancellation(cancel(name), now_ms)
                assert not any(isinstance(action, Begin) for action in actions)
            case ("revoke", str(name), int(attempt)):
                actions = m.revoked(revoke(name, attempt))
            case ("freed", int(index)):
                actions = m.freed(running.pop(index), now_ms) if index < len(running) else []
            case ("tick", int(ms)):
                now_ms += ms
                actions = m.tick(now_ms)
            case _:
                actions = m.drain()
        for action in actions:
            match action:
                case Begin(taken):
                    running.append(taken.id)
                    begun.append(taken.id)
                case EndUnstarted(taken) | GiveBack(taken):
                    over.append(taken.id)
        assert len(running) == m.running <= 2
        assert m.waiting <= 2
    assert len(set(begun)) == len(begun)
    assert len(set(over)) == len(over)
    assert not set(begun) & set(over)
