"""Ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from infra.errors import PortTaken

HOST = "127.0.0.1"
LOWEST = 10_000
TRIES = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now, and that the system does not give to outgoing connections, so that it stays free."""
    highest = _first_ephemeral() - 1
    for _ in range(TRIES):
        port = random.randint(LOWEST, highest) if highest > LOWEST else 0
        if port and is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def choose(wanted: int, remembered: int | None, *, part: str, setting: str, host: str = HOST) -> int:
    """The port for a part: the wanted one, or for 0 the remembered one if it is free, else any free one.

    Raises PortTaken when a port was wanted by number and is in use.
    """
    if wanted:
        if not is_free(wanted, host):
            raise PortTaken(
                f"Port {wanted} for {part} is in use by another program; stop it or choose another with {setting}."
            )
        return wanted
    if remembered and is_free(remembered, host):
        return remembered
    return free_port()
