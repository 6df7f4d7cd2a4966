"""Serves ClickHouse from its shared library: ``python -m infra.clickhouse_child LIBRARY CONFIG DIR HTTP TCP``.

A process of its own, because the call blocks while the server runs and a crash of the engine must
not take anything else along. The library has no "serve" entry: a query that opens the listeners
and then never ends is what keeps it serving.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

SETTLE_S = 5.0

# One row a block and one second a row: a query that lasts 300 years.
FOREVER = (
    "SYSTEM START LISTEN QUERIES ALL; "
    "SELECT sleepEachRow(1) FROM numbers(10000000000) FORMAT Null "
    "SETTINGS max_block_size = 1, max_threads = 1, function_sleep_max_microseconds_per_block = 0, "
    "max_execution_time = 0, log_queries = 0;"
)


def arguments(settings: str, data_folder: str, http_port: str, tcp_port: str) -> list[str]:
    """The command line that the engine is given."""
    return [
        "clickhouse",
        f"--config-file={settings}",
        f"--path={data_folder}",
        "--listen_host=127.0.0.1",
        f"--http_port={http_port}",
        f"--tcp_port={tcp_port}",
        f"--query={FOREVER}",
    ]


def untouched_mappings(smaps: Iterable[str], file: str) -> list[tuple[int, int]]:
    """Start and length of the read-only mappings of a file that hold no page of their own.

    ``smaps`` are the lines of /proc/self/smaps. A page that the linker has written to (relocations)
    makes its mapping's `Anonymous` more than 0, and such a mapping is left out.
    """
    found = []
    current: tuple[int, int] | None = None
    for line in smaps:
        header = re.match(r"([0-9a-f]+)-([0-9a-f]+) (r-.p) .*?(/.*)?$", line)
        if header is not None:
            start, end = int(header[1], 16), int(header[2], 16)
            current = (start, end - start) if (header[4] or "").endswith(file) else None
        elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            current = None
        elif current is not None and re.match(r"Anonymous:\s+0 kB", line):
            found.append(current)
            current = None
    return found


def give_back_start_up_pages(library_path: str) -> None:
    """Once the engine has started, unmap the pages of its code that only the start needed.

    The start touches nearly all of a library of 570 MB; what the queries use comes back from the
    page cache by itself.
    """
    time.sleep(SETTLE_S)
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start, length in untouched_mappings(
            Path("/proc/self/smaps").read_text().splitlines(), Path(library_path).name
        ):
            libc.madvise(start, length, mmap.MADV_DONTNEED)


def main() -> None:
    """Serve until a signal ends the process."""
    library_path, settings, data_folder, http_port, tcp_port = sys.argv[1:]
    library = ctypes.CDLL(library_path)
    # The engine has no graceful stop from outside; its data survives any kill, so leave at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=give_back_start_up_pages, args=(library_path,), daemon=True).start()
    line = [part.encode() for part in arguments(settings, data_folder, http_port, tcp_port)]
    argv = (ctypes.c_char_p * len(line))(*line)
    serve = library.query_stable_v2
    serve.restype = ctypes.c_void_p
    serve(len(line), argv)
    sys.stderr.write("the engine returned: see above for its reason\n")
    os._exit(1)


if __name__ == "__main__":
    main()
