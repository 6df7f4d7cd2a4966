"""Declared limits of what a client may send. Each is tested at, above and below."""

CONTENT_BYTES_MAX = 262_144
"""UTF-8 bytes of one message's content."""
SYSTEM_BYTES_MAX = 65_536
CLIENT_MESSAGE_ID_CHARS_MAX = 128
TITLE_CHARS_MAX = 200
STOP_SEQUENCES_MAX = 8
STOP_CHARS_MAX = 128
BODY_BYTES_MAX = 1_048_576
"""Bytes of a whole request body (JSON escapes can make content up to three times longer)."""
PAGE_DEFAULT = 50
PAGE_MAX = 200
TEMPERATURE_MAX = 2.0
SEED_MAX = 2**63 - 1
RECORD_BYTES_MAX = 4_194_304
"""Bytes of one Kafka record; a prompt (context window) must fit."""
HISTORY_MESSAGES_MAX = 1_000
"""Messages that a client may bring along with a new one."""
METADATA_PAIRS_MAX = 16
METADATA_NAME_CHARS_MAX = 64
METADATA_VALUE_CHARS_MAX = 512
