"""The label `route` of the API's metrics is the whole template of a path, of every format."""

import re

import pytest

from tests.api.world import World


@pytest.mark.parametrize(
    ("method", "path", "label"),
    [
        ("GET", "/openai/v1/models", "/openai/v1/models"),
        ("POST", "/openai/v1/chat/completions", "/openai/v1/chat/completions"),
        ("GET", "/openai/v1/responses/resp_1", "/openai/v1/responses/{response_id}"),
        ("POST", "/anthropic/v1/messages", "/anthropic/v1/messages"),
        ("GET", "/v1/conversations", "/v1/conversations"),
        ("GET", "/v1/messages/rep_1/events", "/v1/messages/{message_id}/events"),
        ("GET", "/not-there", "none"),
    ],
)
async def test_a_request_is_counted_under_its_template(method: str, path: str, label: str) -> None:
    async with World().running() as world:
        api = world.process()
        await api.call(method, path)
        counted = re.findall(r'^turnlog_api_requests_total\{.*route="(.*?)"', api.metrics.page().decode(), re.MULTILINE)
    assert counted == [label]
