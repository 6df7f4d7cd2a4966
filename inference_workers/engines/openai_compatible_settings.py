"""Settings of the engine `openai_compatible`: environment variables `TURNLOG_OPENAI_…`."""

from inference_workers.engines.settings import EngineSettings


class OpenAiCompatibleSettings(EngineSettings):
    """The servers that the worker calls, and how patient it is with them."""
