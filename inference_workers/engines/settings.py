"""What the settings of all engines have in common. Each engine has a class of its own, read when it is chosen."""

from typing import ClassVar

from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """Settings of an engine, from `TURNLOG_…` variables."""

    model_config = SettingsConfigDict(env_prefix="TURNLOG_", frozen=True, extra="ignore")

    install: ClassVar[str] = ""
    """What to do where a package is missing."""

    def packages(self) -> tuple[str, ...]:
        """The modules that have to be installed for the engine, besides our own requirements."""
        return ()
