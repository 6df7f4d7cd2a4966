"""One product for the tests of this folder: the scripted engine, frequent heartbeats, tickets of four seconds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from system.product import Product

from clients.cable import Cable
from clients.chromium import Chromium
from clients.nginx import Nginx
from clients.sites import Site
from infra.ports import free_port

HEARTBEAT_S = 0.5
TICKET_S = 4


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    """The pages of `clients/pages` on an origin of their own, which the product lets in."""
    with Site() as serving:
        yield serving


@pytest.fixture(scope="package")
def page_port() -> int:
    """Where a program may serve pages of its own, which the product lets in."""
    return free_port()


@pytest.fixture(scope="package")
def product(tmp_path_factory: pytest.TempPathFactory, site: Site, page_port: int) -> Iterator[Product]:
    settings = {
        "TURNLOG_HEARTBEAT_S": str(HEARTBEAT_S),
        "TURNLOG_TICKET_S": str(TICKET_S),
        "TURNLOG_CORS_ORIGINS": f"{site.origin},http://127.0.0.1:{page_port}",
    }
    options = ("--engine", "scripted", "--api", "2", "--workers", "2")
    running = Product(tmp_path_factory.mktemp("clients"), *options, env=settings)
    yield running
    running.close()


@pytest.fixture(scope="package")
def environment(product: Product) -> dict[str, str]:
    """What every client program reads."""
    return {"TURNLOG_URL": product.url, "TURNLOG_API_KEY": product.api_key}


@pytest.fixture
def cable(product: Product) -> Iterator[Cable]:
    """A connection to the product that can be cut; give its `url` to the client as `TURNLOG_URL`."""
    with Cable(product.url) as laid:
        yield laid


@pytest.fixture(scope="package")
def chromium() -> Iterator[Chromium]:
    """A browser without a screen; each `tab` has storage of its own."""
    with Chromium() as running:
        yield running


@pytest.fixture
def behind_nginx(product: Product, tmp_path: Path) -> Iterator[Callable[[str], Nginx]]:
    """Starts nginx in front of an API process, with these settings beside `proxy_pass`."""
    started: list[Nginx] = []

    def start(settings: str = "") -> Nginx:
        folder = tmp_path / f"nginx-{len(started)}"
        folder.mkdir()
        started.append(Nginx(product.url, folder, settings))
        return started[-1]

    yield start
    for nginx in started:
        nginx.close()
