"""A package of the shape of TensorRT-LLM 1.2, without a GPU: for the tests of the engine that calls it.

It is what the engine meets: the same names, arguments, refusals and habits, written down from the library's sources.
The model behind it is a few lines that make words. `faults` switches on what the real one does wrong.
"""

from tensorrt_llm import faults as faults
from tensorrt_llm import llmapi as llmapi
from tensorrt_llm.llm import LLM, OlderLLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "OlderLLM", "SamplingParams", "__version__"]

__version__ = "1.2.1+fake"
