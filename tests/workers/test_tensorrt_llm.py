"""The engine `tensorrt_llm` meets what the library gets wrong, and what it lacks."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tensorrt_llm
from pydantic import ValidationError
from tensorrt_llm.llm import LATEST
from tensorrt_llm.llmapi import CapacitySchedulerPolicy, WaitingQueuePolicy
from tensorrt_llm.tokenizer import ByteTokenizer
from workers.tensorrt import FOLDER, faulty, settings

from inference_workers.engine import (
    Chunk,
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineUnavailable,
    GenerationRequest,
    Interrupted,
    InvalidRequest,
)
from inference_workers.engines import tensorrt_llm as engine_module
from inference_workers.engines import tensorrt_llm_stats
from inference_workers.engines.tensorrt_llm import Generating, TensorRtLlmEngine
from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings
from inference_workers.engines.tensorrt_llm_stats import Blocks, Told
from schemas.values import PromptMessage

CONTEXT = 512
WITHIN_S = 20
SENTENCE = "naïve 数据 流 über 🎉🎉 the end. Of it , all"

numbers = iter(range(1, 1_000_000))


def ask(content: str = "go on", *, system: str = "", max_tokens: int = 12, **members: Any) -> GenerationRequest:
    messages = (PromptMessage(role="user", content=content),)
    if system:
        messages = (PromptMessage(role="system", content=system), *messages)
    return GenerationRequest(id=f"g{next(numbers)}", messages=messages, max_tokens=max_tokens, **members)


@asynccontextmanager
async def running(slots: int = 2, **members: object) -> Any:
    engine = TensorRtLlmEngine("fake", settings(**members), slots, CONTEXT)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown(0.0)


async def read(generation: Generating) -> list[Chunk]:
    async with asyncio.timeout(WITHIN_S):
        return [chunk async for chunk in generation]


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - conditions of many kinds
            await asyncio.sleep(0.005)


# ── what is installed ──


def test_a_machine_without_the_library_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(FOLDER)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EngineUnavailable, match=r"cannot be imported .*3\.12.*docs/gpu\.md"):
        asyncio.run(TensorRtLlmEngine("fake", settings(), 2, CONTEXT).start())


async def test_a_name_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tensorrt_llm.LLM, "get_stats_async")
    monkeypatch.delattr(tensorrt_llm.llmapi.RequestOutput, "abort")
    with pytest.raises(EngineUnavailable, match=r"lacks .*LLM\.get_stats_async, llmapi\.RequestOutput\.abort"):
        await TensorRtLlmEngine("fake", settings(), 2, CONTEXT).start()


async def test_an_argument_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(max_tokens: int, temperature: float, top_p: float, top_k: int, stop: list[str]) -> None: ...

    monkeypatch.setattr(tensorrt_llm, "SamplingParams", older)
    with pytest.raises(
        EngineUnavailable, match=r"SamplingParams\(seed\).*SamplingParams\(include_stop_str_in_output\)"
    ):
        await TensorRtLlmEngine("fake", settings(), 2, CONTEXT).start()


async def test_a_version_without_salts_shares_no_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_llm, "LLM", tensorrt_llm.OlderLLM)
    with pytest.raises(EngineUnavailable, match=r"cache_salt.*TURNLOG_TENSORRT_KV_BLOCK_REUSE=false"):
        await TensorRtLlmEngine("fake", settings(), 2, CONTEXT).start()
    async with running(kv_block_reuse=False) as engine:
        request = ask(f"echo:{SENTENCE}", system="be brief", max_tokens=100, cache_salt="a", priority=0.9)
        assert text(await read(engine.generate(request))) == SENTENCE
        assert any("not in this version: cache_salt" in line for line in engine.describe())


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"model": "nowhere"}, "cannot load 'nowhere'"),
        ({"tensor_parallel_size": 16}, "Only 8 GPUs are available"),
        ({"extra": {"flux": 1}}, "LLM has no argument flux"),
        ({"extra": {"skip_tokenizer_init": True}}, "TURNLOG_TENSORRT_TOKENIZER"),
        ({"extra": {"max_batch_size": "many"}}, "max_batch_size"),
    ],
)
async def test_what_cannot_be_loaded_is_one_sentence(members: dict[str, object], sentence: str) -> None:
    with pytest.raises(EngineUnavailable, match=sentence):
        await TensorRtLlmEngine("fake", settings(**members), 2, CONTEXT).start()


@pytest.mark.parametrize("allowed", [False, True])
async def test_it_reports_to_its_maker_only_if_it_may(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_NO_USAGE_STATS", "0")
    async with running(usage_reports=allowed):
        assert os.environ["TRTLLM_NO_USAGE_STATS"] == ("0" if allowed else "1")


async def test_the_settings_reach_the_library() -> None:
    async with running(
        slots=8,
        max_batch_size=4,
        max_seq_len=256,
        max_num_tokens=128,
        chunked_prefill=True,
        capacity_policy="max_utilization",
        stream_interval=2,
        tensor_parallel_size=2,
        kv_free_gpu_memory_fraction=0.5,
        kv_tokens_per_block=16,
        kv_host_cache_bytes=1 << 30,
        kv_event_buffer=64,
        kv_cache_dtype="fp8",
        extra={"cuda_graph_config": None},
    ) as engine:
        args = LATEST[-1].args
        assert (args.max_batch_size, args.max_seq_len, args.max_num_tokens) == (4, 256, 128)
        assert (args.enable_chunked_prefill, args.enable_iter_perf_stats) == (True, True)
        assert (args.stream_interval, args.tensor_parallel_size) == (2, 2)
        assert args.scheduler_config.capacity_scheduler_policy is CapacitySchedulerPolicy.MAX_UTILIZATION
        cache = args.kv_cache_config
        assert (cache.free_gpu_memory_fraction, cache.tokens_per_block, cache.dtype) == (0.5, 16, "fp8")
        assert (cache.host_cache_size, cache.event_buffer_max_size, cache.enable_block_reuse) == (1 << 30, 64, True)
        assert (engine.info().slots, engine.info().context_tokens) == (4, 256)
        assert engine.info().kv_tokens > 0


# ── what is asked ──


async def test_everything_that_is_sampled_by_is_said() -> None:
    async with running() as engine:
        await read(engine.generate(ask(max_tokens=3, temperature=0.7, top_p=0.5, top_k=9, seed=11, stop=("x", "yz"))))
        params = LATEST[-1].submitted[-1]["sampling_params"]
        assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (3, 0.7, 0.5, 9)
        assert (params.seed, params.stop, params.include_stop_str_in_output) == (11, ["x", "yz"], True)
        await read(engine.generate(ask(max_tokens=3, temperature=0.0, top_k=9)))
        assert LATEST[-1].submitted[-1]["sampling_params"].top_k == 1
        assert LATEST[-1].submitted[-1]["sampling_params"].seed is not None


async def test_salt_priority_and_the_retention_of_the_system_prompt_are_passed_on() -> None:
    async with running() as engine:
        await read(engine.generate(ask(system="be brief", cache_salt="account", priority=0.9)))
        given = LATEST[-1].submitted[-1]
        assert (given["cache_salt"], given["priority"]) == ("account", 0.9)
        (span,) = given["kv_cache_retention_config"].token_range_retention_configs
        system = engine.encode("system\nbe brief")
        assert (span.token_start, span.token_end, span.priority) == (0, len(system) + 2, 90)
        await read(engine.generate(ask()))
        assert LATEST[-1].submitted[-1]["kv_cache_retention_config"] is None


async def ended_in_order(engine: TensorRtLlmEngine) -> list[str]:
    """Two wait inside of the library, which runs one at a time, until a third is closed: the two as they end."""
    order: list[str] = []

    async def told(name: str, priority: float) -> None:
        await read(engine.generate(ask(max_tokens=3, priority=priority)))
        order.append(name)

    given = LATEST[-1].submitted
    running = engine.generate(ask(max_tokens=400))
    await anext(running)
    before = len(given)
    waiting = asyncio.gather(told("free", 0.25), told("paid", 0.75))
    await until(lambda: len(given) == before + 2)
    await running.aclose()
    await waiting
    return order


ONE_AT_A_TIME = {"max_batch_size": 1}


async def test_what_waits_inside_of_the_library_is_served_by_priority() -> None:
    async with running(slots=3, extra=ONE_AT_A_TIME) as engine:
        assert await ended_in_order(engine) == ["paid", "free"]
        assert "what waits inside is served by priority" in engine.describe()


async def test_a_capacity_policy_and_the_order_by_priority_go_together() -> None:
    async with running(capacity_policy="max_utilization"):
        config = LATEST[-1].args.scheduler_config
        assert config.capacity_scheduler_policy is CapacitySchedulerPolicy.MAX_UTILIZATION
        assert config.waiting_queue_policy is WaitingQueuePolicy.PRIORITY


async def test_a_version_that_knows_no_order_by_priority_is_not_asked_for_it_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorrt_llm.llmapi, "SchedulerConfig", tensorrt_llm.llmapi.OlderSchedulerConfig)
    async with running(slots=3, extra=ONE_AT_A_TIME) as engine:
        assert await ended_in_order(engine) == ["free", "paid"]
        assert any("in order of arrival: SchedulerConfig takes no" in line for line in engine.describe())
    monkeypatch.setattr(tensorrt_llm, "LLM", tensorrt_llm.OlderLLM)
    async with running(kv_block_reuse=False) as engine:
        assert any("in order of arrival: generate_async takes no" in line for line in engine.describe())


async def test_an_order_of_the_operators_own_is_left_alone() -> None:
    own = {"waiting_queue_policy": "fcfs"}
    async with running(slots=3, extra={**ONE_AT_A_TIME, "scheduler_config": own}) as engine:
        assert await ended_in_order(engine) == ["free", "paid"]
        assert any("TURNLOG_TENSORRT_EXTRA" in line for line in engine.describe())


async def test_the_output_is_no_longer_than_the_context_allows() -> None:
    async with running() as engine:
        generation = engine.generate(ask("word " * 200, max_tokens=5000))
        assert (await read(generation))[-1].finish == "length"
        assert generation.usage.input_tokens + generation.usage.output_tokens == CONTEXT


async def test_without_chunked_prefill_a_prompt_has_to_fit_a_step() -> None:
    async with running(chunked_prefill=False, max_num_tokens=64) as engine:
        with pytest.raises(ContextTooLong, match="TURNLOG_TENSORRT_MAX_NUM_TOKENS"):
            await read(engine.generate(ask("word " * 100)))
        assert (await read(engine.generate(ask())))[-1].finish == "length"


async def test_messages_that_the_template_does_not_take_are_refused() -> None:
    async with running() as engine:
        messages = (PromptMessage(role="user", content="a"), PromptMessage(role="system", content="b"))
        with pytest.raises(InvalidRequest, match=r"messages: .*must be the first"):
            await read(engine.generate(GenerationRequest(id="g", messages=messages, max_tokens=3)))
        assert engine.stats().active == 0


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), ZeroDivisionError("by zero"), AttributeError("none"), IndexError()]
)
async def test_a_template_that_breaks_on_messages_refuses_them_and_harms_nobody(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ByteTokenizer.apply_chat_template

    def breaking(self: ByteTokenizer, conversation: list[dict[str, str]], **more: Any) -> object:
        if conversation[-1]["content"] == "break":
            raise error
        return plain(self, conversation, **more)

    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", breaking)
    async with running() as engine:
        with pytest.raises(InvalidRequest, match="template"):
            await read(engine.generate(ask("break")))
        assert text(await read(engine.generate(ask("echo:as ever")))) == "as ever"


@pytest.mark.parametrize("shape", [lambda ids: {"input_ids": ids}, lambda ids: [ids], lambda ids: {"input_ids": [ids]}])
async def test_the_tokenizer_may_give_the_prompt_in_several_shapes(
    shape: Callable[[list[int]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ByteTokenizer.apply_chat_template
    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", lambda *given, **more: shape(plain(*given, **more)))
    async with running() as engine:
        assert text(await read(engine.generate(ask("echo:as ever", system="be brief")))) == "as ever"
        assert LATEST[-1].submitted[-1]["kv_cache_retention_config"] is not None


async def test_a_template_that_wants_a_user_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ByteTokenizer.apply_chat_template

    def wanting(self: ByteTokenizer, conversation: list[dict[str, str]], **more: Any) -> object:
        if all(message["role"] != "user" for message in conversation):
            raise ValueError("a user message is needed")
        return plain(self, conversation, **more)

    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", wanting)
    async with running() as engine:
        assert text(await read(engine.generate(ask("echo:as ever", system="be brief")))) == "as ever"
        assert LATEST[-1].submitted[-1]["kv_cache_retention_config"] is None


async def test_a_prompt_that_the_library_finds_too_long_is_refused_as_such() -> None:
    async with running(extra={"max_seq_len": 32}) as engine:
        with pytest.raises(ContextTooLong, match="exceeds max_seq_len"):
            await read(engine.generate(ask("word " * 40)))


def test_further_arguments_are_a_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_TENSORRT_EXTRA", '{"max_beam_width": 1}')
    assert TensorRtLlmSettings(tensorrt_model="m").tensorrt_extra == {"max_beam_width": 1}
    for wrong in ("[1]", "{", "text"):
        monkeypatch.setenv("TURNLOG_TENSORRT_EXTRA", wrong)
        with pytest.raises(ValidationError, match="TURNLOG_TENSORRT_EXTRA"):
            TensorRtLlmSettings(tensorrt_model="m")


def test_events_of_blocks_need_their_reuse() -> None:
    with pytest.raises(ValidationError, match="KV_EVENT_BUFFER needs"):
        settings(kv_event_buffer=10, kv_block_reuse=False)


# ── text ──


@pytest.mark.parametrize("interval", [1, 8])
@pytest.mark.parametrize(
    "fault", ["repeated_diffs", "skipped_diffs", "coalesced", "lost_spaces", "strip_leading_space", "no_detokenize"]
)
async def test_the_text_is_whole_whatever_the_librarys_is(
    fault: str, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(monkeypatch, **{fault: True, "no_detokenize": True})
    async with running(stream_interval=interval) as engine:
        generation = engine.generate(ask(f"echo:{SENTENCE}", max_tokens=100))
        chunks = await read(generation)
        assert text(chunks) == SENTENCE == engine.decode(generation.token_ids)
        assert chunks[-1].finish == "stop"
        assert sum(chunk.tokens for chunk in chunks) == generation.usage.output_tokens == len(generation.token_ids)


async def test_a_character_that_the_limit_cuts_is_left_out() -> None:
    async with running() as engine:
        whole = engine.encode("ab🎉")
        chunks = await read(engine.generate(ask("echo:ab🎉", max_tokens=len(whole) - 1)))
        assert (text(chunks), chunks[-1].finish) == ("ab", "length")


@pytest.mark.parametrize("stop", ["数据", "据 流", "ber", "f it"])
async def test_a_stop_sequence_is_met_however_its_ids_are_cut(stop: str) -> None:
    async with running() as engine:
        chunks = await read(engine.generate(ask(f"echo:{SENTENCE}", max_tokens=100, stop=(stop,))))
        assert text(chunks) == SENTENCE[: SENTENCE.index(stop)]
        assert chunks[-1].finish == "stop"
        await until(lambda: engine.stats().active == 0)


async def test_a_stop_sequence_that_the_library_meets_frees_the_slot_at_once() -> None:
    async with running() as engine:
        chunks = await read(engine.generate(ask("echo:abcdefghi", stop=("def",))))
        assert (text(chunks), chunks[-1].finish, engine.stats().active) == ("abc", "stop", 0)


# ── prefixes ──


async def test_a_prefix_is_read_once_in_each_account() -> None:
    async with running() as engine:
        system = "s" * 300

        async def cached(salt: str) -> int:
            generation = engine.generate(ask(system=system, cache_salt=salt))
            await read(generation)
            return int(generation.usage.cached_input_tokens)

        assert await cached("one") == 0
        assert await cached("one") >= 64
        assert await cached("other") == 0
        assert engine.stats().cached_tokens >= 64


async def test_a_version_that_does_not_count_cached_tokens_counts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, no_cached_tokens=True)
    async with running() as engine:
        for _ in range(2):
            generation = engine.generate(ask(system="s" * 300, cache_salt="one"))
            await read(generation)
        assert generation.usage.cached_input_tokens == 0


# ── ends ──


async def test_an_abort_that_never_arrives_keeps_its_slot_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        stuck = engine.generate(ask(max_tokens=400))
        await anext(stuck)
        faulty(monkeypatch, hanging_abort=True)
        closing = asyncio.ensure_future(stuck.aclose())
        for _ in range(3):
            assert (await read(engine.generate(ask())))[-1].finish == "length"
        assert not closing.done()
        assert engine.stats().active == 1
        await engine.shutdown(0.0)
        await asyncio.wait_for(closing, WITHIN_S)


async def test_a_close_while_the_prompt_is_read_frees_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        generation = engine.generate(ask("word " * 250, max_tokens=100))
        before = len(LATEST[-1].submitted)
        await until(lambda: len(LATEST[-1].submitted) > before)
        await asyncio.wait_for(generation.aclose(), WITHIN_S)
        assert (engine.stats().active, generation.usage.output_tokens) == (0, 0)


async def test_an_error_of_the_executor_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        faulty(monkeypatch, background_error_at=5)
        generations = [engine.generate(ask(max_tokens=50)) for _ in range(4)]
        ends = await asyncio.gather(*(read(generation) for generation in generations), return_exceptions=True)
        assert all(isinstance(end, EngineDead) for end in ends)
        assert "illegal memory access" in str(ends[0])
        for generation in generations:
            await asyncio.wait_for(generation.aclose(), WITHIN_S)
        with pytest.raises(EngineDead, match="illegal memory access"):
            await read(engine.generate(ask()))


async def test_an_abort_that_the_executor_cannot_take_any_more_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        generation = engine.generate(ask(max_tokens=400))
        await anext(generation)
        monkeypatch.setattr(LATEST[-1]._executor, "abort_request", None)
        await asyncio.wait_for(generation.aclose(), WITHIN_S)
        with pytest.raises(EngineDead, match="not callable"):
            await read(engine.generate(ask()))


async def test_an_error_of_a_request_ends_that_one() -> None:
    async with running() as engine:
        with pytest.raises(EngineError, match="refused by the executor") as caught:
            await read(engine.generate(ask("!refuse")))
        assert not isinstance(caught.value, EngineDead)
        with pytest.raises(Interrupted, match="timeout"):
            await read(engine.generate(ask("!timeout")))
        assert (await read(engine.generate(ask())))[-1].finish == "length"
        assert engine.stats().active == 0


async def test_a_library_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SHUTDOWN_S", 0.05)
    async with asyncio.timeout(WITHIN_S), running():
        faulty(monkeypatch, hanging_shutdown=True)


# ── statistics ──


async def test_statistics_arrive_and_go_on_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_llm_stats, "STATS_IDLE_S", 0.01)
    async with running() as engine:
        stats = LATEST[-1]._executor.stats
        for _ in range(2):
            await until(lambda: stats._done)
            generation = engine.generate(ask("word " * 200, max_tokens=200))
            await anext(generation)
            await until(lambda: engine.stats().kv_tokens_used > 200)
            assert engine.stats().step_ms == 2.0
            assert engine.stats().age_s < 1
            await generation.aclose()
            assert (engine.stats().kv_tokens_used, engine.stats().age_s) == (0, 0.0)


async def test_statistics_that_stop_while_something_runs_grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        generation = engine.generate(ask(max_tokens=400))
        await anext(generation)
        faulty(monkeypatch, no_stats=True)
        await until(lambda: engine.stats().age_s > 0.2)


@pytest.mark.parametrize("fault", ["no_stats", "stats_not_implemented", "bare_stats"])
async def test_a_version_that_tells_nothing_is_not_waited_for(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_llm_stats, "STATS_FIRST_S", 0.1)
    faulty(monkeypatch, **{fault: True})
    async with running(kv_max_tokens=4096) as engine:
        assert engine.info().kv_tokens == 4096
        generation = engine.generate(ask("word " * 100, max_tokens=100))
        await anext(generation)
        used = engine.stats().kv_tokens_used
        assert used >= generation.usage.input_tokens
        if fault != "bare_stats":
            assert engine.stats().age_s == 0.0


async def test_events_of_blocks_are_counted() -> None:
    async with running(kv_event_buffer=1000) as engine:
        await read(engine.generate(ask("word " * 200)))
        await until(lambda: any("stored=" in line and "stored=0" not in line for line in engine.describe()))


def test_members_that_are_missing_or_null_change_nothing() -> None:
    told = Told().and_then(
        {
            "iterLatencyMS": 4.5,
            "kvCacheStats": {"maxNumBlocks": 10, "usedNumBlocks": 3, "tokensPerBlock": 32},
            "inflightBatchingStats": {"numPausedRequests": 2},
        },
        1.0,
    )
    assert (told.kv_tokens, told.kv_tokens_used, told.step_ms, told.preemptions) == (320, 96, 4.5, 2)
    for said in ({}, {"kvCacheStats": None, "inflightBatchingStats": None, "iterLatencyMS": None}):
        later = told.and_then(said, 2.0)
        assert (later.kv_tokens, later.kv_tokens_used, later.step_ms, later.preemptions) == (320, 96, 4.5, 2)
        assert later.at_s == 2.0


def test_each_pause_counts_once() -> None:
    told = Told()
    for paused in (1, 1, 0, 2, 1):
        told = told.and_then({"inflightBatchingStats": {"numPausedRequests": paused}}, 1.0)
    assert told.preemptions == 3


def test_blocks_are_counted_by_the_kind_of_event() -> None:
    blocks = Blocks()
    for data in (
        {"type": "created", "num_blocks_per_cache_level": [10]},
        {"type": "stored", "blocks": [{}, {}, {}]},
        {"type": "removed", "block_hashes": [1, 2]},
        {},
    ):
        blocks = blocks.and_then({"event_id": 1, "data": data})
    assert blocks == Blocks(stored=3, removed=2)
