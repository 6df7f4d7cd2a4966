"""The engines by name. Each is imported when it is chosen, so that none needs another's libraries."""

from collections.abc import Callable, Mapping

from inference_workers.engine import Engine
from inference_workers.settings import WorkerSettings

SLOTS_DEFAULT = {"llama_cpp": 4, "scripted": 512, "simulated": 64}


def make(settings: WorkerSettings) -> Engine:
    """The engine that the settings name, not started.

    Raises:
        EngineUnavailable: not on this machine.
    """
    return ENGINES[settings.engine](settings)


def _llama_cpp(settings: WorkerSettings) -> Engine:
    from inference_workers.engines.llama_cpp import LlamaCppEngine
    from inference_workers.engines.llama_server import LlamaSettings, find_model

    model = settings.served()
    return LlamaCppEngine(
        LlamaSettings(
            model=model.name,
            model_path=settings.llama_model_path or find_model(),
            slots=_slots(settings),
            context_tokens=settings.context_tokens or model.context_tokens,
            threads=settings.threads(),
            prompt_cache_mib=settings.llama_prompt_cache_mib,
            system_prompt=settings.llama_system_prompt,
        )
    )


def _scripted(settings: WorkerSettings) -> Engine:
    from inference_workers.engines.scripted import ScriptedEngine

    model = settings.served()
    return ScriptedEngine(
        model=model.name,
        slots=_slots(settings),
        context_tokens=settings.context_tokens or model.context_tokens,
    )


def _simulated(settings: WorkerSettings) -> Engine:
    from inference_workers.engines.clock import RealClock
    from inference_workers.engines.simulated import SimulatedEngine

    model = settings.served()
    context_tokens = settings.context_tokens or model.context_tokens
    simulation = settings.simulation(model, _slots(settings), context_tokens)
    return SimulatedEngine(simulation, RealClock(settings.simulated_speed))


def _slots(settings: WorkerSettings) -> int:
    return settings.slots or SLOTS_DEFAULT[settings.engine]


ENGINES: Mapping[str, Callable[[WorkerSettings], Engine]] = {
    "llama_cpp": _llama_cpp,
    "scripted": _scripted,
    "simulated": _simulated,
}
