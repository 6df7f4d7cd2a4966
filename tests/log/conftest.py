"""Fixtures of the contract: each test runs on the log in memory and on Kafka."""

from collections.abc import Iterator

import pytest
from log.places import InMemory, OnKafka, Place


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A log with the topics of `log.places.COUNTS`, empty."""
    if request.param == "memory":
        made: Place = InMemory()
    else:
        made = OnKafka(request.getfixturevalue("servers").kafka_bootstrap)
    yield made
    made.remove()
