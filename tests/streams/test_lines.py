"""The lines of dispatch: fair between accounts, first come first served within one, and nothing is lost in them."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from streams.dispatch.lines import TAGS_MIN, Line, Place

ROOM = 1_000_000


def line_of(*waiting: tuple[str, int]) -> Line:
    """Accounts and how many of each wait, admitted account by account."""
    line, order = Line(), 0
    for account, count in waiting:
        for _ in range(count):
            line.add(account, place(order), ROOM)
            order += 1
    return line


def place(order: int) -> Place:
    return order, f"rep_{order}"


def served(line: Line, accounts: dict[int, str], count: int, cost: int = 10) -> list[str]:
    """The accounts of the next so many placements."""
    found = []
    for _ in range(count):
        head = line.head()
        if head is None:
            break
        found.append(accounts[head[0]])
        line.given(found[-1], head, cost)
    return found


def test_an_account_with_a_thousand_waiting_delays_a_single_one_by_one_placement() -> None:
    line = line_of(("many", 1_000), ("one", 1))
    accounts = dict.fromkeys(range(1000), "many") | {1_000: "one"}
    assert served(line, accounts, 2) == ["many", "one"]


def test_one_that_comes_while_another_is_being_served_is_next_or_the_one_after() -> None:
    line = line_of(("many", 1_000))
    accounts = dict.fromkeys(range(1000), "many") | {1_000: "late"}
    served(line, accounts, 500)
    line.add("late", place(1_000), ROOM)
    assert "late" in served(line, accounts, 2)


def test_n_accounts_are_served_in_turn() -> None:
    line = line_of(*((f"a{n}", 5) for n in range(4)))
    accounts = {order: f"a{order // 5}" for order in range(20)}
    assert served(line, accounts, 20) == ["a0", "a1", "a2", "a3"] * 5


def test_an_account_is_served_in_the_order_of_admission() -> None:
    line = Line()
    for order in (3, 1, 2, 0):
        line.add("a", place(order), ROOM)
    heads = []
    while (head := line.head()) is not None:
        heads.append(head[0])
        line.given("a", head, 1)
    assert heads == [0, 1, 2, 3]


def test_who_was_away_has_saved_nothing_up() -> None:
    line = line_of(("busy", 100))
    accounts = dict.fromkeys(range(100), "busy") | dict.fromkeys(range(100, 200), "back")
    served(line, accounts, 50)
    for order in range(100, 200):
        line.add("back", place(order), ROOM)
    assert Counter(served(line, accounts, 20)) == {"busy": 10, "back": 10}


def test_what_was_charged_and_not_used_is_given_back() -> None:
    line = line_of(("short", 2), ("long", 2))
    accounts = {0: "short", 1: "short", 2: "long", 3: "long"}
    assert served(line, accounts, 2, cost=100) == ["short", "long"]
    line.charge("long", -50)
    assert served(line, accounts, 2) == ["long", "short"]


def test_a_bound_account_holds_up_nobody_and_comes_back() -> None:
    line = line_of(("bound", 3), ("other", 1))
    line.allow("bound", 0)
    assert line.head() == place(3)
    assert line.oldest() == place(3)
    line.given("other", place(3), 10)
    assert (line.head(), line.oldest(), line.waiting, line.eligible) == (None, None, 3, 0)
    line.allow("bound", 2)
    assert (line.head(), line.oldest(), line.waiting, line.eligible) == (place(0), place(0), 3, 2)


def test_the_further_requests_of_an_account_that_was_bound_keep_their_age() -> None:
    line = line_of(("bound", 2), ("other", 1))
    line.allow("bound", 0)
    assert line.oldest() == place(2)
    line.allow("bound", 5)
    line.given("bound", place(0), 10)
    assert line.oldest() == place(1)


def test_who_steps_aside_comes_back_to_the_same_place_at_no_cost() -> None:
    line = line_of(("a", 2), ("b", 2))
    line.remove("a", place(0))
    assert line.head() == place(1)
    line.put_back("a", place(0), ROOM)
    assert (line.head(), line.oldest(), line.waiting) == (place(0), place(0), 4)


def test_a_copy_is_independent() -> None:
    line = line_of(("a", 2), ("b", 1))
    copy = line.copy()
    copy.given("a", place(0), 10)
    copy.remove("b", place(2))
    copy.add("c", place(9), ROOM)
    copy.allow("a", 0)
    assert (line.head(), line.waiting, line.eligible, line.waiting_of("c")) == (place(0), 3, 3, 0)
    assert (copy.head(), copy.waiting, copy.waiting_of("a")) == (place(9), 2, 1)


def test_entries_and_tags_do_not_pile_up() -> None:
    line = Line()
    for order in range(10 * TAGS_MIN):
        account = f"a{order}"
        line.add(account, place(order), ROOM)
        line.allow(account, 0)
        line.allow(account, 1)
        line.given(account, place(order), 5)
        line.charge(account, -5)
    assert len(line._heap) + len(line._ages) < 500
    assert len(line._tags) <= 2 * TAGS_MIN


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "give", "old", "remove", "allow", "charge"]), st.integers(0, 3), st.integers(0, 3)
    ),
    max_size=120,
)


@settings(deadline=None)
@given(ACTS)
def test_whatever_happens_all_that_waits_can_be_reached(acts: list[tuple[str, int, int]]) -> None:
    line = Line()
    waiting: dict[str, list[int]] = {f"a{n}": [] for n in range(4)}
    rooms = dict.fromkeys(waiting, 1)
    for order, (act, who, amount) in enumerate(acts):
        account = f"a{who}"
        if act == "add":
            line.add(account, place(order), rooms[account])
            waiting[account].append(order)
        elif act == "remove" and waiting[account]:
            line.remove(account, place(waiting[account].pop(amount % len(waiting[account]))))
        elif act == "allow":
            rooms[account] = amount
            line.allow(account, amount)
        elif act == "charge":
            line.charge(account, 10 * amount - 15)
        elif act in ("give", "old"):
            _give(line, waiting, rooms, oldest=act == "old")
        assert line.waiting == sum(map(len, waiting.values()))
        assert line.eligible == sum(min(len(waiting[account]), rooms[account]) for account in waiting)
        may = [orders[0] for account, orders in waiting.items() if orders and rooms[account]]
        oldest = line.copy().oldest()
        assert (oldest[0] if oldest else None) == min(may, default=None)
        assert (line.copy().head() is None) == (not may)


def _give(line: Line, waiting: dict[str, list[int]], rooms: dict[str, int], *, oldest: bool) -> None:
    chosen = line.oldest() if oldest else line.head()
    if chosen is None:
        return
    account = next(name for name, orders in waiting.items() if chosen[0] in orders)
    assert rooms[account] > 0
    assert waiting[account].pop(0) == chosen[0]
    line.given(account, chosen, 10)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=60))
def test_the_service_of_two_that_always_wait_differs_by_one_largest_request_at_most(
    costs: list[tuple[int, int]],
) -> None:
    line = line_of(("a", len(costs)), ("b", len(costs)))
    queues = {"a": [cost for cost, _ in costs], "b": [cost for _, cost in costs]}
    had = {"a": 0, "b": 0}
    largest = max(max(pair) for pair in costs)
    while all(queues.values()):
        head = line.head()
        assert head is not None
        account = "a" if head[0] < len(costs) else "b"
        cost = queues[account].pop(0)
        line.given(account, head, cost)
        had[account] += cost
        assert abs(had["a"] - had["b"]) <= largest
