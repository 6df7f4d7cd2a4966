"""One running product for the tests of this folder: two API processes, two workers, the scripted engine.

What takes a minute by default takes seconds here, and its first model may write very long replies.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from system.product import Product

from schemas.models import SMOLLM2

SLOTS = 8
"""Of each worker."""
LONG = msgspec.structs.replace(
    SMOLLM2, context_tokens=400_000, output_tokens_max=300_000, output_tokens_default=300_000
)
SMALL = msgspec.structs.replace(SMOLLM2, name="small", context_tokens=1_000)
OPERATOR = "tlo_of_the_tests_of_this_folder_alone"
SETTINGS = {
    "TURNLOG_HEARTBEAT_S": "0.5",
    "TURNLOG_SEND_TIMEOUT_S": "3",
    "TURNLOG_TOKEN_TIMEOUT_S": "3",
    "TURNLOG_SLOTS": str(SLOTS),
    "TURNLOG_OPERATOR_KEY": OPERATOR,
    "TURNLOG_MODELS": msgspec.json.encode([LONG, SMALL]).decode(),
}


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    data: Path = tmp_path_factory.mktemp("product")
    running = Product(data, "--engine", "scripted", "--api", "2", "--workers", "2", env=SETTINGS)
    yield running
    running.close()
