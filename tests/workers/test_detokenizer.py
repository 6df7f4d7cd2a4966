"""Ids become text step by step, and the steps joined are the full decode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorrt_llm.tokenizer import BYTES, ByteTokenizer
from workers.tensorrt import faulty

from inference_workers.engines.detokenizer import Detokenizer

TOKENIZER = ByteTokenizer()
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd") | st.sampled_from(" 🎉数ü"), max_size=60)


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def pieces(ids: list[int], sizes: list[int], *, cut: bool = False) -> list[str]:
    detokenizer, given_out, at = Detokenizer(decode), [], 0
    for size in [*sizes, len(ids)]:
        given_out.append(detokenizer.add(ids[at : at + size]))
        at = min(len(ids), at + size)
    return [*given_out, detokenizer.finish(cut=cut)]


@given(TEXTS, st.lists(st.integers(1, 5), max_size=30))
def test_the_pieces_joined_are_the_full_decode(text: str, sizes: list[int]) -> None:
    assert "".join(pieces(encode(text), sizes)) == text


@given(TEXTS, st.lists(st.integers(1, 5), max_size=30))
def test_no_piece_holds_half_a_character(text: str, sizes: list[int]) -> None:
    assert all("\ufffd" not in piece for piece in pieces(encode(text), sizes))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_tokenizer_that_drops_the_first_space_loses_none_in_between(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(monkeypatch, strip_leading_space=True)
    text = "ab cde  f gh 数据 🎉 i  "
    ids = encode(text)
    assert "".join(pieces(ids, [size] * len(ids))) == decode(ids) == text


def test_half_a_character_at_the_end_is_dropped_where_the_output_was_cut() -> None:
    ids = encode("abc🎉")[:-1]
    assert "".join(pieces(ids, [1] * len(ids), cut=True)) == "abc"
    assert "".join(pieces(ids, [1] * len(ids), cut=False)) == decode(ids) == "abc\ufffd"


def test_what_never_becomes_a_character_comes_out_with_what_follows() -> None:
    half = encode("🎉")[:1]
    ids = [*encode("abc"), *half, *encode("def")]
    assert "".join(pieces(ids, [1] * len(ids))) == decode(ids) == "abc\ufffddef"


def test_special_tokens_add_nothing() -> None:
    ids = [*encode("ab"), 0, *encode("cd"), 0]
    assert pieces(ids, [1] * 4) == ["ab", "", "cd", "", "", ""]


def test_the_window_stays_short() -> None:
    longest = 0

    def measured(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    detokenizer = Detokenizer(measured)
    for token in encode("数据 und 🎉 " * 200):
        detokenizer.add([token])
    assert longest <= 2 * BYTES + 2
