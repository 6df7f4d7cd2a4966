"""One running product for the tests of this folder: two API processes, two workers, the scripted engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from system.product import Product


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    data: Path = tmp_path_factory.mktemp("product")
    running = Product(data, "--engine", "scripted", "--api", "2", "--workers", "2")
    yield running
    running.close()
