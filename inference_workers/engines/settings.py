"""What the settings of all engines have in common. Each engine has a class of its own, read when it is chosen."""

from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """Settings of an engine, from `TURNLOG_…` variables."""

    model_config = SettingsConfigDict(env_prefix="TURNLOG_", frozen=True, extra="ignore")
