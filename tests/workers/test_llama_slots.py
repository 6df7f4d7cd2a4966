"""Which slot a prompt goes to, and whether it may use what is there."""

from itertools import takewhile

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from inference_workers.engines.llama_slots import Choice, Salt, Slot, after, choose, common_prefix


def held(number: int, text: str, *salts: Salt, used: int = 0) -> Slot:
    return Slot(id=number, salts=frozenset(salts), text=text, used=used)


def test_a_conversation_goes_on_in_its_slot() -> None:
    free = (held(0, "hello", "b", used=1), Slot(id=1), held(2, "hello, you", "a", used=2), held(3, "hell", "a", used=3))
    assert choose(free, "a", "hello, you again") == Choice(2, reuse=True)


def test_another_conversation_of_the_account_takes_an_empty_slot_first() -> None:
    free = (held(0, "system: a long story about a fox", "a", used=1), Slot(id=1))
    assert choose(free, "a", "system: what else") == Choice(1, reuse=True)


def test_without_an_empty_one_the_least_recently_used_is_taken_and_emptied() -> None:
    free = (held(0, "hello, you", "b", used=7), held(1, "hello, you", "c", used=5), held(2, "x", "d", used=6))
    assert choose(free, "a", "hello, you") == Choice(1, reuse=False)


def test_no_salt_is_a_salt() -> None:
    free = (held(0, "hello", None, used=1),)
    assert choose(free, None, "hello") == Choice(0, reuse=True)
    assert choose(free, "a", "hello") == Choice(0, reuse=False)


def test_a_request_that_never_began_may_have_left_what_was_there() -> None:
    slot = after(held(0, "hello", "a", used=1), "b", "secret", began=False, used=2)
    assert choose((slot,), "a", "hello") == Choice(0, reuse=False)
    assert choose((slot,), "b", "hello") == Choice(0, reuse=False)
    assert choose((after(slot, "b", "secret", began=True, used=3),), "b", "secret") == Choice(0, reuse=True)


salts = st.sampled_from([None, "a", "b"])
texts = st.text("xy", max_size=6)


@given(texts, texts)
def test_the_common_prefix_is_what_both_begin_with(one: str, other: str) -> None:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    assert common_prefix(one, other) == len(list(same))


class Use(msgspec.Struct, frozen=True):
    salt: Salt
    text: str
    began: bool
    stays: int
    """Requests that begin before this one ends."""


uses = st.lists(st.builds(Use, salts, texts, st.booleans(), st.integers(0, 2)), max_size=25)


@given(uses)
def test_nobody_uses_what_another_account_has_put_there(history: list[Use]) -> None:
    """Against a server that, where a request did not begin, may keep what it held, or not: here it keeps it."""
    free = {number: Slot(id=number) for number in range(3)}
    contents: dict[int, tuple[Salt, str] | None] = dict.fromkeys(free)
    running: list[tuple[int, Slot, Use]] = []

    def end(slot: Slot, use: Use, number: int) -> None:
        free[slot.id] = after(slot, use.salt, use.text, began=use.began, used=number)
        if use.began:
            contents[slot.id] = (use.salt, use.text)

    for number, use in enumerate(history):
        for entry in [entry for entry in running if entry[0] <= number]:
            running.remove(entry)
            end(entry[1], entry[2], number)
        choice = choose(tuple(free.values()), use.salt, use.text)
        content = contents[choice.slot]
        assert not choice.reuse or content is None or content[0] == use.salt
        goes_on = [s.text for s in free.values() if s.salts == {use.salt} and s.text and use.text.startswith(s.text)]
        if goes_on:
            assert choice.reuse
            assert common_prefix(free[choice.slot].text, use.text) >= max(map(len, goes_on))
        running.append((number + 1 + use.stays, free.pop(choice.slot), use))
        if not free:
            entry = running.pop(0)
            end(entry[1], entry[2], number)
