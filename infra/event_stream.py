"""Server-sent events, as far as a client of our own API needs them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamEvent:
    """One event of a reply: its offset, its type, its data."""

    offset: int
    kind: str
    data: dict[str, Any]


def events(lines: Iterable[str]) -> Iterator[StreamEvent]:
    """Events of a stream given as lines without their ends; comments and broken-off events are dropped."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            if name:
                fields.setdefault(name, []).append(value.removeprefix(" "))
            continue
        if "data" in fields and "id" in fields:
            kind = fields.get("event", ["message"])[-1]
            yield StreamEvent(int(fields["id"][-1]), kind, json.loads("\n".join(fields["data"])))
        fields = {}
