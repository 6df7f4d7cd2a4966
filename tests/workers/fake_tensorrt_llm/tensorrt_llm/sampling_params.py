"""`SamplingParams`, with the library's own defaults."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    _stop_ids: list[list[int]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        if self.max_tokens < 1:
            raise ValueError(f"require max_tokens >= 1, got max_tokens={self.max_tokens}")

    def _setup(self, tokenizer: Any) -> None:
        self.end_id = tokenizer.tokenizer.eos_token_id
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        self._stop_ids = [tokenizer.encode(stop, add_special_tokens=False) for stop in stops]
