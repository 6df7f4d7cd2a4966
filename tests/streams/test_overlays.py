"""Changes over a mapping: seen at once, they touch nothing before they are settled, and are all there afterwards."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.dispatch.overlays import Memory, Overlay

NAMES = st.sampled_from("abcdef")


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.integers(1, 9)), st.lists(st.tuples(NAMES, st.none() | st.integers(1, 9))))
def test_an_overlay_is_as_the_changed_mapping_and_leaves_it_alone_until_it_is_settled(
    base: dict[str, int], changes: list[tuple[str, int | None]]
) -> None:
    before, changed = dict(base), dict(base)
    overlay = Overlay(base)
    for name, value in changes:
        overlay.put(name, value)
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
        assert [overlay.get(one) for one in "abcdef"] == [changed.get(one) for one in "abcdef"]
        assert sorted(overlay.values()) == sorted(changed.values())
    assert base == before
    assert overlay.settle() is base
    assert base == changed


def test_an_overlay_has_no_value_where_there_is_none() -> None:
    overlay = Overlay({"a": 1})
    overlay.put("a", None)
    with pytest.raises(KeyError):
        overlay["a"]


@settings(deadline=None)
@given(st.lists(NAMES, max_size=4, unique=True), st.lists(st.tuples(NAMES, st.integers(1, 9))), st.integers(1, 5))
def test_a_memory_keeps_the_newest(known: list[str], news: list[tuple[str, int]], most: int) -> None:
    base = OrderedDict.fromkeys(known[:most], 0)
    before = list(base)
    memory = Memory(base, most)
    for name, value in news:
        memory.put(name, value)
        assert memory.get(name) == value
    assert list(base) == before
    newest = list(dict.fromkeys([name for name, _ in reversed(news)] + before[::-1]))[:most]
    assert list(memory.settle()) == newest[::-1]
    assert all(base[name] == dict(news).get(name, 0) for name in base)
