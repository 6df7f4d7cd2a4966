"""Ports of processes that stand in a row."""

import socket

import pytest

from infra.errors import PortTaken
from infra.ports import HOST, choose_run, free_port, is_free

NAMES = ["the API", "api-1", "api-2"]


def free_run() -> int:
    return choose_run(0, None, NAMES, setting="--port")


def test_any_ports_are_free_and_in_a_row() -> None:
    first = free_run()
    assert all(is_free(first + number) for number in range(len(NAMES)))


def test_remembered_ports_are_kept_as_long_as_all_are_free() -> None:
    first = free_run()
    assert choose_run(0, first, NAMES, setting="--port") == first
    with socket.socket() as other:
        other.bind((HOST, first + 2))
        other.listen()
        assert choose_run(0, first, NAMES, setting="--port") != first


def test_ports_that_were_asked_for_are_taken_or_refused_by_name() -> None:
    first = free_run()
    assert choose_run(first, free_port(), NAMES, setting="--port") == first
    with socket.socket() as other:
        other.bind((HOST, first + 1))
        other.listen()
        with pytest.raises(PortTaken, match=rf"Port {first + 1} for api-1 is in use .* with --port"):
            choose_run(first, None, NAMES, setting="--port")
