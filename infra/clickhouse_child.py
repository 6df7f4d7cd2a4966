"""Serves ClickHouse from its shared library: ``python -m infra.clickhouse_child LIBRARY CONFIG DIR HTTP TCP``.

A process of its own, because the call blocks while the server runs and a crash of the engine must
not take anything else along. The library has no "serve" entry: a query that opens the listeners
and then never ends is what keeps it serving.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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


def main() -> None:
    """Serve until a signal ends the process."""
    library_path, settings, data_folder, http_port, tcp_port = sys.argv[1:]
    library = ctypes.CDLL(library_path)
    # The engine has no graceful stop from outside; its data survives any kill, so leave at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    line = [part.encode() for part in arguments(settings, data_folder, http_port, tcp_port)]
    argv = (ctypes.c_char_p * len(line))(*line)
    serve = library.query_stable_v2
    serve.restype = ctypes.c_void_p
    serve(len(line), argv)
    sys.stderr.write("the engine returned: see above for its reason\n")
    os._exit(1)


if __name__ == "__main__":
    main()
