"""Fixtures of the API's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.api.world import Process, World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An API world in memory."""
    async with World().running() as world:
        yield world


@pytest.fixture
def api(world: World) -> Process:
    """One API process of the world."""
    return world.process()
