"""What processes cost, from /proc: CPU seconds and resident memory of a process with its descendants."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Cost(msgspec.Struct, frozen=True):
    """CPU seconds since the start (user and system), and resident bytes now."""

    cpu_s: float
    resident_bytes: int


def family(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, and fast
        if entry.isdigit() and (stat := _stat(int(entry))):
            children.setdefault(int(stat[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cost(pids: Iterable[int]) -> Cost:
    """What these processes cost together; those that are gone cost nothing more."""
    cpu_s, resident = 0.0, 0
    for pid in pids:
        if stat := _stat(pid):
            cpu_s += (int(stat[11]) + int(stat[12])) / _TICKS
            resident += int(stat[21]) * _PAGE
    return Cost(cpu_s, resident)


def costs(roots: Mapping[str, int]) -> dict[str, Cost]:
    """The cost of each named process with its descendants."""
    return {name: cost(family(pid)) for name, pid in roots.items()}


def spent(before: Mapping[str, Cost], after: Mapping[str, Cost]) -> dict[str, float]:
    """CPU seconds between two readings, by name."""
    return {name: max(0.0, after[name].cpu_s - before[name].cpu_s) for name in after if name in before}


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on: 1 parent, 11 and 12 CPU ticks, 21 resident pages."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
