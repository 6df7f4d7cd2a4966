"""Behind Debian's nginx: nothing is held back, cuts are resumed, silence is bridged, a page shares the origin."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from system.product import Client, Product, Seen

from clients.cable import Cable
from clients.chromium import Chromium
from clients.heard import end_of, text_of
from clients.nginx import Nginx

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

Started = Callable[[str], Nginx]
RECOMMENDED = 'proxy_http_version 1.1; proxy_set_header Connection "";'


def arrivals(client: Client, reply_id: str) -> dict[int, float]:
    """When each event came, by its offset."""
    came: dict[int, float] = {}
    client.read(reply_id, each=lambda seen: came.setdefault(seen.offset, time.monotonic()) and None)
    return came


@pytest.mark.parametrize("settings", ["", RECOMMENDED], ids=["as installed", "as recommended"])
def test_each_token_is_at_the_client_within_a_second_of_its_emission(
    product: Product, behind_nginx: Started, settings: str
) -> None:
    direct, proxied = product.client(), product.client(behind_nginx(settings).url)
    sent = proxied.send({"chunks": 20, "every_ms": 100, "first_after_ms": 1000})
    came: dict[int, float] = {}
    reader = threading.Thread(target=lambda: came.update(arrivals(proxied, sent["reply"]["id"])), daemon=True)
    reader.start()
    emitted = arrivals(direct, sent["reply"]["id"])
    reader.join(30)
    assert sorted(came) == sorted(emitted)
    late = max(came[offset] - emitted[offset] for offset in emitted)
    assert late < 1.0, f"{late} s later than without nginx"
    assert came[max(came)] - came[2] > 1.0, "they come one by one"


def test_a_cut_between_client_and_nginx_is_resumed_exactly(product: Product, behind_nginx: Started) -> None:
    with Cable(behind_nginx("").url) as cable:
        client = product.client(cable.url)
        sent = client.send({"chunks": 60, "every_ms": 20})
        cable.cut_at(b"id: 20\nevent: del")
        seen = client.read(sent["reply"]["id"])
        assert (cable.cuts, seen.reconnects) == (1, 1)
        assert seen.text == client.message(sent["reply"]["id"])["text"]


def test_a_cut_between_nginx_and_the_api_is_resumed_exactly(product: Product, cable: Cable, tmp_path: Path) -> None:
    with Nginx(cable.url, tmp_path, "proxy_http_version 1.0;") as nginx:  # the default of many versions
        client = product.client(nginx.url)
        sent = client.send({"chunks": 60, "every_ms": 20})
        cable.cut_at(b"id: 20\nevent: del")
        seen = Seen()
        client.read(sent["reply"]["id"], seen)
        assert (cable.cuts, seen.reconnects) == (1, 1)
        assert seen.text == client.message(sent["reply"]["id"])["text"]
        assert {asked.version for asked in cable.asked} == {"HTTP/1.0"}


def test_heartbeats_bridge_a_silence_that_is_longer_than_nginx_waits(product: Product, behind_nginx: Started) -> None:
    client = product.client(behind_nginx("proxy_read_timeout 2s;").url)
    sent = client.send({"chunks": 2, "every_ms": 4000, "first_after_ms": 100})
    seen = client.read(sent["reply"]["id"])
    assert seen.reconnects == 0
    assert seen.end is not None


def test_a_page_behind_the_same_nginx_needs_no_leave_and_resumes(
    product: Product, cable: Cable, tmp_path: Path, chromium: Chromium
) -> None:
    with Nginx(cable.url, tmp_path) as nginx:
        tab = chromium.tab()
        cable.cut_at(b"id: 20\nevent: del")
        content = '{"chunks": 60, "every_ms": 20}'
        tab.open(f"{nginx.url}/pages/reply.html", api="", key=product.api_key, content=content)
        tab.until("the end", end_of)
        reply_id = next(one["sent"] for one in tab.said if "sent" in one)
        assert text_of(tab.said) == product.client().message(reply_id)["text"]
        asked = cable.asked_for(f"/v1/messages/{reply_id}/events")
        first, again = (one.headers.get("last-event-id") for one in asked[:2])
        assert first is None
        assert 15 < int(again or 0) < 20, "what nginx had not handed on when its connection broke comes again"
        assert not [one for one in cable.asked if one.method == "OPTIONS"]
        tab.close()
