"""Requests with their times, for a model in virtual time: from a trace, or by chance with a seed."""

import csv
import json
import random
from datetime import datetime
from pathlib import Path

import msgspec

PREFIX_BLOCK_TOKENS = 512
"""Tokens that a number in a trace's `hash_ids` stands for."""


class Arrival(msgspec.Struct, frozen=True):
    """A request: when, how long its prompt and its answer are, and the blocks that its prompt begins with."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()


def azure(path: Path) -> list[Arrival]:
    """The Azure LLM inference trace 2023: CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]  # to the microsecond
    arrivals = [
        Arrival(at_s - min(times), max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"])))
        for at_s, row in zip(times, rows, strict=True)
    ]
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def mooncake(path: Path) -> list[Arrival]:
    """A Mooncake trace: JSON lines with timestamp (ms), input_length, output_length, hash_ids."""
    with path.open(encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return [
        Arrival(
            row["timestamp"] / 1000, max(1, row["input_length"]), max(1, row["output_length"]), tuple(row["hash_ids"])
        )
        for row in rows
    ]


def chats(count: int, seed: int) -> list[Arrival]:
    """One-off requests, one a second on average, with lengths about like those of the Azure trace: log-normal, prompts
    of 1,000 and answers of 130 tokens in the median."""
    chance = random.Random(seed)
    at_s = 0.0
    arrivals = []
    for _ in range(count):
        at_s += chance.expovariate(1.0)
        prompt = min(14_000, 1 + int(chance.lognormvariate(6.6, 1.0)))
        arrivals.append(Arrival(at_s, prompt, min(1000, 1 + int(chance.lognormvariate(4.9, 0.9)))))
    return arrivals


def sharegpt(count: int, seed: int) -> list[Arrival]:
    """One-off requests, one a second on average, with the mean lengths that vLLM's paper gives of ShareGPT, 161 tokens
    of prompt and 338 of answer (Kwon et al., SOSP 2023, figure 11). That they are log-normal is an assumption."""
    chance = random.Random(seed)
    at_s = 0.0
    arrivals = []
    for _ in range(count):
        at_s += chance.expovariate(1.0)
        prompt = min(1_024, 1 + int(chance.lognormvariate(4.6, 1.0)))
        arrivals.append(Arrival(at_s, prompt, min(1_023, 1 + int(chance.lognormvariate(5.52, 0.9)))))
    return arrivals


def conversations(count: int, seed: int) -> list[Arrival]:
    """Turns of conversations that grow by 1 to 4 blocks each, all of them after one of four system prompts."""
    chance = random.Random(seed)
    open_ones: list[tuple[int, ...]] = []
    at_s, number = 0.0, 4
    arrivals = []
    for _ in range(count):
        at_s += chance.expovariate(1.0)
        if open_ones and chance.random() < 0.7:
            prefix = open_ones.pop(chance.randrange(len(open_ones)))
        else:
            prefix = (chance.randrange(4),)
        fresh = chance.randint(1, 4)
        prefix += tuple(range(number, number + fresh))
        number += fresh
        if len(prefix) < 24:
            open_ones.append(prefix)
        arrivals.append(
            Arrival(
                at_s, len(prefix) * PREFIX_BLOCK_TOKENS, min(1000, 1 + int(chance.lognormvariate(5.3, 0.8))), prefix
            )
        )
    return arrivals


def at_rate(arrivals: list[Arrival], rate: float) -> list[Arrival]:
    """The same requests in the same rhythm, `rate` of them a second on average."""
    span_s = max(arrivals[-1].at_s - arrivals[0].at_s, 1e-9)
    factor = len(arrivals) / rate / span_s
    begin_s = arrivals[0].at_s
    return [msgspec.structs.replace(arrival, at_s=(arrival.at_s - begin_s) * factor) for arrival in arrivals]
