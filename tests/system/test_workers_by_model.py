"""Pools of different models on one machine: `--workers small=1,large=2`."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from system.product import Product

from schemas.models import SMOLLM2

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SMALL = msgspec.structs.replace(SMOLLM2, name="small", pool="cpu")
LARGE = msgspec.structs.replace(SMOLLM2, name="large", pool="gpu")
SETTINGS = {"TURNLOG_MODELS": msgspec.json.encode([SMALL, LARGE]).decode(), "TURNLOG_WORKERS": "small=1,large=2"}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    data: Path = tmp_path_factory.mktemp("models")
    running = Product(data, "--engine", "scripted", env=SETTINGS)
    yield running
    running.close()


def test_each_model_is_answered_by_a_worker_of_its_own_pool(product: Product) -> None:
    assert {name for name in product.parts() if name.startswith("worker-")} == {"worker-0", "worker-1", "worker-2"}
    client = product.client()
    for model in ("small", "large", "large"):
        reply_id = client.send(f"hello {model}", model=model)["reply"]["id"]
        end = client.read(reply_id).end
        assert end is not None
        assert end["status"] == "completed"
        message = client.message(reply_id)
        assert (message["model"], message["text"], message["resets"]) == (model, f"hello {model}", [])
    assert all(part["restarts"] == 0 for name, part in product.parts().items() if name.startswith("worker-"))
