"""Settings of the views, from `TURNLOG_…` variables."""

from pydantic import Field

from streams.log.process import ProcessSettings, database_of


class ViewsSettings(ProcessSettings):
    """`python -m projections views`."""

    clickhouse_url: str = Field(default="http://127.0.0.1:8123", min_length=1)
    views_batch_rows: int = Field(default=10_000, ge=1, le=100_000)
    """Rows that are inserted without waiting for their time."""
    views_gather_ms: float = Field(default=500, ge=0, le=10_000)
    """Records are waited for so long after the first: rows come together, and out of the way of a first token."""

    @property
    def database(self) -> str:
        """The namespace as a database's name."""
        return database_of(self.namespace)
