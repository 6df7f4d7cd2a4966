"""The AsyncAPI document: valid YAML, no dangling reference, examples that fit their schemas."""

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas import asyncapi
from schemas.events import EVENTS
from schemas.topics import FIXED

TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.sampled_from("\n\t…“é"), max_size=20)

DOCUMENT = msgspec.to_builtins(asyncapi.document("1"))


def resolved(node):
    """The document with every reference replaced by what it points to."""
    if isinstance(node, dict) and "$ref" in node:
        target = DOCUMENT
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return resolved(target)
    if isinstance(node, dict):
        return {name: resolved(member) for name, member in node.items()}
    return [resolved(item) for item in node] if isinstance(node, list | tuple) else node


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=10,
    )
)
def test_yaml_is_read_as_the_value_that_was_written(value):
    assert yaml.safe_load(asyncapi.yaml(value)) == value


def test_there_is_a_channel_a_topic_and_a_message_an_event():
    assert {topic.name for topic in FIXED} <= DOCUMENT["channels"].keys()
    in_channels = {name for channel in DOCUMENT["channels"].values() for name in channel["messages"]}
    assert in_channels == {cls.__name__ for cls in EVENTS}


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_the_example_fits_the_schemas(cls):
    message = resolved(DOCUMENT["components"]["messages"][cls.__name__])
    for example in message["examples"]:
        Draft202012Validator(message["headers"]).validate(example["headers"])
        Draft202012Validator(message["payload"]).validate(example["payload"])


def test_members_carry_their_docstrings():
    members = DOCUMENT["components"]["schemas"]["TokensGenerated"]["properties"]
    assert members["tokens"]["description"].startswith("Output tokens that this piece stands for")
