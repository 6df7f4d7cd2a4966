"""Readers that take nothing, on raw sockets: they cost little, disturb nobody, are cut off, and lose nothing."""

import contextlib
import re
import socket
from urllib.parse import urlsplit

import psutil
import pytest
from system.product import Product, Seen, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

READERS = 150
CHUNKS = 250_000
GROWTH_MAX = 200_000_000
"""Bytes of the API process for all of them, where the streams that they do not take are 400 MB. Measured: 65 MB on a
quiet machine, 135 MB on a busy one; most of it are the HTTP server's write buffers."""


def stalled(url: str, api_key: str, path: str) -> socket.socket:
    """A request whose answer is not read; the kernel takes as little of it as it can."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect((parts.hostname, parts.port))
    connection.sendall(f"GET {path} HTTP/1.0\r\nAuthorization: Bearer {api_key}\r\n\r\n".encode())
    return connection


def rest(connection: socket.socket) -> bytes:
    """What had come, and what comes now, until the connection is closed or reset."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            got += chunk
    return got.partition(b"\r\n\r\n")[2]


def test_readers_that_take_nothing_are_bounded_cut_off_and_resume_without_loss(product: Product) -> None:
    address, other = product.addresses()
    client = product.client(address)
    process = psutil.Process(int(product.parts()["api-0"]["pid"]))

    def metric(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", client.http.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    open_before, cut_before = metric("turnlog_api_streams_open"), metric("turnlog_api_streams_cut_off_total")
    reply_id = client.send({"chunks": CHUNKS, "first_after_ms": 3000})["reply"]["id"]
    path = f"/v1/messages/{reply_id}/events"
    before = process.memory_info().rss
    readers = [stalled(address, product.api_key, path) for _ in range(READERS)]
    eventually("all follow", lambda: metric("turnlog_api_streams_open") >= open_before + READERS)
    peaks: list[int] = []
    whole = client.read(reply_id, within_s=60, each=lambda _: peaks.append(process.memory_info().rss))
    assert whole.reconnects == 0, "a reader that takes what comes is not disturbed"
    assert whole.end is not None
    assert whole.end["usage"]["output_tokens"] == CHUNKS
    assert product.client(other).read(reply_id).frames == whole.frames

    def all_cut_off() -> bool:
        peaks.append(process.memory_info().rss)
        return metric("turnlog_api_streams_cut_off_total") >= cut_before + READERS

    eventually("all are cut off", all_cut_off)
    assert max(peaks) - before < GROWTH_MAX, f"{max(peaks) - before} bytes"
    assert metric("turnlog_api_streams_open") <= open_before
    for reader in readers[:3]:
        seen = Seen()
        for frame in rest(reader).split(b"\n\n")[:-1]:
            seen.take(frame + b"\n\n")
        assert seen.end is None
        client.read(reply_id, seen)
        assert seen.frames == whole.frames
    for reader in readers:
        reader.close()
