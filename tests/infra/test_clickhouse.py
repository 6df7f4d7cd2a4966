"""How ClickHouse is started from its library."""

from pathlib import Path
from xml.etree import ElementTree as ET

from infra.clickhouse_child import arguments, untouched_mappings
from infra.clickhouse_server import ClickHouseServer

SMAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fe:00 1 /cache/libchdb.so
Rss:                   4 kB
Anonymous:             0 kB
7f0000001000-7f0000003000 r-xp 00001000 fe:00 1 /cache/libchdb.so
Anonymous:             0 kB
7f0000003000-7f0000004000 r--p 00003000 fe:00 1 /cache/libchdb.so
Anonymous:             4 kB
7f0000004000-7f0000005000 rw-p 00004000 fe:00 1 /cache/libchdb.so
Anonymous:             0 kB
7f0000005000-7f0000006000 r-xp 00000000 fe:00 2 /lib/libc.so.6
Anonymous:             0 kB
7f0000006000-7f0000007000 rw-p 00000000 00:00 0
Anonymous:             0 kB
"""


def test_only_unwritten_mappings_of_the_library_are_given_back() -> None:
    found = untouched_mappings(SMAPS.splitlines(), "libchdb.so")
    assert found == [(0x7F0000000000, 0x1000), (0x7F0000001000, 0x2000)]


def test_the_engine_is_told_folder_ports_and_a_query_that_serves() -> None:
    words = arguments("/data/config.xml", "/data", "1234", "5678")
    assert "--config-file=/data/config.xml" in words
    assert "--http_port=1234" in words
    assert "--listen_host=127.0.0.1" in words
    assert "SYSTEM START LISTEN" in words[-1]


def test_the_settings_file_is_well_formed_for_any_folder() -> None:
    server = ClickHouseServer(Path("/data/a & <b>"), 1234, 5678, memory_mb=2)
    root = ET.fromstring(server.configuration())
    assert root.findtext("path") == "/data/a & <b>/"
    assert root.findtext("max_server_memory_usage") == str(2 * 1024 * 1024)
    assert root.findtext("listen_host") == "127.0.0.1"
