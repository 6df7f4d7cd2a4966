"""Ports that the local stack chooses."""

import socket
from pathlib import Path

import pytest

from infra import ports
from infra.errors import PortTaken
from infra.ports import HOST, choose, free_port, is_free


def chosen(wanted: int, remembered: int | None) -> int:
    return choose(wanted, remembered, part="the API", setting="--port")


def test_a_free_port_is_none_that_outgoing_connections_get() -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    found = [free_port() for _ in range(20)]
    assert all(is_free(port) for port in found)
    assert all(ports.LOWEST <= port < first_ephemeral for port in found)


def test_where_the_range_of_outgoing_connections_is_not_known_the_system_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "absent")
    assert is_free(free_port())


def test_a_remembered_port_is_kept_as_long_as_it_is_free() -> None:
    port = free_port()
    assert chosen(0, port) == port
    with socket.socket() as other:
        other.bind((HOST, port))
        other.listen()
        assert chosen(0, port) != port


def test_a_port_that_was_asked_for_is_taken_or_refused_by_name() -> None:
    port = free_port()
    assert chosen(port, free_port()) == port
    with socket.socket() as other:
        other.bind((HOST, port))
        other.listen()
        with pytest.raises(PortTaken, match=rf"Port {port} for the API is in use .* with --port"):
            chosen(port, None)
