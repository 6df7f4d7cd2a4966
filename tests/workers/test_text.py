"""Text assembly: however the bytes are cut, the same text leaves, and nothing that should not."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_workers.text import TextAssembler, even_edges

MULTI_BYTE = "naïve 数据流 🎉👩‍👩‍👧 שלום e\u0301 \U0001f1e9\U0001f1ea end"


def assemble(pieces: list[bytes], stop: tuple[str, ...] = (), *, cut: bool = False) -> tuple[list[str], bool]:
    assembler = TextAssembler(stop)
    shown: list[str] = []
    for piece in pieces:
        taken = assembler.add(piece)
        shown.append(taken.text)
        if taken.stopped:
            return shown, True
    taken = assembler.finish(cut=cut)
    return [*shown, taken.text], taken.stopped


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("at", range(len(MULTI_BYTE.encode()) + 1))
def test_output_cut_at_every_byte_offset_gives_identical_text(at: int) -> None:
    data = MULTI_BYTE.encode()
    shown, _ = assemble([data[:at], data[at:]])
    assert "".join(shown) == MULTI_BYTE
    assert "\ufffd" not in "".join(shown)


def test_one_byte_at_a_time_never_shows_a_part_of_a_character() -> None:
    shown, _ = assemble([bytes([byte]) for byte in MULTI_BYTE.encode()])
    assert "".join(shown) == MULTI_BYTE
    assert all("\ufffd" not in piece for piece in shown)


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=20))
def test_any_bytes_in_any_pieces_give_the_full_decode(data: bytes, cuts: list[int]) -> None:
    shown, _ = assemble(pieces_of(data, cuts))
    assert "".join(shown) == data.decode("utf-8", "replace")


@given(st.text(max_size=60), st.integers(min_value=0, max_value=300))
def test_an_output_that_is_cut_off_ends_with_a_whole_character(text: str, at: int) -> None:
    data = text.encode()[:at]
    shown, _ = assemble([data], cut=True)
    assert "".join(shown) == data.decode("utf-8", "ignore")


letters = st.text(alphabet="abé🎉", max_size=40)
stops = st.lists(st.text(alphabet="abé🎉", min_size=1, max_size=4), max_size=3).map(tuple)


@given(letters, stops, st.lists(st.integers(min_value=0), max_size=20))
def test_stop_sequences_end_the_text_at_the_same_place_in_any_pieces(
    text: str, stop: tuple[str, ...], cuts: list[int]
) -> None:
    data = text.encode()
    shown, stopped = assemble(pieces_of(data, cuts), stop)
    bytewise, stopped_bytewise = assemble([bytes([byte]) for byte in data], stop)
    assert "".join(shown) == "".join(bytewise)
    assert stopped == stopped_bytewise == any(sequence in text for sequence in stop)
    assert text.startswith("".join(shown))
    if not stopped:
        assert "".join(shown) == text


@given(letters, stops)
def test_what_has_left_never_holds_the_beginning_of_the_stop_that_follows(text: str, stop: tuple[str, ...]) -> None:
    assembler = TextAssembler(stop)
    left = ""
    for character in text:
        taken = assembler.add(character.encode())
        left += taken.text
        if taken.stopped:
            break
    assert not any(sequence in left for sequence in stop)


def test_an_empty_stop_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextAssembler(("",))


@given(st.integers(min_value=0, max_value=500), st.integers(min_value=0, max_value=60))
def test_even_edges_cover_the_length(length: int, pieces: int) -> None:
    edges = even_edges(length, pieces)
    assert len(edges) == pieces
    assert sum(end - start for start, end in edges) == (length if pieces else 0)
