"""Settings of the engine `tensorrt_llm`: environment variables `TURNLOG_TENSORRT_…`."""

from inference_workers.engines.settings import EngineSettings


class TensorRtLlmSettings(EngineSettings):
    """How TensorRT-LLM is run in the worker's process."""
