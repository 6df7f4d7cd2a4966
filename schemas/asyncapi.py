"""The topics and their events as an AsyncAPI 3.0 document, for programs that read the log.

See https://www.asyncapi.com/docs/reference/specification/v3.0.0. One channel a topic; each message has its JSON
schema and its CloudEvents headers (Kafka's binary mode).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from schemas import codec, described
from schemas.events import EVENTS, Event, GenerationRequested, GenerationRevoked
from schemas.examples import EXAMPLES, envelope
from schemas.topics import FIXED, PARKED, Topic
from schemas.topics import dead as dead_topic

INBOX_EVENTS: tuple[type[Event], ...] = (GenerationRequested, GenerationRevoked)
"""Events of the priority topics, whose name is chosen by the writer."""

_BARE = re.compile(r"[A-Za-z_$][\w$./-]*")
_RESERVED = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

Json = dict[str, Any]


def document(version: str) -> Json:
    """The whole document; `version` is the distribution's."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Turnlog's log",
            "version": version,
            "description": (
                "Every event of Turnlog, by topic. Records are CloudEvents 1.0 in Kafka's binary mode: attributes "
                "are headers (`ce_...`), the value is JSON. On the broker a topic's name begins with the "
                "deployment's namespace and a dot (`turnlog.` by default). Deliveries may repeat: drop by `ce_id`."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": dict(_channels()),
        "operations": {
            f"read{_camel(name)}": {"action": "receive", "channel": {"$ref": f"#/channels/{name}"}}
            for name, _ in _channels()
        },
        "components": {
            "messages": {cls.__name__: _message(cls) for cls in EVENTS},
            "schemas": _schemas(),
        },
    }


def yaml(value: Any) -> str:
    """A JSON value as block YAML (strings are quoted as in JSON where they are not plain words)."""
    return "\n".join(_lines(value)) + "\n"


def events_of(topic: Topic) -> tuple[type[Event], ...]:
    """The event classes that stand in a topic."""
    return tuple(cls for cls in EVENTS if topic.name == cls.TOPIC)


def _channels() -> Iterable[tuple[str, Json]]:
    for topic in (*FIXED, PARKED):
        classes = events_of(topic)
        yield topic.name, _channel(topic.name, topic.description, classes, topic.retention_ms, topic.cleanup)
    priority = _channel(
        "inference.{pool}.{priority}",
        "The inboxes of a pool's workers: one partition is one worker's.",
        INBOX_EVENTS,
        86_400_000,
        "delete",
    )
    parameters = {
        "pool": {"description": "The pool's name."},
        "priority": {"enum": ["paid", "free"], "description": "Inboxes of an earlier one are emptied first."},
    }
    yield "inference", priority | {"parameters": parameters}
    dead = dead_topic("{topic}")
    described_as = "Records that could not be processed, as they were, with their error and origin in headers."
    yield (
        "dead",
        _channel(dead.name, described_as, EVENTS, dead.retention_ms, dead.cleanup)
        | {"parameters": {"topic": {"description": "The topic that the record came from."}}},
    )


def _channel(address: str, description: str, classes: Iterable[type[Event]], retention_ms: int, cleanup: str) -> Json:
    configuration = {"cleanup.policy": [cleanup], "retention.ms": retention_ms}
    return {
        "address": address,
        "description": description,
        "messages": {cls.__name__: {"$ref": f"#/components/messages/{cls.__name__}"} for cls in classes},
        "bindings": {"kafka": {"topicConfiguration": configuration, "bindingVersion": "0.5.0"}},
    }


def _message(cls: type[Event]) -> Json:
    value, headers = codec.encode(envelope(EXAMPLES[cls]))
    return {
        "name": codec.type_name(cls),
        "title": cls.__name__,
        "summary": described.summary(cls).split("\n\n")[0],
        "contentType": "application/json",
        "headers": _headers(cls),
        "payload": {"$ref": f"#/components/schemas/{cls.__name__}"},
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": "0.5.0"}},
        "examples": [
            {
                "headers": {name: header.decode() for name, header in headers},
                "payload": msgspec.json.decode(value),
            }
        ],
    }


def _headers(cls: type[Event]) -> Json:
    text = {"type": "string"}
    properties: Json = {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_type": {"type": "string", "const": codec.type_name(cls)},
        "ce_source": text | {"description": "Which process wrote it."},
        "ce_id": text | {"description": "The event's identity; a repeated one is the same event."},
    }
    required = list(properties)
    if cls.TIMED:
        properties["content-type"] = {"type": "string", "const": codec.CONTENT_TYPE.decode()}
        required.append("content-type")
        if cls.KEY == "account_id":
            properties["ce_subject"] = text | {"description": "The account."}
            required.append("ce_subject")
        properties["ce_time"] = text | {"format": "date-time"}
        properties["ce_causationid"] = text | {"description": "`ce_id` of the event that led to it."}
        properties["traceparent"] = text | {"description": "W3C trace context."}
    return {"type": "object", "required": required, "properties": properties}


def _schemas() -> Json:
    _, components = msgspec.json.schema_components(EVENTS, ref_template="#/components/schemas/{name}")
    classes: dict[str, type[msgspec.Struct]] = {cls.__name__: cls for cls in EVENTS}
    for cls in EVENTS:
        classes |= {value.__name__: value for value in described.values_of(cls)}
    return {name: _with_descriptions(classes[name], schema) for name, schema in components.items()}


def _with_descriptions(cls: type[msgspec.Struct], schema: Mapping[str, Any]) -> Json:
    properties = {name: dict(member) for name, member in schema["properties"].items()}
    for member in described.members(cls):
        if member.description:
            properties[member.name]["description"] = member.description
    return {**schema, "description": described.summary(cls), "properties": properties}


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"\W+", name))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for name, member in value.items() for line in _entry(f"{_scalar(name)}:", member)]
    if isinstance(value, list | tuple) and value:
        lines: list[str] = []
        for item in value:
            first, *rest = _lines(item)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _entry(head: str, member: Any) -> list[str]:
    if isinstance(member, dict | list | tuple) and member:
        return [head, *(f"  {line}" for line in _lines(member))]
    return [f"{head} {_scalar(member)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return msgspec.json.encode(value).decode()
