"""The pure rules: tails, replays, claims, accounts, listings, frames of stored replies."""

from hypothesis import given
from hypothesis import strategies as st

from api.accounts import Caller, caller_of
from api.claims import CLAIM_MS, Conflicting, Fresh, Repeated, decide
from api.limits import Granted, Reserved, Standing
from api.listing import overlaid
from api.replay import Unserved, stored_frames
from api.routes.account import plain
from api.stores import ConversationHead, Entry
from api.tails import Room, Tail, parse_live, split
from schemas.account import Accounts
from schemas.events import (
    AccountOpened,
    ConversationDeleted,
    ConversationRenamed,
    KeyIssued,
    KeyRevoked,
    LimitsChanged,
    ReplyStored,
    TierChanged,
)
from schemas.ids import key_hash
from schemas.stream import Delta, Ended, Reset, Started, frame, parse_frame
from schemas.tiers import DEFAULT_TIERS
from schemas.values import EndStatus, Usage

FRAMES = [frame(n, Delta(text=f"t{n}\n\n")) for n in range(1, 41)]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=30),
    st.integers(0, 40),
    st.integers(1, 2000),
)
def test_a_tail_gives_exactly_what_follows_or_says_that_it_cannot(
    pieces: list[tuple[int, int]], cursor: int, bytes_max: int
) -> None:
    tail = Tail(bytes_max)
    for first, count in pieces:
        frames = FRAMES[first - 1 : first - 1 + count]
        tail.add(first, first + len(frames) - 1, b"".join(frames))
    behind = tail.after(cursor)
    if behind is None:
        assert tail.newest > cursor
        return
    newest, frames_ = behind
    assert newest == max(cursor, tail.newest)
    assert split(frames_) == FRAMES[cursor:newest]


def test_a_tail_keeps_the_newest_bytes_only() -> None:
    tail = Tail(bytes_max=500)
    for n in range(1, 41):
        tail.add(n, n, FRAMES[n - 1])
    assert tail.after(0) is None
    assert tail.after(38) == (40, b"".join(FRAMES[38:]))


def test_a_burst_that_is_too_much_at_once_is_left_to_the_list() -> None:
    tail = Tail(bytes_max=500)
    tail.add(1, 30, b"".join(FRAMES[:30]))
    assert tail.after(0) is None
    assert tail.after(29) is None
    assert tail.after(30) == (30, b"")
    tail.add(31, 31, FRAMES[30])
    assert tail.after(30) == (31, FRAMES[30])


def test_readers_at_the_same_cursor_share_what_was_joined_once() -> None:
    tail = Tail(bytes_max=5_000)
    for n in range(1, 11):
        tail.add(n, n, FRAMES[n - 1])
    given_ = [tail.after(3) for _ in range(100)]
    assert given_[0] == (10, b"".join(FRAMES[3:10]))
    assert all(one is not None and given_[0] is not None and one[1] is given_[0][1] for one in given_)
    tail.add(11, 11, FRAMES[10])
    assert tail.after(3) == (11, b"".join(FRAMES[3:11]))


def test_a_tail_that_was_forgotten_still_knows_that_there_is_more() -> None:
    tail = Tail(bytes_max=5_000)
    tail.add(1, 3, b"".join(FRAMES[:3]))
    tail.forget()
    assert (tail.after(2), tail.after(3)) == (None, (3, b""))
    tail.add(4, 4, FRAMES[3])
    assert (tail.after(2), tail.after(3)) == (None, (4, FRAMES[3]))


def test_all_tails_together_are_bounded() -> None:
    room = Room(bytes_max=2_000)
    tails = [Tail(bytes_max=1_000, room=room) for _ in range(20)]
    for n in range(1, 41):
        for tail in tails:
            tail.add(n, n, FRAMES[n - 1])
    newest = max(len(each) for each in FRAMES)
    assert room.used <= room.bytes_max + len(tails) * newest
    for tail in tails:
        assert tail.after(39) == (40, FRAMES[39])
        tail.clear()
    assert room.used == 0


def test_what_is_published_is_parsed() -> None:
    assert parse_live(b"3-4\nid: 3\n\nid: 4\n\n") == (3, 4, b"id: 3\n\nid: 4\n\n")


def stored(final: int, text: str, status: EndStatus = "completed", attempt: int = 1) -> ReplyStored:
    return ReplyStored(
        conversation_id="c",
        reply_id="r",
        message_id="m",
        account_id="a",
        tier="paid",
        pool="p",
        model="x",
        status=status,
        text=text,
        attempt=attempt,
        final_offset=final,
        usage=Usage(input_tokens=1, output_tokens=1),
        submitted_at_ms=1,
        ended_at_ms=2,
    )


@given(st.integers(1, 50), st.integers(0, 60), st.integers(1, 2))
def test_a_stored_reply_is_served_exactly_or_not_at_all(final: int, after: int, attempt: int) -> None:
    served = stored_frames(stored(final, "text" if final > 2 else "", attempt=attempt), after)
    if after > final:
        assert served == Unserved("beyond")
        return
    if 1 < after < final - 1:
        assert served == Unserved("expired")
        return
    assert not isinstance(served, Unserved)
    events = [parse_frame(each) for each in served]
    afresh = (after, attempt) == (1, 2) and final > 1
    offsets = set(range(final - 3, final + 1)) if afresh else {1, max(final - 1, 1), final}
    assert [offset for offset, _ in events] == [n for n in sorted(offsets) if n > after]
    if afresh and final > 4:
        assert [type(event) for _, event in events] == [Reset, Started, Delta, Ended]
    if after <= 1 and final - 1 > after and final > 2:
        assert events[-2][1] == Delta(text="text")


def test_claims_are_decided_by_digest_mark_and_age() -> None:
    granted = Granted(fresh=True, standing=Standing(levels=(), running=0, running_max=1))
    now = 10 * CLAIM_MS

    def entry(claimed: str | None, since: int | None) -> Entry:
        return Entry(reserved=Reserved(True, granted), claimed=claimed, claims_since_ms=since, deleted=False)

    assert decide(entry(None, 0), "d", now) == Fresh(ask_views=False)
    assert decide(entry(None, now - CLAIM_MS), "d", now) == Fresh(ask_views=False)
    assert decide(entry(None, now - 3_000), "d", now) == Fresh(ask_views=True)
    assert decide(entry(None, now - 5), "d", now) == Fresh(ask_views=True, wait_ms=2_995)
    assert decide(entry(None, None), "d", now) == Fresh(ask_views=True, wait_ms=3_000, note_begin=True)
    assert decide(entry("d", 0), "d", now) == Fresh(ask_views=False, ours=False)
    assert decide(entry("d", now - 5), "d", now) == Fresh(ask_views=True, ours=False, wait_ms=2_995)
    assert decide(entry("d+", 0), "d", now) == Repeated()
    assert decide(entry("e", 0), "d", now) == Conflicting()


def test_an_account_is_what_its_newest_facts_say_in_any_order() -> None:
    facts = [
        AccountOpened(account_id="a", name="A", tier="free", opened_at_ms=1),
        TierChanged(account_id="a", tier="paid", changed_at_ms=2),
        KeyIssued(account_id="a", key_id="1", key_hash=key_hash("k"), issued_at_ms=1),
        LimitsChanged(account_id="a", requests_per_minute=7, changed_at_ms=3),
    ]
    for order in (facts, facts[::-1]):
        accounts = Accounts()
        assert accounts.opened_by(key_hash("k"), 5) is None
        for fact in order:
            accounts.apply(fact.key(), fact)
        assert (caller(accounts).account_id, caller(accounts).tier) == ("a", "paid")
        assert caller(accounts).rules.requests_per_minute == 7
        accounts.apply("a/limits", None)
        assert caller(accounts).rules == DEFAULT_TIERS["paid"]
        revoked = KeyRevoked(account_id="a", key_id="1", revoked_at_ms=4)
        accounts.apply(revoked.key(), revoked)
        assert accounts.opened_by(key_hash("k"), 5) is None


def caller(accounts: Accounts) -> Caller:
    issued = accounts.opened_by(key_hash("k"), 5)
    assert issued is not None
    found = caller_of(accounts, DEFAULT_TIERS, issued, 5)
    assert found is not None
    return found


def test_a_listing_line_laid_over_twice_is_the_same() -> None:
    head = ConversationHead(id="c", title="t", created_at_ms=1, updated_at_ms=5)
    renamed = ConversationRenamed(conversation_id="c", account_id="a", title="new", renamed_at_ms=9, request_id="1")
    once = overlaid(head, [renamed])
    assert once == ConversationHead(id="c", title="new", created_at_ms=1, updated_at_ms=9)
    assert overlaid(once, [renamed]) == once
    deleted = ConversationDeleted(conversation_id="c", account_id="a", deleted_at_ms=10)
    assert overlaid(head, [renamed, deleted]) is None
    assert overlaid(None, [renamed]) is None


def test_money_is_written_plainly() -> None:
    assert [plain(n) for n in ("0", "0.000000000000", "1.250000000000", "10", "-0.500")] == [
        "0",
        "0",
        "1.25",
        "10",
        "-0.5",
    ]
