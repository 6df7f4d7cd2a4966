"""Hypothesis strategies: any event, made from the types of its members."""

import types
import typing
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from schemas.events import EVENTS, Event
from schemas.values import Tier, TimeMs

INTEGERS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
TIMES_MS = st.integers(min_value=0, max_value=253_402_300_799_999)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)

AWKWARD = (
    "",
    "\x00",
    "\r\n",
    "a\u0085b\u2028c\u2029d",
    "\ufeff\ufffd\uffff",
    "שלום \u202eabc\u202c",
    "👩‍👩‍👧‍👦🏽\U0010ffff",
    'quote " back \\ slash / \b\f\t',
    "e\u0301 é ﬁ",
    "data: x\n\nid: 9\nevent: ended\n\n",
)

TEXT = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
    st.sampled_from(AWKWARD),
)
"""Any text that can be encoded as UTF-8, often an awkward one."""


@cache
def of_type(  # noqa: PLR0911 - one return a kind of type
    kind: Any,
) -> st.SearchStrategy[Any]:
    """Any value of a member's type."""
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        int: INTEGERS,
        float: NUMBERS,
        bool: st.booleans(),
        type(None): st.none(),
    }
    if kind in plain:
        return plain[kind]
    if kind == TimeMs:
        return TIMES_MS
    if kind == Tier:
        return st.from_regex(r"\A[a-z0-9][a-z0-9_-]{0,31}\Z")
    origin = get_origin(kind)
    if origin is Literal:
        return st.sampled_from(get_args(kind))
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of_type(part) for part in get_args(kind)])
    if origin is dict:
        names, values = get_args(kind)
        return st.dictionaries(of_type(names), of_type(values), max_size=3)
    if origin is tuple:
        return st.lists(of_type(get_args(kind)[0]), max_size=3).map(tuple)
    return struct(kind)


@cache
def struct(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any value of a struct."""
    members = {field.name: of_type(field.type) for field in msgspec.structs.fields(cls)}
    return st.fixed_dictionaries(members).map(lambda made: cls(**made))


def events() -> st.SearchStrategy[Event]:
    """Any event of any class."""
    return st.sampled_from(EVENTS).flatmap(struct)
