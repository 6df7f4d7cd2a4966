"""Histories are silent."""

import logging

import pytest
import structlog

from tests.money.__main__ import quiet


@pytest.fixture(autouse=True)
def _silent():
    quiet()
    yield
    logging.disable(logging.NOTSET)
    structlog.reset_defaults()
