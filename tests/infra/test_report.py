"""What `up` says, to people and to programs."""

import json

import pytest

from infra.parts import PartReport
from infra.report import (
    Event,
    Failed,
    PartChanged,
    Progress,
    Ready,
    ServersReady,
    Stopped,
    as_json,
    as_object,
    as_text,
    from_object,
)

PART = PartReport("kafka", "kafka", 12, "ready", "127.0.0.1:9092", None)
EVENTS: list[Event] = [
    Progress("Fetching"),
    PartChanged(PART, 1.5),
    Ready("http://127.0.0.1:8080", "tlk_x", 9.25),
    ServersReady({"TURNLOG_REDIS_URL": "redis://127.0.0.1:6379/0"}, 3.0),
    Failed("no"),
    Stopped(),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_its_json(event: Event) -> None:
    assert from_object(json.loads(as_json(event))) == event


def test_the_last_line_of_up_has_url_and_key() -> None:
    ready = as_object(EVENTS[2])
    assert ready["event"] == "ready"
    assert ready["url"] == "http://127.0.0.1:8080"
    assert ready["api_key"] == "tlk_x"


def test_a_person_is_told_the_address_of_a_ready_part_and_nothing_of_a_starting_one() -> None:
    assert "127.0.0.1:9092" in (as_text(EVENTS[1]) or "")
    assert as_text(PartChanged(PartReport("kafka", "kafka", 12, "starting", None, None), 0.1)) is None
