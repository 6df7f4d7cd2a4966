"""The pure model of a GPU server: what holds at each of its steps, in every mode."""

import statistics
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_workers.engines.kv_blocks import KvBlocks, Run, chain, root
from inference_workers.engines.sequences import Sequence
from inference_workers.engines.simulated_presets import PRESETS, REQUESTS, PresetName, measured
from inference_workers.engines.simulation import Batch, Reserve, SimulatedSettings
from tests.benchmarks import batching, traffic

SMALL = SimulatedSettings(slots=5, kv_tokens=320, context_tokens=256, block_tokens=16, prefill_chunk_tokens=50)

MODES: list[dict[str, Any]] = [
    {},
    {"prefix_cache": False},
    {"reserve": "output"},
    {"reserve": "context"},
    {"batching": "request"},
    {"batching": "request", "reserve": "context"},
]


class Planned(msgspec.Struct, frozen=True):
    """A sequence of a property: its prompt is so many tokens of a stream that others begin with too."""

    stream: int
    prompt: int
    output: int
    salt: str
    after_steps: int
    cancelled_at: int | None


plans = st.lists(
    st.builds(
        Planned,
        stream=st.integers(0, 1),
        prompt=st.integers(1, 150),
        output=st.integers(1, 100),
        salt=st.sampled_from(["", "a", "b"]),
        after_steps=st.integers(0, 20),
        cancelled_at=st.none() | st.integers(1, 60),
    ),
    min_size=1,
    max_size=14,
)


def made(name: str, plan: Planned, server: SimulatedSettings) -> Sequence:
    first = root(plan.salt)
    return Sequence(
        id=name,
        prompt_tokens=plan.prompt,
        prompt=chain([Run(name=plan.stream, length=plan.prompt)], server.block_tokens, first),
        first=first,
        output=tuple(range(plan.output)),
        length=plan.output,
        limit=plan.output + 5,
    )


def conserved(batch: Batch) -> None:
    blocks = batch.blocks
    assert min(blocks.free, blocks.held, blocks.referenced, blocks.cached) >= 0
    assert blocks.free + blocks.held + blocks.referenced + blocks.cached == blocks.total


def played(plans: list[Planned], server: SimulatedSettings) -> list[tuple[float, list[tuple[str, int]]]]:
    """Run it to the end, checking what holds at each step; the duration and the tokens of each step."""
    batch = Batch(server)
    waiting = sorted(((plan.after_steps, n, plan) for n, plan in enumerate(plans)), reverse=True)
    given: dict[str, int] = {}
    cancelled: set[str] = set()
    history = []
    for number in range(10_000):
        while waiting and waiting[-1][0] <= number:
            _, n, plan = waiting.pop()
            given[str(n)] = 0
            batch.add(made(str(n), plan, server))
            conserved(batch)
        for name in list(given):
            if plans[int(name)].cancelled_at == number:
                cancelled.add(name)
                batch.remove(name)
        step = batch.step()
        conserved(batch)
        assert len(batch.running) <= batch.active <= server.slots
        if step is None:
            if not waiting:
                break
            continue
        assert step.duration_s > 0
        history.append((step.duration_s, [(one.id, one.given) for one in step.produced]))
        for one in step.produced:
            given[one.id] += 1
            assert one.given == given[one.id], "each token once, in order"
            if one.given == one.length:
                batch.remove(one.id)
                conserved(batch)
    for name, count in given.items():
        assert count == plans[int(name)].output or name in cancelled, f"{name} starved"
    assert batch.active == len(batch.waiting) == batch.kv_tokens_used == 0
    return history


@pytest.mark.parametrize("mode", MODES, ids=str)
@settings(deadline=None, max_examples=30)
@given(plans)
def test_blocks_are_conserved_each_token_comes_once_and_nobody_starves(
    mode: dict[str, Any], given: list[Planned]
) -> None:
    played(given, msgspec.structs.replace(SMALL, **mode))


@settings(deadline=None, max_examples=25)
@given(plans, st.integers(0, 5))
def test_the_same_seed_gives_the_same_run(given: list[Planned], seed: int) -> None:
    server = msgspec.structs.replace(SMALL, seed=seed, jitter=0.2)
    assert played(given, server) == played(given, server)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 40), st.text(max_size=3), st.text(max_size=3))
def test_blocks_of_different_salts_never_have_a_name_in_common(
    prefix: list[int], words: int, one: str, other: str
) -> None:
    runs = [*(Run(name=number, length=32) for number in prefix), Run(tokens=tuple(range(words)))]
    mine, theirs = (set(chain(runs, 16, root(salt)).names) for salt in (one, other))
    assert mine == theirs if one == other else not mine & theirs


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), max_size=60), st.lists(st.integers(0, 60), max_size=3), st.integers(1, 8))
def test_names_do_not_depend_on_how_known_tokens_are_cut(tokens: list[int], cuts: list[int], size: int) -> None:
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    parts = [Run(tokens=tuple(tokens[start:end])) for start, end in pairwise(edges)]
    assert chain(parts, size, 7) == chain([Run(tokens=tuple(tokens))], size, 7)


def test_the_block_that_was_used_the_longest_time_ago_is_evicted_first() -> None:
    blocks = KvBlocks(3)
    assert blocks.take(3)
    for name in (1, 2, 3):
        blocks.name(name)
    blocks.release([1], 0)
    blocks.release([2], 0)
    assert not blocks.take(3), "3 is in use"
    assert blocks.take(1)
    assert blocks.share([2]) == 1
    assert blocks.share([1]) == 0


def run_out(prompts: list[int], output: int, **changes: Any) -> tuple[Batch, list[str]]:
    """All at once to the end; the batch, and the names in the order in which they ended."""
    batch = Batch(msgspec.structs.replace(SMALL, **changes))
    for n, prompt in enumerate(prompts):
        batch.add(Sequence(id=str(n), prompt_tokens=prompt, length=output, limit=output))
    ended: list[str] = []
    while (step := batch.step()) is not None:
        for one in step.produced:
            if one.given == output:
                batch.remove(one.id)
                ended.append(one.id)
    return batch, ended


def test_when_no_block_is_left_the_youngest_gives_way_and_the_oldest_never() -> None:
    batch, ended = run_out([60, 60, 60, 60], 100)
    assert batch.preemptions > 0
    assert ended == ["0", "1", "2", "3"]


@pytest.mark.parametrize("reserve", ["output", "context"])
def test_reserved_room_is_never_taken_back(reserve: str) -> None:
    batch, ended = run_out([60, 60, 60, 60], 100, reserve=reserve)
    assert batch.preemptions == 0
    assert sorted(ended) == ["0", "1", "2", "3"]


def running_at_once(**changes: Any) -> int:
    batch = Batch(msgspec.structs.replace(SMALL, slots=100, **changes))
    for n in range(20):
        batch.add(Sequence(id=str(n), prompt_tokens=16, length=5, limit=40))
    batch.step()
    return batch.active


def test_less_in_advance_is_more_at_once() -> None:
    assert running_at_once(reserve="context") == 1
    assert running_at_once(reserve="output") == 5
    assert running_at_once(reserve="nothing") > 5


def test_a_batch_by_requests_keeps_its_slots_until_its_last_sequence_has_ended() -> None:
    batch = Batch(msgspec.structs.replace(SMALL, batching="request", slots=2))
    for name, length in (("short", 2), ("long", 5), ("next", 1)):
        batch.add(Sequence(id=name, prompt_tokens=5, length=length))
    entered = []
    while (step := batch.step()) is not None:
        entered.append((batch.active, sorted(one.id for one in step.produced)))
        for one in step.produced:
            if one.given == one.length:
                batch.remove(one.id)
    both = ["long", "short"]
    assert entered == [(2, both), (2, both), (2, ["long"]), (2, ["long"]), (2, ["long"]), (1, ["next"])]


def test_long_prompts_are_read_in_pieces_between_the_tokens_of_others() -> None:
    batch = Batch(SMALL)
    batch.add(Sequence(id="talks", prompt_tokens=10, length=50))
    batch.step()
    batch.add(Sequence(id="reads", prompt_tokens=120, length=5))
    steps = [batch.step() for _ in range(3)]
    assert [[one.id for one in step.produced] for step in steps if step] == [["talks"], ["talks"], ["talks", "reads"]]


def test_decoding_takes_longer_with_more_sequences_and_with_more_tokens_in_the_cache() -> None:
    def duration(sequences: int, prompt: int) -> float:
        server = SimulatedSettings(jitter=0.0, kv_tokens=1_000_000, prefill_chunk_tokens=1_000_000)
        batch = Batch(server)
        for n in range(sequences):
            batch.add(Sequence(id=str(n), prompt_tokens=prompt, length=5))
        batch.step()
        step = batch.step()
        assert step is not None
        return step.duration_s

    base = 0.001 + 0.012
    assert duration(1, 100) == pytest.approx(base + 187.5e-6 + 101 * 10e-9)
    assert duration(8, 5000) == pytest.approx(base + 8 * 187.5e-6 + 8 * 5001 * 10e-9)


def test_who_continues_a_conversation_finds_prompt_and_answer_in_the_cache() -> None:
    batch = Batch(SMALL)
    words, said = tuple(range(20)), tuple(range(100, 130))
    first = Sequence(id="a", prompt_tokens=20, prompt=chain([Run(tokens=words)], 16, 0), output=said, length=len(said))
    batch.add(first)
    while first.given < first.length:
        batch.step()
    batch.remove("a")
    longer = Sequence(
        id="b", prompt_tokens=60, prompt=chain([Run(tokens=words + said + tuple(range(10)))], 16, 0), length=1
    )
    batch.add(longer)
    assert longer.cached == 48


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Batch(SMALL).add(Sequence(id="a", prompt_tokens=200, length=200))


CHECKED = ((128, 2048), (1000, 1000), (2048, 128), (20_000, 2_000))


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.published])
def test_a_preset_gives_the_published_throughput_within_its_error(name: PresetName) -> None:
    preset = PRESETS[name]
    assert set(preset.published) == set(REQUESTS)
    for lengths in CHECKED:
        tokens_per_s = measured(preset.server, lengths, REQUESTS[lengths])
        assert tokens_per_s == pytest.approx(preset.published[lengths], rel=preset.error), lengths


@pytest.mark.parametrize(("mode", "reserve"), [(batching.RESERVED, "context"), (batching.PAGED, "nothing")])
def test_the_preset_of_vllms_paper_has_as_many_requests_in_its_batch_as_the_paper_tells(
    mode: str, reserve: Reserve
) -> None:
    preset = PRESETS[batching.PAPER]
    assert batching.batched(mode).active == pytest.approx(preset.batched[reserve], rel=preset.error)


def test_that_preset_holds_what_the_papers_table_says() -> None:
    server = PRESETS[batching.PAPER].server
    token_bytes, bandwidth = 2 * 40 * 5_120 * 2, 1_555e9
    assert server.kv_tokens * token_bytes == pytest.approx(12 * 2**30, rel=0.01)
    assert server.kv_token_s == pytest.approx(token_bytes / bandwidth, rel=0.01)
    assert server.token_s == pytest.approx(26e9 / bandwidth, rel=0.01)
    lengths = traffic.sharegpt(7_200, 1)
    assert statistics.fmean(one.prompt_tokens for one in lengths) == pytest.approx(161, rel=0.02)
    assert statistics.fmean(one.output_tokens for one in lengths) == pytest.approx(338, rel=0.02)
