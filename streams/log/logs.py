"""Structured logs: one JSON object a line on stderr, with the trace and the ids of the record in hand."""

import logging
import sys
from contextlib import AbstractContextManager
from typing import Any

import structlog

from schemas.codec import Envelope
from schemas.events import Event
from schemas.ids import without_secrets
from streams.log.trace import trace_id

_IDS = ("conversation_id", "message_id", "reply_id", "generation_id", "account_id", "pool")


def configure_logging(process: str, level: str = "INFO", *, json: bool = True) -> None:
    """Send our logs and those of libraries to stderr, as JSON lines or, for eyes, as text."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    rendered: Any = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)

    def without_keys(*line: Any) -> str:
        """What looks like a key or a token is hidden, whatever library or error text it comes from."""
        return without_secrets(rendered(*line))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, without_keys],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def concerning(envelope: Envelope[Event]) -> AbstractContextManager[Any]:
    """Within this, each log line carries the event's type and id, its trace and the ids in it."""
    event = envelope.event
    ids = {name: value for name in _IDS if (value := getattr(event, name, None)) is not None}
    return structlog.contextvars.bound_contextvars(
        event_type=type(event).__name__,
        event_id=envelope.id,
        trace_id=trace_id(envelope.traceparent),
        **ids,
    )
