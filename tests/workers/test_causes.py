"""What is told of a failure: its sentence, and no secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_workers.causes import KEY, shortened, told
from schemas.values import DETAIL_CHARS_MAX

SECRET = "0123456789abcdef0123456789abcdef"
"""A key that no pattern knows."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Incorrect API key provided: sk-proj-abcdef0123456789.", f"Incorrect API key provided: {KEY}"),
        ("Incorrect API key provided: 0123****cdef. See the docs", f"Incorrect API key provided: {KEY}. See the docs"),
        ("Authorization: Bearer abc.def", f"Authorization: {KEY}"),
        ("no answer from https://name:password@host/v1", f"no answer from https://{KEY}host/v1"),
        ("GET https://host/v1?a=1&api_key=abc&b=2 failed", f"GET https://host/v1?a=1&{KEY}&b=2 failed"),
        ("AIzaSyA-0123456789abcdef is not valid", f"{KEY} is not valid"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln expired", f"token {KEY} expired"),
        ("HTTP 502 bad_gateway: upstream 10 * 3 tokens", "HTTP 502 bad_gateway: upstream 10 * 3 tokens"),
        ("two\n lines\x00 and\ta tab", "two lines and a tab"),
        ("a key sk-\x00abcdef0123456789 that hides", f"a key {KEY} that hides"),
    ],
)
def test_keys_are_taken_out_and_the_sentence_stays(text: str, expected: str) -> None:
    assert told(text) == expected


def test_our_own_key_is_taken_out_whole_and_cut() -> None:
    assert told(f"the key {SECRET} is wrong", secret=SECRET) == f"the key {KEY} is wrong"
    assert told(f"the key {SECRET[:12]}... is wrong", secret=SECRET) == f"the key {KEY} is wrong"


@given(st.text(max_size=40), st.text(max_size=40), st.integers(min_value=0, max_value=5_000))
def test_no_text_around_it_uncovers_a_key_and_nothing_is_longer_than_the_bound(
    before: str, after: str, padding: int
) -> None:
    text = told(f"{'x' * padding}{before}{SECRET}{after}", secret=SECRET)
    assert SECRET[:8] not in text.replace(before, "").replace(after, "")
    assert len(text) <= DETAIL_CHARS_MAX
    assert text.isprintable()
    assert told(text, secret=SECRET) == text, "told again, it is the same"


def test_a_longer_sentence_says_that_it_is_cut() -> None:
    assert shortened("x" * 11, 10) == "x" * 9 + "…"
    assert shortened("x" * 10, 10) == "x" * 10
