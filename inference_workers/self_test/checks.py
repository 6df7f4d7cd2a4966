"""The checks, in order. Each says ok, failed or skipped, with what it saw; none needs another's success."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from inference_workers.engine import EngineError
from inference_workers.engines.detokenizer import Detokenizer
from inference_workers.self_test.report import Result
from inference_workers.self_test.subject import Answer, Open, Subject

CHECK_S = 180.0
"""How long one check may take."""
STATS_AGE_S = 2.0
PREFILL_TOKENS = 24_000
"""Of the prompt whose reading is broken off, where the context has room."""
MULTIBYTE = "naïve café, 数据流, Ωμέγα, 🎉👩‍🚀"
SYSTEM = "You answer short and plainly, in the language of the question, and never invent a source. "
UNCACHED = ("scripted", "openai_compatible")
"""Engines that may have no cached prefixes, or not tell."""

Check = Callable[[Subject], Awaitable[Result]]


def ok(name: str, detail: str, **measured: float) -> Result:
    """It is as it should be."""
    return Result(name=name, outcome="ok", detail=detail, measured=measured)


def failed(name: str, detail: str, **measured: float) -> Result:
    """It is not."""
    return Result(name=name, outcome="failed", detail=detail, measured=measured)


def skipped(name: str, detail: str) -> Result:
    """The engine cannot do it, or it cannot be seen from here."""
    return Result(name=name, outcome="skipped", detail=detail)


async def library(subject: Subject) -> Result:
    """What is installed, as the engine found it."""
    engine = subject.engine
    if not isinstance(engine, Open):
        return skipped("library", "this engine has no library whose names it has to check")
    return ok("library", "; ".join(engine.describe()))


async def completion(subject: Subject) -> Result:
    """A short answer, and its count."""
    answer = await subject.ask(subject.long(), max_tokens=16)
    told = f"{answer.output_tokens} tokens, the first after {answer.first_ms:.0f} ms: {answer.text[:40]!r}"
    if not answer.text or answer.input_tokens < 1:
        return failed("completion", f"no text or no count: {told}")
    if sum(chunk.tokens for chunk in answer.chunks) != answer.output_tokens:
        return failed("completion", f"the tokens of the chunks do not add up to the usage: {told}")
    return ok("completion", told, first_ms=answer.first_ms)


async def length(subject: Subject) -> Result:
    """The token limit is kept exactly."""
    answer = await subject.ask(subject.long(), max_tokens=5)
    finish = answer.chunks[-1].finish
    if (finish, answer.output_tokens) != ("length", 5):
        return failed("length limit", f"5 tokens were asked for, {answer.output_tokens} came, ended by {finish}")
    return ok("length limit", "5 tokens asked for, 5 came")


async def stop(subject: Subject) -> Result:
    """Nothing of a stop sequence is in the text, and the generation ends there."""
    whole = (await subject.ask(subject.long(), max_tokens=24)).text
    middle = len(whole) // 2
    sequence = whole[middle : middle + 3]
    if len(sequence) < 3:
        return skipped("stop sequence", f"the answer is too short: {whole!r}")
    answer = await subject.ask(subject.long(), max_tokens=24, stop=(sequence,))
    if sequence in answer.text:
        return failed("stop sequence", f"{sequence!r} is in the text {answer.text!r}")
    if answer.chunks[-1].finish != "stop":
        return skipped(
            "stop sequence", f"the second answer does not come to {sequence!r}: the seed does not repeat here"
        )
    expected = whole[: whole.index(sequence)]
    if answer.text != expected:
        return failed("stop sequence", f"the text is {answer.text!r}, without the sequence {expected!r}")
    return ok("stop sequence", f"ended before {sequence!r}")


async def text(subject: Subject) -> Result:
    """The text is the full decode, characters of several bytes whole."""
    engine = subject.engine
    if isinstance(engine, Open):
        ids = engine.encode(MULTIBYTE)
        detokenizer = Detokenizer(engine.decode)
        steps = "".join([*(detokenizer.add([token]) for token in ids), detokenizer.finish(cut=False)])
        if steps != engine.decode(ids):
            return failed("text", f"token by token {steps!r}, at once {engine.decode(ids)!r}")
    answer = await subject.ask(subject.say(MULTIBYTE), max_tokens=96)
    if isinstance(engine, Open) and answer.ids is not None:
        full = engine.decode(list(answer.ids))
        if answer.text != (full.rstrip("\ufffd") if answer.chunks[-1].finish == "length" else full):
            return failed("text", f"it is {answer.text!r}, the full decode {full!r}")
        return ok("text", f"the full decode of {len(answer.ids)} tokens: {answer.text[:40]!r}")
    if "\ufffd" in answer.text:
        return failed("text", f"a character was split: {answer.text!r}")
    if subject.scripted and answer.text != MULTIBYTE:
        return failed("text", f"it is {answer.text!r}")
    return ok("text", f"no split character: {answer.text[:40]!r} (the engine tells no ids to compare with)")


def _system(subject: Subject) -> str:
    return f"{subject.unique()} {SYSTEM * (8 if subject.info.context_tokens < 2048 else 20)}"


async def prefix(subject: Subject) -> Result:
    """A prompt that was read before is not read again."""
    system = _system(subject)
    answers = [await subject.ask(subject.long(), system=system, max_tokens=2) for _ in range(2)]
    first, second = answers
    told = f"of {second.input_tokens} tokens {first.cached_tokens} were cached at first, {second.cached_tokens} then"
    told += f"; first token after {first.first_ms:.0f} ms, then {second.first_ms:.0f} ms"
    if second.cached_tokens > first.cached_tokens:
        return ok("prefix reuse", told, cached_tokens=second.cached_tokens, first_ms=second.first_ms)
    if second.cached_tokens == 0 and subject.info.engine in UNCACHED:
        return skipped("prefix reuse", "the engine caches nothing, or does not tell")
    return failed("prefix reuse", told)


async def salts(subject: Subject) -> Result:
    """What one account's prompts left in the cache is of no use to another."""
    system = _system(subject)

    async def asked(salt: str) -> Answer:
        return await subject.ask(subject.long(), system=system, max_tokens=2, cache_salt=salt)

    mine, other = subject.unique(), subject.unique()
    await asked(mine)
    again = await asked(mine)
    foreign = await asked(other)
    if again.cached_tokens == 0:
        return skipped("salts", "no cached tokens are told, so nothing can be seen")
    told = f"{foreign.cached_tokens} tokens cached for another account, {again.cached_tokens} for the same"
    return failed("salts", told) if foreign.cached_tokens else ok("salts", told)


async def cancel_prefill(subject: Subject) -> Result:
    """A close while the prompt is read gives up the slot."""
    probe = await subject.ask("word " * 40, max_tokens=1)
    words = int(min(PREFILL_TOKENS, subject.info.context_tokens * 0.75) / (probe.input_tokens / 40))
    prompt = f"{subject.unique()} " + "word " * words
    async with subject.opened(subject.request(prompt, max_tokens=64, cache_salt=subject.unique())) as generation:
        reading = asyncio.ensure_future(generation.__anext__())
        await asyncio.wait({reading}, timeout=0.02)
        early = not reading.done()
        took_ms = await subject.close_ms(generation)
        await asyncio.wait({reading})
        if not reading.cancelled() and isinstance(reading.exception(), EngineError):
            return failed("cancel in prefill", f"{reading.exception()}")
    if not early:
        return skipped("cancel in prefill", "the prompt was read within 20 ms; see cancel in decode")
    return _in_time("cancel in prefill", took_ms, subject)


async def cancel_decode(subject: Subject) -> Result:
    """A close in the middle of the answer gives up the slot."""
    took: list[float] = []
    for _ in range(3):
        async with subject.opened(subject.request(subject.long(), max_tokens=_room(subject))) as generation:
            for _ in range(2):
                if (await generation.__anext__()).finish is not None:
                    return skipped("cancel in decode", "the answer is too short")
            took.append(await subject.close_ms(generation))
    return _in_time("cancel in decode", max(took), subject)


def _in_time(name: str, took_ms: float, subject: Subject) -> Result:
    active = subject.engine.stats().active
    told = f"the slot was free after {took_ms:.1f} ms"
    if active:
        return failed(name, f"{active} slots are still taken after the close", close_ms=took_ms)
    if took_ms > subject.cancel_ms:
        return failed(name, f"{told}; {subject.cancel_ms:.0f} are allowed", close_ms=took_ms)
    return ok(name, told, close_ms=took_ms)


def _room(subject: Subject) -> int:
    return max(16, min(512, subject.info.context_tokens // 4))


async def streams(subject: Subject, count: int) -> list[Result]:
    """Many at once: all end, statistics arrive meanwhile, and the tokens in a second."""
    loop = asyncio.get_running_loop()
    tokens = min(64, _room(subject))
    seen: list[tuple[int, int, float]] = []
    alone = await subject.ask(subject.long(), max_tokens=tokens)
    began = loop.time()
    all_at_once = asyncio.gather(
        *(subject.ask(f"{subject.long()}", max_tokens=tokens, seed=number) for number in range(count))
    )
    while not all_at_once.done():
        stats = subject.engine.stats()
        seen.append((stats.active, stats.kv_tokens_used, stats.age_s))
        await asyncio.wait({all_at_once}, timeout=0.01)
    answers = all_at_once.result()
    seconds = max(loop.time() - began, 1e-6)
    made = sum(answer.output_tokens for answer in answers)
    fast, slow = made / seconds, alone.output_tokens / (alone.total_ms / 1000)
    return [
        _streams(count, answers, subject),
        _statistics(seen, subject),
        ok(
            "throughput",
            f"{fast:.0f} tokens/s with {count} streams, {slow:.0f} with one",
            tokens_per_s=fast,
            tokens_per_s_alone=slow,
            streams=count,
        ),
    ]


def _streams(count: int, answers: list[Answer], subject: Subject) -> Result:
    bad = [answer for answer in answers if answer.chunks[-1].finish is None or not answer.text]
    slowest = max(answer.first_ms for answer in answers)
    if bad or subject.engine.stats().active:
        return failed(
            "streams at once", f"{len(bad)} of {count} did not end, {subject.engine.stats().active} slots taken"
        )
    return ok("streams at once", f"{count} ended; the last first token came after {slowest:.0f} ms", first_ms=slowest)


def _statistics(seen: list[tuple[int, int, float]], subject: Subject) -> Result:
    active, used, age = (max(values) for values in zip(*seen, strict=True))
    told = f"at most {active} of {subject.info.slots} slots and {used} KV tokens taken, at most {age:.2f} s old"
    if not 1 <= active <= subject.info.slots:
        return failed("statistics", told)
    if age > STATS_AGE_S:
        return failed("statistics", f"{told}: they have stopped arriving")
    step_ms = subject.engine.stats().step_ms
    if step_ms is None and isinstance(subject.engine, Open):
        return skipped("statistics", f"the library tells nothing of its iterations; counted here: {told}")
    return ok("statistics", told, age_s=age)


CHECKS: Mapping[str, Check] = {
    "library": library,
    "completion": completion,
    "length limit": length,
    "stop sequence": stop,
    "text": text,
    "prefix reuse": prefix,
    "salts": salts,
    "cancel in prefill": cancel_prefill,
    "cancel in decode": cancel_decode,
}
"""By the names that they are told by."""


async def guarded(name: str, work: Awaitable[Result]) -> Result:
    """A check that fails instead of raising what engines raise, or going on for ever."""
    try:
        async with asyncio.timeout(CHECK_S):
            return await work
    except TimeoutError:
        return failed(name, f"not done after {CHECK_S:.0f} s")
    except EngineError as error:
        return failed(name, f"{type(error).__name__}: {error}")
    except StopAsyncIteration:
        return failed(name, "the generation ended without an end")
