"""The chat's reader of server-sent events."""

from infra.event_stream import StreamEvent, events


def test_events_are_read_with_their_offsets_and_comments_are_dropped() -> None:
    lines = [
        ": beat",
        "id: 1",
        "event: started",
        'data: {"a": 1}',
        "",
        ": beat",
        "id: 2",
        'data: {"text":',
        'data: "x"}',
        "",
    ]
    assert list(events(lines)) == [StreamEvent(1, "started", {"a": 1}), StreamEvent(2, "message", {"text": "x"})]


def test_an_event_that_was_cut_off_is_no_event() -> None:
    assert list(events(["id: 3", "event: delta", 'data: {"text": "x"}'])) == []
