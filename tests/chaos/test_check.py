"""What is compared of readers from outside: those who followed a stream, and those whom the stored reply served."""

import pytest

from schemas.stream import AnyStreamEvent, Delta, Ended, Reset, Started, frame
from schemas.values import Usage
from tests.chaos.check import a_reader_has_the_stream, streamed
from tests.simulation.frames import Read
from tests.simulation.promises import Broken

BEGUN = Started(message_id="r", conversation_id="c", model="m", attempt=2)
ENDED = Ended(status="completed", usage=Usage(input_tokens=1, output_tokens=1))


def frames(*events: AnyStreamEvent, first: int = 1) -> list[bytes]:
    return [frame(offset, event) for offset, event in enumerate(events, first)]


RESET_FIRST = frames(Reset(attempt=2, reason="worker_lost"), BEGUN, Delta(text="word1"), ENDED)
STORED_START = frames(BEGUN)


@pytest.mark.parametrize("rest", [RESET_FIRST[1:], []])
def test_a_start_of_the_stored_reply_is_no_part_of_the_stream_whoever_read_it_first(rest: list[bytes]) -> None:
    read = Read("r", frames=[*STORED_START, *rest], told="" if rest else "gone")
    whole = Read("r", frames=RESET_FIRST)
    for order in ([read, whole], [whole, read]):
        followed = streamed(order)
        assert followed == dict(enumerate(RESET_FIRST, 1))
        for one in order:
            a_reader_has_the_stream(one, followed, 4, "word1")


def test_the_only_reader_of_a_stream_may_have_begun_with_the_stored_reply() -> None:
    followed = frames(BEGUN, *[Delta(text=f"word{n}") for n in range(1, 7)], ENDED, first=2)
    read = Read("r", frames=[*STORED_START, *followed])
    assert list(streamed([read])) == list(range(2, 10))
    a_reader_has_the_stream(read, streamed([read]), 9, "")


@pytest.mark.parametrize(
    "seen",
    [
        [*STORED_START, *frames(Delta(text="word1"), ENDED, first=3)],
        [*STORED_START, *frames(Reset(attempt=2, reason="worker_lost"), BEGUN, Delta(text="word1"), ENDED, first=2)],
    ],
)
def test_a_reader_may_have_the_stored_reply(seen: list[bytes]) -> None:
    final = max(4, len(seen))
    a_reader_has_the_stream(Read("r", frames=seen), {}, final, "word1")


@pytest.mark.parametrize(
    "seen",
    [
        [*RESET_FIRST[:2], *frames(Delta(text="word2"), ENDED, first=3)],
        RESET_FIRST[:3],
        [*RESET_FIRST[:1], *RESET_FIRST[2:]],
        [*STORED_START, *frames(Delta(text="word2"), ENDED, first=3)],
        [*STORED_START, *frames(BEGUN, Delta(text="word2"), ENDED, first=2)],
    ],
)
def test_other_bytes_a_lost_end_a_gap_and_another_text_are_found(seen: list[bytes]) -> None:
    with pytest.raises(Broken):
        a_reader_has_the_stream(Read("r", frames=seen), dict(enumerate(RESET_FIRST, 1)), 4, "word1")
