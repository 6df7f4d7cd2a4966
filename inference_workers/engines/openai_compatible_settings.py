"""Settings of the engine `openai_compatible`: environment variables `TURNLOG_OPENAI_…`."""

import json
import os
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from inference_workers.engines.chat_completions import Dialect, PriorityMode, UsageMode
from inference_workers.engines.openai_provider import Patience, Provider
from inference_workers.engines.providers import Limits
from inference_workers.engines.settings import EngineSettings

MaxTokensAs = Literal["max_tokens", "max_completion_tokens"]


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an address like https://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("no name, password, query or fragment may be in it; a key has a setting of its own")
    return url.rstrip("/")


def _header(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise ValueError("a key must be printable ASCII")
    return key


def _key(key: SecretStr | None) -> SecretStr | None:
    """Without the line end that a file of secrets leaves; what no header can hold is refused here, unshown."""
    return None if key is None else SecretStr(_header(key.get_secret_value().strip()))


class ProviderEntry(BaseModel):
    """A member of the list of providers. What it leaves out is as in the settings of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    base_url: Annotated[str, pydantic.AfterValidator(_address)]
    key_env: str = ""
    model: str = ""
    health_path: str | None = None
    cache_salt: bool | None = None
    priority: PriorityMode | None = None
    top_k: bool | None = None
    sampling: bool | None = None
    usage: UsageMode | None = None
    max_tokens_as: MaxTokensAs | None = None
    stop_max: int | None = Field(default=None, ge=0)

    def key(self) -> SecretStr:
        """The key, empty without one."""
        return SecretStr(os.environ.get(self.key_env, "").strip() if self.key_env else "")


class OpenAiCompatibleSettings(EngineSettings):
    """The servers that the worker calls, and how patient it is with them."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    openai_base_url: Annotated[str, pydantic.AfterValidator(_address)] = "http://127.0.0.1:8000/v1"
    """Up to what stands before `/chat/completions`."""
    openai_key: Annotated[SecretStr | None, pydantic.AfterValidator(_key)] = None
    openai_model: str = ""
    """The upstream's name of the model; empty: the name that the worker serves it by."""
    openai_providers: Annotated[tuple[ProviderEntry, ...] | None, NoDecode] = None
    """Several, in order: a JSON list of objects with `name`, `base_url`, `key_env` (the variable that holds the key),
    `model`, and any of the settings from `health_path` to `stop_max`. Replaces the three settings above."""
    openai_health_path: str = "/models"
    """Asked for at the start, below the base URL, or from the root with a leading `//`; empty: nothing is asked."""

    openai_cache_salt: bool = False
    """The upstream takes `cache_salt` (vLLM, SGLang, trtllm-serve): a hash, one for each account."""
    openai_priority: PriorityMode = "no"
    """The upstream takes `priority`: vLLM `low_first`, SGLang `high_first`, trtllm-serve `fraction`; each only with
    priority scheduling switched on."""
    openai_top_k: bool = False
    openai_sampling: bool = True
    """`temperature`, `top_p` and `seed` are sent; false for models that refuse them."""
    openai_usage: UsageMode = "end"
    """`end`: `stream_options.include_usage`; `each`: with `continuous_usage_stats` too (vLLM, SGLang, trtllm-serve), so
    that cancelled replies are counted exactly; `no`: nothing is asked for, and tokens are estimated."""
    openai_max_tokens_as: MaxTokensAs = "max_tokens"
    openai_stop_max: int = Field(default=4, ge=0)
    """Stop sequences that the upstream takes; the worker holds to all of them itself too."""

    openai_connect_timeout_s: float = Field(default=5.0, gt=0)
    openai_headers_timeout_s: float = Field(default=60.0, gt=0)
    openai_first_token_timeout_s: float = Field(default=120.0, gt=0)
    """From sending one request."""
    openai_token_timeout_s: float = Field(default=45.0, gt=0)
    """Between tokens. Below TURNLOG_TOKEN_TIMEOUT_S, so that a silent upstream leads to another attempt."""
    openai_begin_timeout_s: float = Field(default=150.0, gt=0)
    """After it no further request is sent. With the time for the first token, below TURNLOG_FIRST_TOKEN_TIMEOUT_S."""
    openai_total_timeout_s: float = Field(default=900.0, gt=0)

    openai_attempts_max: int = Field(default=4, ge=1, le=100)
    """Requests for one generation, to all providers together."""
    openai_attempts_each: int = Field(default=2, ge=1, le=100)
    openai_backoff_base_s: float = Field(default=0.25, ge=0)
    openai_backoff_max_s: float = Field(default=4.0, ge=0)
    openai_wait_max_s: float = Field(default=10.0, ge=0)
    """The longest wait for a provider, as one asks for with Retry-After, when no other may be asked."""
    openai_fallback_after_s: float = Field(default=1.0, ge=0)
    """The longest wait for a provider when one after it may be asked."""
    openai_retry_share: float = Field(default=0.2, ge=0, le=1)
    """Requests that may be asked again of the same provider, as a share of all."""
    openai_retry_burst: float = Field(default=10.0, ge=0)
    openai_breaker_failures: int = Field(default=5, ge=1)
    openai_breaker_share: float = Field(default=0.5, gt=0, le=1)
    openai_breaker_window_s: float = Field(default=30.0, gt=0)
    openai_breaker_open_s: float = Field(default=10.0, gt=0)
    openai_breaker_open_max_s: float = Field(default=120.0, gt=0)
    openai_breaker_probe_s: float = Field(default=2.0, gt=0)
    """After its time, one request in so long tries the provider, until one is answered."""

    @field_validator("openai_providers", mode="before")
    @classmethod
    def _parse_providers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if not value.strip():
            return None
        try:
            return tuple(json.loads(value))
        except (ValueError, TypeError) as error:
            raise ValueError(f"not a JSON list of objects: {error}") from error

    @field_validator("openai_providers")
    @classmethod
    def _are_different(cls, value: tuple[ProviderEntry, ...] | None) -> tuple[ProviderEntry, ...] | None:
        if value is None:
            return None
        if not value or len({entry.name for entry in value}) != len(value):
            raise ValueError("at least one provider, each name once")
        missing = [entry.key_env for entry in value if entry.key_env and not os.environ.get(entry.key_env)]
        if missing:
            raise ValueError(f"no such variable, or an empty one: {', '.join(missing)}")
        for entry in value:
            _header(entry.key().get_secret_value())
        return value

    def providers(self, model: str) -> tuple[Provider, ...]:
        """The providers in order; `model` is asked for where nothing says otherwise."""
        if self.openai_providers is None:
            host = urlsplit(self.openai_base_url).netloc
            return (
                self._provider(
                    host, self.openai_base_url, self.openai_key or SecretStr(""), self.openai_model or model, {}
                ),
            )
        return tuple(
            self._provider(
                entry.name,
                entry.base_url,
                entry.key(),
                entry.model or model,
                entry.model_dump(exclude_none=True),
            )
            for entry in self.openai_providers
        )

    def _provider(self, name: str, base_url: str, key: SecretStr, model: str, own: dict[str, Any]) -> Provider:
        return Provider(
            name=name,
            base_url=base_url,
            key=key,
            health_path=own.get("health_path", self.openai_health_path),
            dialect=Dialect(
                model=model,
                max_tokens_as=own.get("max_tokens_as", self.openai_max_tokens_as),
                sampling=own.get("sampling", self.openai_sampling),
                top_k=own.get("top_k", self.openai_top_k),
                cache_salt=own.get("cache_salt", self.openai_cache_salt),
                priority=own.get("priority", self.openai_priority),
                usage=own.get("usage", self.openai_usage),
                stop_max=own.get("stop_max", self.openai_stop_max),
            ),
        )

    def patience(self) -> Patience:
        """The longest waits."""
        return Patience(
            connect_s=self.openai_connect_timeout_s,
            headers_s=self.openai_headers_timeout_s,
            first_token_s=self.openai_first_token_timeout_s,
            token_s=self.openai_token_timeout_s,
            begin_s=self.openai_begin_timeout_s,
            total_s=self.openai_total_timeout_s,
        )

    def limits(self) -> Limits:
        """How often and how soon providers are asked again."""
        return Limits(**{name: getattr(self, f"openai_{name}") for name in Limits.__struct_fields__})
