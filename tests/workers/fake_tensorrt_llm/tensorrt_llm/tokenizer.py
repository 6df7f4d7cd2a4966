"""A byte-level tokenizer: a token is up to three bytes, so characters are split over tokens."""

from tensorrt_llm import faults

BYTES = 3
SPECIAL = {0: "<|im_end|>", 1: "<|im_start|>", 2: "<pad>"}
_FIRST = 1000


class ByteTokenizer:
    """Has what the engine calls of a Hugging Face tokenizer."""

    eos_token_id = 0
    pad_token_id = 2
    chat_template = "the one below"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data = text.encode()
        ids = [_id(data[start : start + BYTES]) for start in range(0, len(data), BYTES)]
        return [1, *ids] if add_special_tokens else ids

    def decode(
        self, token_ids: list[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = True
    ) -> str:
        data = b""
        for token in token_ids:
            if token in SPECIAL:
                data += b"" if skip_special_tokens else SPECIAL[token].encode()
            else:
                data += _bytes(token)
        text = data.decode(errors="replace")
        if faults.current.strip_leading_space:
            text = text.removeprefix(" ")
        return text.replace(" .", ".").replace(" ,", ",") if clean_up_tokenization_spaces else text

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = True,
    ) -> object:
        ids: list[int] = []
        for number, message in enumerate(conversation):
            if message["role"] == "system" and number > 0:
                raise ValueError("the system message must be the first")
            ids += [1, *self.encode(f"{message['role']}\n{message['content']}", False), 0]
        if add_generation_prompt:
            ids += [1, *self.encode("assistant\n", False)]
        return {"input_ids": ids} if return_dict else ids


class TransformersTokenizer:
    """The wrapper that `LLM.tokenizer` is."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *args: object, **kwargs: object) -> list[int]:
        return self.tokenizer.encode(text, *args, **kwargs)

    def decode(self, token_ids: list[int], *args: object, **kwargs: object) -> str:
        return self.tokenizer.decode(token_ids, *args, **kwargs)


def _id(data: bytes) -> int:
    return _FIRST + (len(data) << 24 | int.from_bytes(data, "big"))


def _bytes(token: int) -> bytes:
    value = token - _FIRST
    return (value & 0xFFFFFF).to_bytes(BYTES, "big")[BYTES - (value >> 24) :]
