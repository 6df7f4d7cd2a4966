"""The engine on a server with the OpenAI API that others wrote: llama.cpp's, over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from pydantic import SecretStr
from workers.fake_openai import KEY, engine_on, provider

from inference_workers.engine import ContextTooLong, Engine, EngineUnavailable, GenerationRequest
from inference_workers.engines.llama_server import find_model
from schemas.values import PromptMessage

pytestmark = pytest.mark.model

CONTEXT = 512
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(find_model())
    params.n_parallel = 2
    params.n_ctx = 2 * CONTEXT
    params.n_batch = params.n_ubatch = 16
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [KEY]
    params.verbosity = 0
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    made = engine_on(provider(url), context_tokens=CONTEXT)
    await made.start()
    yield made
    await made.shutdown(0.0)


def ask(text: str = "Say something about the sea.", **members: object) -> GenerationRequest:
    messages = (PromptMessage(role="system", content="You help."), PromptMessage(role="user", content=text))
    return GenerationRequest(**({"id": "g", "messages": messages, "max_tokens": 12, "seed": 7} | members))  # type: ignore[arg-type]


async def test_text_end_and_usage_come_as_the_server_counts_them(engine: Engine) -> None:
    for _ in range(3):  # it closes its connections as it likes: no request may fail of that
        generation = engine.generate(ask(temperature=0.8))
        async with asyncio.timeout(WITHIN_S):
            chunks = [chunk async for chunk in generation]
        assert "".join(chunk.text for chunk in chunks)
        assert chunks[-1].finish == "length"
        assert generation.usage.counted
        assert generation.usage.output_tokens == sum(chunk.tokens for chunk in chunks) == 12
    assert generation.usage.cached_input_tokens > 0
    assert engine.stats().age_s == 0.0


async def test_a_prompt_that_is_too_long_is_told_as_such(engine: Engine) -> None:
    with pytest.raises(ContextTooLong, match="context size"):
        await anext(engine.generate(ask("word " * 2 * CONTEXT)))


async def test_a_closed_generation_makes_room(engine: Engine) -> None:
    generations = [engine.generate(ask(max_tokens=400)) for _ in range(2)]
    for generation in generations:
        async with asyncio.timeout(WITHIN_S):
            await anext(generation)
        await generation.aclose()
    async with asyncio.timeout(WITHIN_S):
        assert [chunk async for chunk in engine.generate(ask(max_tokens=3))][-1].finish == "length"


async def test_a_wrong_key_is_told_at_the_start(url: str) -> None:
    wrong = engine_on(msgspec.structs.replace(provider(url), key=SecretStr("sk-wrong-key")))
    with pytest.raises(EngineUnavailable, match="HTTP 401"):
        await wrong.start()
