"""What a client has heard of a stream, checked by the rules for clients."""

from collections.abc import Iterable
from typing import Any

import httpx

from clients.programs import Said


def events_of(said: Iterable[Said]) -> list[Said]:
    """The events that a program has printed, as {"id", "type", "data"}."""
    return [one for one in said if "type" in one]


def text_of(said: Iterable[Said]) -> str:
    """The text of a reply whose events were printed. Fails where an event is missing, doubled or out of order."""
    events = events_of(said)
    assert [one["id"] for one in events] == list(range(1, len(events) + 1))
    text = ""
    for one in events:
        text = "" if one["type"] == "reset" else text + one["data"].get("text", "")
    return text


def end_of(said: Iterable[Said]) -> dict[str, Any] | None:
    """The end of a reply, once it was printed."""
    return next((one["data"] for one in said if one.get("type") == "ended"), None)


def reached(offset: int) -> Any:
    """A condition: the event with this offset was printed."""
    return lambda said: any(one.get("id") == offset for one in said)


def opens(url: str) -> int:
    """How a stream is answered; its events are left alone."""
    with httpx.stream("GET", url, timeout=10) as answer:
        return answer.status_code
