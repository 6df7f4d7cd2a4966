"""Several API processes share one port: clients know one address, whichever process serves them."""

from urllib.parse import urlsplit

import psutil
import pytest
from system.product import Product, Seen

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]


def test_all_processes_listen_on_the_address_that_users_get(product: Product) -> None:
    port = urlsplit(product.url).port
    apis = {name: part for name, part in product.parts().items() if name.startswith("api-")}
    assert len(apis) == 2
    for name, part in apis.items():
        listening = {
            connection.laddr.port
            for connection in psutil.Process(part["pid"]).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {port, urlsplit(part["address"]).port}, name


def test_streams_of_a_killed_process_are_resumed_at_the_same_address(product: Product) -> None:
    client = product.client()
    ids = [client.send({"chunks": 500, "every_ms": 25})["reply"]["id"] for _ in range(2)]
    killed: list[int] = []

    def kill_both_in_turn(seen: Seen) -> None:
        for number, offset in ((0, 10), (1, 50)):
            if seen.offset >= offset and len(killed) == number:
                killed.append(product.kill(f"api-{number}"))

    seen = client.read(ids[0], each=kill_both_in_turn)
    other = product.client().read(ids[1])
    assert len(killed) == 2
    for reply_id, one in zip(ids, (seen, other), strict=True):
        assert one.end is not None
        assert (one.end["status"], one.attempt) == ("completed", 1)
        assert client.message(reply_id)["text"] == one.text
    assert seen.reconnects >= 1
    product.wait_ready()
