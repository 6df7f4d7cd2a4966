"""Settings of the stream buffer, from `TURNLOG_…` variables."""

from pydantic import Field

from streams.log.process import ProcessSettings


class BufferSettings(ProcessSettings):
    """`python -m projections buffer`."""

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", min_length=1)
    buffer_retention_s: int = Field(default=3_600, ge=60)
    """How long a stream can be resumed from Redis after its end."""
    buffer_open_s: int = Field(default=21_600, ge=60)
    """How long a reply may be open before its buffer is closed."""
    buffer_frames_max: int = Field(default=200_000, ge=1)
    """Frames of one reply; beyond it its buffer is closed."""
    buffer_bytes_max: int = Field(default=67_108_864, ge=1)
    """Bytes of one reply's frames; beyond it its buffer is closed."""
    buffer_open_max: int = Field(default=20_000, ge=1)
    """Replies held per partition."""
    buffer_gather_ms: float = Field(default=6.0, ge=0, le=100)
    """Under full load: how long a turn waits for more tokens before it writes. Under less it waits less."""
