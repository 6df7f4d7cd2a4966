"""The documents of the log, written from the code: `python -m schemas.catalogue docs [--check]`.

Writes `events.md` (for people) and `asyncapi.yaml` (for programs) into the folder. With `--check` nothing is
written; the exit code is 1 when a file differs from what the code says.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from schemas import asyncapi, codec, described
from schemas.events import Event
from schemas.examples import EXAMPLES, envelope
from schemas.topics import DAY_MS, FIXED, PARKED, Topic, dead, inference

_HEAD = """\
# Events

<!-- Written by `python -m schemas.catalogue docs` from `schemas/`; do not edit by hand. -->

Everything that happens in Turnlog is one of these events in Kafka. The same as an AsyncAPI 3.0 document is in
[asyncapi.yaml](asyncapi.yaml).

A record is a CloudEvents 1.0 event in Kafka's binary mode: the value is one JSON object with the members listed
below, and the headers are

| header | holds |
|---|---|
| `ce_specversion` | `1.0` |
| `ce_type` | `turnlog.<Event>.v<version>` |
| `ce_source` | the process that wrote it |
| `ce_id` | the event's identity: a repeated one is the same event, drop it |
| `content-type` | `application/json` |
| `ce_subject` | the account, on events keyed by it |
| `ce_time` | when it was written, RFC 3339, UTC |
| `ce_causationid` | the `ce_id` of the event that led to it |
| `traceparent` | W3C trace context |

`TokensGenerated` carries the first four only. Times in members end in `_at_ms` and are milliseconds since the epoch,
UTC. Ignore members that you do not know. Topic names on the broker begin with the deployment's namespace and a dot
(`turnlog.` by default). Partition counts are those of a small deployment and of a large one.
"""


def documents() -> Mapping[str, str]:
    """File name to content."""
    return {"events.md": events_md(), "asyncapi.yaml": asyncapi.yaml(asyncapi.document(version("turnlog")))}


def events_md() -> str:
    """All topics with their events, then the values that several events carry."""
    parts = [_HEAD, _topics_table()]
    values: dict[type[msgspec.Struct], None] = {}
    for topic in (*FIXED, inference("<pool>", "<priority>"), PARKED):
        classes = asyncapi.events_of(topic) or (asyncapi.INBOX_EVENTS if topic.name.startswith("inference.") else ())
        parts.append(_topic_section(topic, classes))
        for cls in classes:
            parts.append(_event_section(cls))
            values |= dict.fromkeys(described.values_of(cls))
    parts.append("## Values\n\nObjects that stand inside several events.\n")
    parts.extend(f"### {cls.__name__}\n\n{described.summary(cls)}\n\n{_members_table(cls)}" for cls in values)
    return "\n".join(parts)


def _topics_table() -> str:
    topics = (*FIXED, inference("<pool>", "<priority>"), dead("<topic>"))
    rows = (
        f"| {_anchor(topic)} | `{topic.key}` | {topic.partitions} / {topic.partitions_production} "
        f"| {_retention(topic)} | {'yes' if topic.transactional else 'no'} |"
        for topic in topics
    )
    return _table("| topic | key | partitions | kept | written in transactions |", rows)


def _anchor(topic: Topic) -> str:
    return f"[`{topic.name}`](#{topic.name})" if topic in FIXED else f"`{topic.name}`"


def _retention(topic: Topic) -> str:
    if topic.cleanup == "compact":
        return "the newest of each key"
    days = topic.retention_ms // DAY_MS
    return "forever" if topic.retention_ms < 0 else f"{days} day{'' if days == 1 else 's'}"


def _topic_section(topic: Topic, classes: tuple[type[Event], ...]) -> str:
    text = f"## {topic.name}\n\n{topic.description}\n"
    if not classes:
        text += "\nState records are the writer's own and no interface; tombstones remove them.\n"
    return text


def _event_section(cls: type[Event]) -> str:
    event = EXAMPLES[cls]
    value, headers = codec.encode(envelope(event))
    example = msgspec.json.format(value, indent=2).decode()
    shown = dict(headers)
    key = f"`{cls.KEY}`" if cls.key is Event.key else f"such as `{event.key()}`"
    return (
        f"### {cls.__name__}\n\n{described.summary(cls)}\n\n"
        f"Type `{codec.type_name(cls)}`, key {key}, `ce_id` such as `{shown['ce_id'].decode()}`.\n\n"
        f"{_members_table(cls)}\n```json\n{example}\n```\n"
    )


def _members_table(cls: type[msgspec.Struct]) -> str:
    rows = (
        f"| `{member.name}` | {_cell(_typed(member.type))} | {'' if member.default is None else f'`{member.default}`'} "
        f"| {_cell(member.description)} |"
        for member in described.members(cls)
    )
    return _table("| member | type | default | |", rows)


def _typed(kind: str) -> str:
    return f"`{kind}`" if '"' in kind else kind


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: str, rows: Iterable[str]) -> str:
    rule = "|---" * (head.count("|") - 1) + "|"
    return "\n".join((head, rule, *rows)) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the documents; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m schemas.catalogue", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a document is stale")
    options = parser.parse_args(arguments)
    stale = []
    for name, content in documents().items():
        path: Path = options.folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(path)
        if not options.check:
            path.write_text(content, encoding="utf-8")
    if options.check and stale:
        names = ", ".join(str(path) for path in stale)
        print(f"{names}: not what the code says; run python -m schemas.catalogue {options.folder}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
