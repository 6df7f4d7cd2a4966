"""Ports on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import chain

from infra.errors import PortTaken

HOST = "127.0.0.1"
TRIES = 100


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
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


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


def choose_run(wanted: int, remembered: int | None, names: Sequence[str], *, setting: str, host: str = HOST) -> int:
    """The first of as many ports in a row as there are names; as `choose` otherwise.

    Raises PortTaken.
    """
    if wanted:
        for number, part in enumerate(names):
            choose(wanted + number, None, part=part, setting=setting, host=host)
        return wanted
    for first in chain([remembered], (free_port() for _ in range(TRIES))):
        if first and all(is_free(first + number, host) for number in range(len(names))):
            return first
    raise PortTaken(
        f"No {len(names)} ports in a row are free for {names[0]} and those after it; choose with {setting}."
    )
