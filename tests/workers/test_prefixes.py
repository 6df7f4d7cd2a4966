"""What a worker tells of its cached prefixes, and that whoever listens knows what it knows."""

from hypothesis import given
from hypothesis import strategies as st

from inference_workers.prefixes import BLOCKS_MAX, BLOCKS_UNKNOWN, WHOLE_EVERY, Prefixes
from schemas.prefix import BLOCK_BYTES, blocks, packed, unpacked
from schemas.values import PromptMessage

NAMES = st.lists(st.integers(0, 60), max_size=30)


@given(st.lists(NAMES, max_size=40), st.integers(1, 50))
def test_a_listener_of_all_renewals_knows_what_the_worker_knows(uses, most):
    prefixes = Prefixes(most * BLOCK_BYTES // 4)
    known: set[int] = set()
    for renewal, names in enumerate(uses, start=1):
        prefixes.used(names)
        told = prefixes.tell(renewal)
        known = (set() if told.whole else known) | set(unpacked(told.prefixes))
        known -= set(unpacked(told.dropped))
        assert known == set(prefixes._blocks)
        assert len(known) <= most


def test_a_listener_that_came_late_knows_all_with_the_next_whole_one():
    prefixes = Prefixes(0)
    prefixes.used([1, 2, 3])
    wholes = [renewal for renewal in range(2, 2 + WHOLE_EVERY) if prefixes.tell(renewal).whole]
    assert len(wholes) == 1
    assert set(unpacked(prefixes.tell(1).prefixes)) == {1, 2, 3}


def test_the_least_recently_used_is_forgotten_at_the_limit():
    prefixes = Prefixes(3 * BLOCK_BYTES // 4)
    prefixes.used([1, 2, 3])
    prefixes.tell(2)
    prefixes.used([1, 4])
    told = prefixes.tell(3)
    assert (unpacked(told.prefixes), unpacked(told.dropped)) == ((4,), (2,))


def test_what_is_told_is_bounded():
    for kv_tokens, most in ((0, BLOCKS_UNKNOWN), (10**9, BLOCKS_MAX)):
        prefixes = Prefixes(kv_tokens)
        prefixes.used(range(BLOCKS_MAX + 100))
        assert len(unpacked(prefixes.tell(1).prefixes)) == most


def said(*contents: str) -> tuple[PromptMessage, ...]:
    roles = ("user", "assistant")
    return tuple(PromptMessage(role=roles[n % 2], content=content) for n, content in enumerate(contents))


@given(st.text(max_size=2_000), st.text(max_size=2_000), st.text(max_size=2_000))
def test_the_next_turns_prompt_begins_with_the_blocks_of_this_one(asked, answered, then):
    before = blocks("salt", said(asked, answered))
    assert blocks("salt", said(asked, answered, then))[: len(before)] == before


@given(st.text(min_size=300, max_size=2_000), st.text(min_size=300, max_size=2_000))
def test_salts_share_nothing_and_a_block_stands_for_all_before_it(one, other):
    mine = blocks("salt", said(one * 4, other))
    assert not set(mine) & set(blocks("pepper", said(one * 4, other)))
    assert not set(mine) & set(blocks("salt", said("x" + one * 4, other)))


def test_what_is_no_packed_text_holds_nothing():
    assert [unpacked(text) for text in ("", "!", "AAA", "AAAA")] == [(), (), (), ()]
    assert unpacked(packed([1, 2**32 - 1])) == (1, 2**32 - 1)
