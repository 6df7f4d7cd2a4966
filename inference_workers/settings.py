"""The worker's settings: environment variables `TURNLOG_…`."""

from typing import Literal

EngineName = Literal["llama_cpp", "scripted", "simulated", "tensorrt_llm", "openai_compatible"]

SLOTS_DEFAULT: dict[str, int] = {"llama_cpp": 4, "scripted": 512, "simulated": 64}
