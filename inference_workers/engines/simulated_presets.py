"""Servers that the simulated engine can be.

`small` is a server that suits a laptop's tests. `llama-…` are Llama 3.1 in FP8 on H100 SXM 80 GB, and reproduce the
throughput that NVIDIA has published for TensorRT-LLM 0.17 (docs/source/performance/perf-overview.md of the release,
"Throughput Measurements": column "H100 80GB HBM3", precision FP8). There, requests of one length (ISL, OSL) are all
sent at once, by `trtllm-bench throughput` with the scheduling policy "guaranteed no evict"; the figure is output
tokens a second over the whole run. `measured` runs the model in the same way, with the same numbers of requests.

How these were made: `token_s` is the size of the weights (8.0 and 70.6 GB at a byte each, divided among the GPUs)
over the memory bandwidth (3.35 TB/s); the other rates, and the KV tokens within what the memory leaves beside the
weights (64 KiB and 160 KiB a token in FP8), were fitted to the nine figures. `error` is the largest deviation from
any of them. They describe throughput under full load. Latency under low load was not fitted, and `start_s` is an
assumption: about what loading and warming up take from a local disk.

`opt-13b-a100` is the server of vLLM's paper (Kwon et al., SOSP 2023): OPT-13B in 16 bits on an A100 with 40 GB. From
its table 1: 26 GB of weights, 12 GB for the KV cache, 15.7 thousand tokens (800 KiB each: 2 x 40 layers x 5,120 x 2
bytes). `token_s` and `kv_token_s` are these over the memory bandwidth (1,555 GB/s); `prefill_tokens_per_s` is half of
the 312 TFLOP/s over 26 GFLOP a token; a prompt is read in one step. The paper gives no throughput that could be fitted,
but how many requests were in the batch, on average, at 2 a second of ShareGPT's lengths (figure 13a, `batched`): 7.00
with the longest length reserved, which follows from the memory alone, and 30.42 with pages, to which the time that a
step takes beside reading memory was fitted (`step_overhead_s` is an assumption, `sequence_s` the rest).
"""

from typing import Literal

import msgspec

from inference_workers.engines.sequences import Sequence
from inference_workers.engines.simulation import Batch, Reserve, SimulatedSettings

PresetName = Literal["small", "llama-3-8b-h100", "llama-3-70b-4xh100", "llama-3-70b-8xh100", "opt-13b-a100"]

SLOTS = 2048
"""TensorRT-LLM's default for the largest batch, with which the figures were reproduced."""

Lengths = tuple[int, int]
"""Tokens of the prompt and of the answer."""

REQUESTS: dict[Lengths, int] = {
    (128, 128): 30_000,
    (128, 2048): 3_000,
    (128, 4096): 1_500,
    (500, 2000): 3_000,
    (1000, 1000): 3_000,
    (2048, 128): 3_000,
    (2048, 2048): 1_500,
    (5000, 500): 1_500,
    (20_000, 2_000): 1_000,
}
"""How many requests were sent for each figure."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and what has been published about it."""

    server: SimulatedSettings
    published: dict[Lengths, float] = {}
    """Output tokens a second."""
    batched: dict[Reserve, float] = {}
    """Requests in the batch, on average, by what is reserved."""
    error: float = 0.0
    """The largest deviation of the model, as a share of the published figure."""


def measured(server: SimulatedSettings, lengths: Lengths, requests: int) -> float:
    """Output tokens a second of the model when so many equal requests are all there at the beginning."""
    prompt, output = lengths
    ways = {"slots": SLOTS, "context_tokens": 32_768, "reserve": "output", "prefix_cache": False, "jitter": 0.0}
    batch = Batch(msgspec.structs.replace(server, **ways))
    for number in range(requests):
        batch.add(Sequence(id=str(number), prompt_tokens=prompt, length=output, limit=output))
    elapsed_s = 0.0
    while (step := batch.step()) is not None:
        elapsed_s += step.duration_s
        for sequence in step.produced:
            if sequence.given == output:
                batch.remove(sequence.id)
    return requests * output / elapsed_s


PRESETS: dict[PresetName, Preset] = {
    "small": Preset(server=SimulatedSettings()),
    "llama-3-8b-h100": Preset(
        server=SimulatedSettings(
            kv_tokens=962_048,
            block_tokens=64,
            prefill_tokens_per_s=80_000.0,
            prefill_chunk_tokens=8192,
            step_overhead_s=0.0015,
            token_s=0.0024,
            sequence_s=17.4e-6,
            kv_token_s=18.0e-9,
            attention_s=0.808e-9,
            start_s=90.0,
        ),
        published={
            (128, 128): 28_836.77,
            (128, 2048): 21_109.38,
            (128, 4096): 13_593.65,
            (500, 2000): 16_500.69,
            (1000, 1000): 15_244.78,
            (2048, 128): 3_556.73,
            (2048, 2048): 9_488.42,
            (5000, 500): 3_559.36,
            (20_000, 2_000): 1_401.31,
        },
        error=0.05,
    ),
    "llama-3-70b-4xh100": Preset(
        server=SimulatedSettings(
            kv_tokens=1_200_000,
            block_tokens=64,
            prefill_tokens_per_s=26_250.0,
            prefill_chunk_tokens=8192,
            step_overhead_s=0.0053,
            token_s=0.0053,
            sequence_s=47.6e-6,
            kv_token_s=16.7e-9,
            attention_s=1.32e-9,
            start_s=240.0,
        ),
        published={
            (128, 128): 11_127.53,
            (128, 2048): 11_511.93,
            (128, 4096): 7_439.41,
            (500, 2000): 9_836.7,
            (1000, 1000): 7_430.99,
            (2048, 128): 1_302.6,
            (2048, 2048): 5_480.03,
            (5000, 500): 1_602.78,
            (20_000, 2_000): 920.19,
        },
        error=0.06,
    ),
    "llama-3-70b-8xh100": Preset(
        server=SimulatedSettings(
            kv_tokens=2_860_032,
            block_tokens=64,
            prefill_tokens_per_s=36_100.0,
            prefill_chunk_tokens=8192,
            step_overhead_s=0.0057,
            token_s=0.0027,
            sequence_s=37.3e-6,
            kv_token_s=8.62e-9,
            attention_s=0.997e-9,
            start_s=240.0,
        ),
        published={
            (128, 128): 14_730.69,
            (128, 2048): 17_061.82,
            (128, 4096): 14_171.43,
            (500, 2000): 14_679.33,
            (1000, 1000): 11_451.16,
            (2048, 128): 1_923.41,
            (2048, 2048): 8_801.95,
            (5000, 500): 2_457.42,
            (20_000, 2_000): 1_512.6,
        },
        error=0.05,
    ),
    "opt-13b-a100": Preset(
        server=SimulatedSettings(
            context_tokens=2_048,
            kv_tokens=15_700,
            block_tokens=16,
            prefill_tokens_per_s=6_000.0,
            prefill_chunk_tokens=2_560,
            step_overhead_s=0.005,
            token_s=0.0167,
            sequence_s=405e-6,
            kv_token_s=527e-9,
            start_s=90.0,
        ),
        batched={"context": 7.0, "nothing": 30.42},
        error=0.02,
    ),
}
"""The presets by name."""
