"""What all tests share: real servers, started once, and a namespace on them for each test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment, Servers, new_deployment, shared_servers, stop_shared_servers
from hypothesis import HealthCheck, settings

settings.register_profile("turnlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turnlog")

RUN_FOLDER = "TURNLOG_TEST_RUN_FOLDER"
RUN_PID = "TURNLOG_TEST_RUN_PID"


def pytest_configure(config: pytest.Config) -> None:
    """Agree with pytest-xdist's worker processes, which inherit the environment, on one folder for the run."""
    if not hasattr(config, "workerinput"):
        os.environ[RUN_FOLDER] = tempfile.mkdtemp(prefix="turnlog-tests-")
        os.environ[RUN_PID] = str(os.getpid())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers with the run."""
    if not hasattr(config, "workerinput"):
        folder = Path(os.environ[RUN_FOLDER])
        stop_shared_servers(folder)
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, so that at the end no process waits for another's."""
    items.sort(key=lambda item: item.get_closest_marker("kills") is None)


@pytest.fixture(scope="session")
def servers() -> Servers:
    """Addresses of the real Kafka, Redis and ClickHouse of this run. Mark the test with `servers`."""
    return shared_servers(Path(os.environ[RUN_FOLDER]), int(os.environ[RUN_PID]))


@pytest.fixture
def deployment(servers: Servers) -> Iterator[Deployment]:
    """An empty namespace of the test's own; call `provision()` for topics, tables and functions."""
    mine = new_deployment(servers)
    yield mine
    mine.remove()


@pytest.fixture
def provisioned(deployment: Deployment) -> Deployment:
    """A namespace of the test's own with topics, tables and functions."""
    deployment.provision()
    return deployment
