"""Which worker gets a request: warm prefixes up to a bound, room, and the same choice in every process."""

from typing import Any

import pytest

from schemas.events import GenerationRequested
from schemas.prefix import BLOCK_BYTES, blocks, packed, rendered, salt_of
from schemas.values import PromptMessage, Sampling
from streams.dispatch.caches import Caches
from streams.dispatch.limits import Limits
from streams.dispatch.placement import Room, choose, room_for
from streams.dispatch.pool import Lease, Progress, Request, Worker
from streams.dispatch.records import made
from streams.dispatch.step import Dispatch
from tests.streams.driver import NUMBER, Driver, of
from tests.streams.events import admitted, finished, leased, registered

LIMITS = Limits()


def prompt(*texts: str) -> tuple[PromptMessage, ...]:
    return tuple(PromptMessage(role="assistant" if n % 2 else "user", content=text) for n, text in enumerate(texts))


MARKS = len(rendered(prompt("")))
LONG = prompt("a" * (8 * BLOCK_BYTES - MARKS))


def names(said: tuple[PromptMessage, ...] = LONG, account: str = "acc") -> frozenset[int]:
    return frozenset(blocks(salt_of(account), said))


def request(number: int = 1, said: tuple[PromptMessage, ...] = LONG, lost: int = 0, **given: Any) -> Request:
    members: dict[str, Any] = {"prompt": said, "prompt_tokens_estimate": 1_000}
    progress = Progress(killed=tuple(f"i{n}" for n in range(lost)))
    return made(admitted(number, **(members | given)), number, None, progress)


def worker(inbox: int, slots: int = 8, kv_tokens: int = 0, **given: Any) -> Worker:
    held = given.get("held", 0)
    members: dict[str, Any] = {
        "registered": registered(inbox, slots=slots, kv_tokens=kv_tokens),
        "epoch": inbox,
        "free_slots": slots - held,
        "free_tokens": kv_tokens - given.get("held_tokens", 0),
    }
    return Worker(**(members | given))


def chosen(
    workers: list[Worker], one: Request, had_it: Lease | None = None, last: int = -1, **limits: Any
) -> int | None:
    found = choose(workers, one, caches(workers).shared(one.blocks), had_it, last, Limits(**limits))
    return found.worker.registered.inbox if found else None


def caches(workers: list[Worker]) -> Caches:
    known = Caches({})
    for one in workers:
        known.changed(None, one)
    return known


def room(one: Worker, of: Request) -> Room | None:
    return room_for(one, of, caches([one]).shared(of.blocks).get(one.registered.inbox, 0), LIMITS)


def tokens_needed(one: Worker, of: Request) -> int | None:
    found = room(one, of)
    return found.kv_tokens if found else None


def has_room(one: Worker, of: Request) -> bool:
    return room(one, of) is not None


# --- prefixes and load -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [0, 1, 2])
def test_a_warm_prefix_beats_load_within_the_bound(warm: int) -> None:
    workers = [worker(n, held=4, prefixes=names() if n == warm else frozenset()) for n in range(3)]
    assert chosen(workers, request()) == warm


@pytest.mark.parametrize(("held", "stays"), [(4, True), (5, True), (6, False)])
def test_beyond_the_bound_it_does_not(held: int, stays: bool) -> None:
    # With `held` and 3 running on 8 slots each, the bound is 1.2 times half of (held + 4), rounded up.
    workers = [worker(0, held=held, prefixes=names()), worker(1, held=3)]
    assert (chosen(workers, request()) == 0) == stays


def test_the_longer_warm_prefix_wins() -> None:
    some = frozenset(blocks(salt_of("acc"), LONG)[:4])
    assert chosen([worker(0, prefixes=some), worker(1, prefixes=names()), worker(2)], request()) == 1


def test_a_block_counts_only_where_all_before_it_are_cached() -> None:
    tail = frozenset(blocks(salt_of("acc"), LONG)[1:])
    assert tokens_needed(worker(0, kv_tokens=10_000, prefixes=tail), request()) == 1_100


def test_the_worker_that_had_the_conversation_counts_as_half_warm() -> None:
    short = request(said=prompt("hello"))
    assert chosen([worker(0, held=1), worker(1, held=2)], short, had_it=(1, 1)) == 1
    quarter = frozenset(blocks(salt_of("acc"), LONG)[:2])
    assert chosen([worker(0, prefixes=quarter), worker(1)], request(), had_it=(1, 1)) == 1
    assert chosen([worker(0, prefixes=names()), worker(1)], request(), had_it=(1, 1)) == 0


@pytest.mark.parametrize("workers", [2, 5, 16])
def test_a_hot_prefix_overloads_no_worker_while_others_idle(workers: int) -> None:
    drive = driver(inboxes=workers, running_max_free=1_000)
    drive.take(*(registered(n, slots=8) for n in range(workers)))
    drive.take(leased(0, free_slots=8, prefixes=packed(names()), whole=True))
    for number in range(workers * 8):
        drive.take(admitted(number, prompt=LONG))
        held = [one.held for one in pool_of(drive).workers.values()]
        assert max(held) <= -(-1.2 * sum(held) // workers)
    assert held == [8] * workers


def test_a_first_message_that_differs_changes_the_choice() -> None:
    other = prompt("b" * BLOCK_BYTES, "a" * 7 * BLOCK_BYTES)
    same_end = prompt("a" * BLOCK_BYTES, "a" * 7 * BLOCK_BYTES)
    workers = [worker(0, prefixes=names(same_end)), worker(1, prefixes=names(other))]
    assert (chosen(workers, request(said=same_end)), chosen(workers, request(said=other))) == (0, 1)
    assert not names(same_end) & names(other)


def test_accounts_share_no_prefix() -> None:
    workers = [worker(0, kv_tokens=10_000, held=1, prefixes=names()), worker(1, kv_tokens=10_000)]
    assert chosen(workers, request()) == 0
    assert chosen(workers, request(account_id="other")) == 1


def test_equal_choices_are_made_by_conversation_the_same_in_every_order_of_workers() -> None:
    workers = [worker(n) for n in range(8)]
    found = [chosen(workers, request(number)) for number in range(400)]
    assert found == [chosen(workers[::-1], request(number)) for number in range(400)]
    assert all(30 <= found.count(n) <= 70 for n in range(8))


# --- room ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held_tokens", "fits"), [(899, True), (900, True), (901, False)])
def test_a_request_needs_kv_tokens_for_its_prompt_and_longest_reply(held_tokens: int, fits: bool) -> None:
    assert has_room(worker(0, kv_tokens=2_000, held=1, held_tokens=held_tokens), request()) == fits


def test_what_is_cached_needs_no_room() -> None:
    half = frozenset(blocks(salt_of("acc"), LONG)[:4])
    cold = worker(0, kv_tokens=2_000, held=1, held_tokens=1_400)
    assert not has_room(cold, request())
    assert has_room(worker(0, kv_tokens=2_000, held=1, held_tokens=1_400, prefixes=half), request())
    assert has_room(worker(0, kv_tokens=2_000, held=1, held_tokens=1_400, fresh=half), request())


@pytest.mark.parametrize("character", ["a", "é", "語", "🙂"])
@pytest.mark.parametrize("cached_blocks", [0, 2, 4, 8])
def test_the_cached_part_of_a_prompt_is_a_part_of_its_bytes_in_any_script(character: str, cached_blocks: int) -> None:
    fills = 8 * BLOCK_BYTES - MARKS
    said = prompt(character * (fills // len(character.encode())) + "a" * (fills % len(character.encode())))
    one = request(said=said)
    some = frozenset(one.blocks[:cached_blocks])
    found = room(worker(0, kv_tokens=10_000, prefixes=some), one)
    assert found is not None
    assert found.cached == cached_blocks / 8
    assert found.kv_tokens == 1_100 - 1_000 * cached_blocks // 8


def test_a_quarter_of_a_chinese_prompt_is_less_than_what_the_last_worker_counts() -> None:
    one = request(said=prompt("語" * 2_000))
    quarter = frozenset(one.blocks[: len(one.blocks) // 4])
    assert chosen([worker(0, prefixes=quarter), worker(1)], one, had_it=(1, 1)) == 1


def test_the_stricter_of_what_a_worker_says_and_what_we_know_counts() -> None:
    assert not has_room(worker(0, kv_tokens=10_000, held=1, free_tokens=1_000), request())
    assert not has_room(worker(0, held=1, free_slots=0), request())
    assert not has_room(worker(0, held=8, free_slots=8), request())


def test_one_that_is_larger_than_the_worker_goes_to_an_empty_one_alone() -> None:
    large = request(sampling=Sampling(max_output_tokens=50_000))
    busy = worker(0, kv_tokens=2_000, held=1, held_tokens=500)
    assert chosen([busy, worker(1, kv_tokens=2_000)], large) == 1
    assert chosen([busy], large) is None
    assert tokens_needed(worker(1, kv_tokens=2_000), large) == 2_000


def test_only_workers_of_its_model_are_asked() -> None:
    assert chosen([worker(0)], request(model="other")) is None


@pytest.mark.parametrize(("lost", "goes_to"), [(1, 0), (2, 1), (3, 1)])
def test_one_that_was_lost_twice_runs_alone_among_its_like(lost: int, goes_to: int) -> None:
    workers = [worker(0, isolated=1, held=1, prefixes=names()), worker(1, held=1)]
    assert chosen(workers, request(lost=lost)) == goes_to


@pytest.mark.parametrize(("attempts", "suspect_from"), [(1, 2), (2, 2), (3, 2), (4, 3), (10, 9)])
def test_the_last_attempt_is_the_one_alone_and_never_before_two_deaths(attempts: int, suspect_from: int) -> None:
    limits = Limits(attempts_max=attempts)
    assert [limits.is_suspect(lost) for lost in range(12)] == [lost >= suspect_from for lost in range(12)]


# --- other ways, to compare with -------------------------------------------------------------------------------


def test_round_robin_takes_the_next_inbox_whatever_is_cached_and_skips_the_full() -> None:
    workers = [worker(0, prefixes=names()), worker(3), worker(5, held=8), worker(9)]
    robin: dict[str, Any] = {"placement": "round_robin"}
    assert [chosen(workers, request(), last=last, **robin) for last in (-1, 0, 3, 9)] == [0, 3, 9, 0]


def test_least_requests_takes_the_one_with_the_fewest_whatever_is_cached() -> None:
    workers = [worker(0, held=3, prefixes=names()), worker(1, held=2), worker(2, held=4)]
    assert chosen(workers, request(), had_it=(0, 0), placement="least_requests") == 1


# --- leases ----------------------------------------------------------------------------------------------------


def driver(**limits: Any) -> Driver:
    return Driver(lambda: Dispatch(frozenset({"default"}), Limits(**limits)))


def pool_of(drive: Driver) -> Any:
    assert isinstance(drive.step, Dispatch)
    return drive.step.shard(NUMBER).pools["default"]


def known(drive: Driver, inbox: int = 0) -> frozenset[int]:
    prefixes = pool_of(drive).workers[inbox].prefixes
    assert isinstance(prefixes, frozenset)
    return prefixes


def test_leases_tell_prefixes_as_changes_and_now_and_then_as_a_whole() -> None:
    drive = driver()
    drive.take(registered(0))
    drive.take(leased(0, prefixes=packed([1, 2, 3]), whole=True))
    drive.take(leased(0, prefixes=packed([4]), dropped=packed([1])))
    assert known(drive) == {2, 3, 4}
    drive.take(leased(0))
    assert known(drive) == {2, 3, 4}
    drive.take(leased(0, prefixes=packed([7]), whole=True))
    assert known(drive) == {7}
    drive.take(leased(0, whole=True))
    assert known(drive) == frozenset()


def test_what_a_worker_was_given_counts_as_cached_until_its_next_lease_says_what_is() -> None:
    drive = driver()
    drive.take(registered(0), registered(1), admitted(1, prompt=LONG))
    [first] = of([output.event for output in drive.outputs], GenerationRequested)
    assert pool_of(drive).workers[first.epoch].fresh == names()
    drive.take(leased(first.epoch, epoch=first.epoch, free_slots=1))
    assert pool_of(drive).workers[first.epoch].fresh == frozenset()


def test_a_worker_that_comes_anew_has_nothing_cached() -> None:
    drive = driver()
    drive.take(registered(0), leased(0, prefixes=packed([1]), whole=True), registered(0, instance="b"))
    assert known(drive) == frozenset()


@pytest.mark.parametrize(("successor", "goes_to"), [(False, 0), (True, 1)])
def test_the_successor_of_the_worker_that_had_a_conversation_counts_as_cold(successor: bool, goes_to: int) -> None:
    drive = driver()
    drive.take(registered(0, slots=8), admitted(1, conversation_id="conv"))
    drive.take(finished(1))
    if successor:
        drive.take(registered(0, instance="b", slots=8))
    drive.take(admitted(2))
    drive.take(registered(1, slots=8))
    drive.take(admitted(3, conversation_id="conv"))
    assert [output.partition for output in drive.outputs] == [0, 0, goes_to]


def test_a_restarted_dispatch_knows_the_workers_of_the_conversations_that_run() -> None:
    drive = driver()
    drive.take(registered(0, slots=8), admitted(1, conversation_id="conv"), registered(1, slots=8))
    drive.restart()
    inbox = drive.outputs[0].partition
    drive.take(admitted(2, conversation_id="conv"))
    assert [output.partition for output in drive.outputs] == [inbox, inbox]


def test_a_restarted_dispatch_learns_the_prefixes_from_the_next_whole_lease() -> None:
    drive = driver()
    drive.take(registered(0), registered(1), leased(1, epoch=1, prefixes=packed(names()), whole=True))
    drive.restart()
    assert known(drive, 1) == frozenset()
    drive.take(leased(1, epoch=1, prefixes=packed(names()), whole=True))
    drive.outputs.clear()
    drive.take(admitted(2, prompt=LONG))
    assert [output.partition for output in drive.outputs] == [1]


@pytest.mark.parametrize(("ms", "given"), [(1_999, 1), (2_000, 0)])
def test_a_worker_whose_lease_is_stale_gets_nothing_until_it_renews(ms: int, given: int) -> None:
    drive = driver()
    drive.take(registered(0))
    drive.flow_ms += ms
    assert len(drive.take(admitted(1))) == given
    assert len(drive.take(leased(0))) == 1 - given


def test_a_draining_worker_gets_nothing_however_warm() -> None:
    drive = driver()
    drive.take(registered(0), registered(1))
    drive.take(leased(0, prefixes=packed(names()), whole=True, draining=True))
    drive.take(admitted(1, prompt=LONG))
    assert [output.partition for output in drive.outputs] == [1]


def test_two_dispatchers_that_read_the_same_records_choose_the_same() -> None:
    choices = []
    for _ in range(2):
        drive = driver()
        drive.take(*(registered(n, slots=4) for n in range(4)))
        for n in range(4):
            said = prompt(f"{n}" * 4 * BLOCK_BYTES)
            drive.take(leased(n, epoch=n, free_slots=4, prefixes=packed(names(said)), whole=True))
        for number in range(40):
            said = prompt(f"{number % 4}" * 4 * BLOCK_BYTES, "and then", f"{number}")
            drive.take(admitted(number, prompt=said, conversation_id=f"conv_{number % 7}"))
            running = of([output.event for output in drive.outputs], GenerationRequested)
            if number >= 8:
                done = running[number - 8]
                drive.take(finished(int(done.reply_id.removeprefix("rep_")), inbox=done.epoch, epoch=done.epoch))
        choices.append([output.partition for output in drive.outputs])
    assert choices[0] == choices[1]
    assert len(set(choices[0])) == 4
