"""What librdkafka says again and again while brokers are away, said seldom."""

import logging
import time

EVERY_S = 10.0
_KIND_CHARS = 32


class Seldom(logging.Filter):
    """Lets lines that begin alike (the client's name is in there) through once in `EVERY_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage()[:_KIND_CHARS]
        now_s = time.monotonic()
        if now_s - self._said_s.get(kind, -EVERY_S) < EVERY_S:
            return False
        self._said_s[kind] = now_s
        return True
