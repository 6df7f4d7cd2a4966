"""Which worker has which blocks: by block, and the same as block by block at each worker."""

from hypothesis import given
from hypothesis import strategies as st

from streams.dispatch.caches import Caches
from streams.dispatch.pool import Worker
from tests.streams.events import registered

NAMES = st.frozensets(st.integers(0, 12))


def worker(inbox: int, prefixes: frozenset[int] = frozenset(), fresh: frozenset[int] = frozenset()) -> Worker:
    return Worker(registered=registered(inbox), epoch=inbox, prefixes=prefixes, fresh=fresh)


def shared(names: list[int], one: Worker) -> int:
    count = 0
    while count < len(names) and names[count] in one.prefixes | one.fresh:
        count += 1
    return count


def test_blocks_count_from_the_beginning_in_what_was_told_and_in_what_was_given_since() -> None:
    caches = Caches({})
    caches.changed(None, worker(0, frozenset({1, 2}), frozenset({3})))
    caches.changed(None, worker(63, frozenset({2, 3})))
    caches.changed(None, worker(2, frozenset({1, 3})))
    assert caches.shared((1, 2, 3)) == {0: 3, 2: 1}
    assert caches.shared(()) == {}


@given(
    st.lists(st.tuples(st.integers(0, 3), NAMES, NAMES, st.booleans()), max_size=30),
    st.lists(st.integers(0, 12), max_size=8, unique=True),
)
def test_whatever_workers_say_and_get_it_is_what_each_has(
    steps: list[tuple[int, frozenset[int], frozenset[int], bool]], names: list[int]
) -> None:
    base: dict[int, int] = {}
    workers: dict[int, Worker] = {}
    for inbox, prefixes, fresh, settles in steps:
        caches = Caches(base)
        before, after = workers.get(inbox), worker(inbox, prefixes, fresh)
        caches.changed(before, after)
        told = {inbox: one for inbox, one in {**workers, inbox: after}.items() if shared(names, one)}
        assert caches.shared(names) == {inbox: shared(names, one) for inbox, one in told.items()}
        if settles:
            workers[inbox] = after
            base = caches.settle()
    assert set(base) == {name for one in workers.values() for name in one.prefixes | one.fresh}
