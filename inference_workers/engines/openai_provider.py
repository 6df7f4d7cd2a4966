"""A server with the OpenAI API as the settings describe it, and how long it is waited for."""

from pydantic import SecretStr

from inference_workers.engine import Value
from inference_workers.engines.chat_completions import Dialect
from inference_workers.engines.failures import Source


class Provider(Value, frozen=True):
    """A server with the OpenAI API."""

    name: str
    base_url: str
    key: SecretStr
    health_path: str
    dialect: Dialect

    @property
    def source(self) -> Source:
        """For what is told of its failures."""
        return Source(name=self.name, key=self.key.get_secret_value())


class Patience(Value, frozen=True):
    """The longest waits, in seconds."""

    connect_s: float = 5.0
    headers_s: float = 60.0
    first_token_s: float = 120.0
    token_s: float = 45.0
    begin_s: float = 150.0
    """From the beginning of a generation until its last request may be sent."""
    total_s: float = 900.0
    """From the beginning of a generation to its end."""
