"""An exported usage record: its members, and the event that it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.events import UsageAdjusted, UsageRecorded

RECORDED, ADJUSTED = "recorded", "adjusted"

MEMBERS = (
    "account_id",
    "usage_day",
    "reply_id",
    "record_kind",
    "revision",
    "record",
    "conversation_id",
    "status",
    "tier",
    "pool",
    "model",
    "attempts",
    "uncached_input_tokens",
    "cache_read_input_tokens",
    "cache_write_input_tokens",
    "cache_write_long_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "counted",
    "charged",
    "cost",
    "currency",
    "price_version",
    "queued_ms",
    "gpu_ms",
    "reason",
    "ended_at_ms",
)
"""In the order of columns. `record`: `recorded` (what a reply used) or `adjusted` (a correction)."""

_ABSENT = ("queued_ms", "gpu_ms")


def event_of(row: Mapping[str, Any], *, strict: bool) -> UsageRecorded | UsageAdjusted:
    """The event of a row; with `strict` False all its values may be text, as in CSV.

    Raises:
        ValueError: a member is missing or wrong; says which.
    """
    kind = row.get("record")
    members: dict[str, Any] = {name: row[name] for name in MEMBERS if name in row}
    for name in _ABSENT:
        if members.get(name) == "":
            members[name] = None
    try:
        if kind == RECORDED:
            return msgspec.convert(members, UsageRecorded, strict=strict)
        if kind == ADJUSTED:
            members["adjusted_at_ms"] = members.pop("ended_at_ms", None)
            return msgspec.convert(members, UsageAdjusted, strict=strict)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    raise ValueError(f"`record` is {kind!r}: `{RECORDED}` or `{ADJUSTED}`, as `turnlog usage export` writes it")
