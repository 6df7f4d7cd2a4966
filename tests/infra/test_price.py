"""`turnlog price`, and what becomes of a price list that cannot be meant."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIST = [
    {
        "version": "a",
        "model": "smollm2-135m-instruct",
        "valid_from": "2026-01-01T00:00:00Z",
        "input": "1",
        "output": "4",
    },
    {
        "version": "b",
        "model": "smollm2-135m-instruct",
        "tier": "paid",
        "valid_from": "2026-01-01T00:00:00Z",
        "currency": "EUR",
        "input": "0.5",
        "cached_input": "0",
        "output": "2",
    },
    {
        "version": "next",
        "model": "smollm2-135m-instruct",
        "valid_from": "2199-01-01T00:00:00Z",
        "input": "9",
        "output": "9",
    },
]


def price(*arguments: str, prices: object = LIST, code: int = 0, command: tuple[str, ...] = ("price",)) -> str:
    env = {**os.environ, "TURNLOG_PRICES": prices if isinstance(prices, str) else json.dumps(prices)}
    done = subprocess.run(
        [sys.executable, "-m", "infra", *command, *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_the_worked_example_of_ten_turns() -> None:
    made = json.loads(price("--json", prices="[]"))
    assert (made["input_tokens"], made["input_equivalents"], len(made["turns"])) == (18_500, "5530", 10)
    assert (made["price"]["version"], made["cost"], made["cost_uncached"]) == ("2026-11", "0.0002765", "0.000925")
    text = price(prices="[]")
    assert "18500 tokens; with the cache it costs as 5530" in text


@pytest.mark.parametrize(
    ("arguments", "version", "cost"),
    [
        ((), "a", "0.00553"),
        (("--tier", "paid"), "b", "0.002"),
        (("--tier", "paid", "--price-version", "a"), "a", "0.00553"),
        (("--price-version", "next"), "next", "0.04977"),
        (("--at", "2199-01-01"), "next", "0.04977"),
        (("--at", "2025-12-31T23:59:59Z"), "2026-11", "0.0002765"),
        (("--price-version", "2026-11"), "2026-11", "0.0002765"),
        (("--turns", "1", "--first", "1000", "--output", "1000"), "a", "0.00525"),
    ],
)
def test_model_tier_version_and_time_choose_the_price(arguments: tuple[str, ...], version: str, cost: str) -> None:
    made = json.loads(price(*arguments, "--json"))
    assert (made["price"]["version"], made["cost"]) == (version, cost)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("nothing",), "there is no model 'nothing': smollm2", 2),
        (("--price-version", "gone"), "there are 2026-11, a, b, next", 1),
        (("--at", "yesterday"), "--at is 'yesterday'", 2),
        (("--turns", "0"), "--turns", 2),
        (("--turns", "10001"), "--turns", 2),
        (("--first", "-1"), "--first", 2),
        (("--tier", "gold"), "'gold' is no tier: free, ", 2),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str, code: int) -> None:
    assert said in price(*arguments, code=code)


@pytest.mark.parametrize(
    "command",
    [("price",), ("streams", "settlement", "--check"), ("up", "--engine", "scripted", "--data")],
)
def test_a_list_that_cannot_be_meant_is_refused_before_anything_starts(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    bad = [{**LIST[0], "input": "-1"}]
    more = (str(tmp_path / "data"),) if command[0] == "up" else ()
    said = price(*more, prices=bad, code=2, command=command)
    assert "entry 1 (smollm2-135m-instruct, a): `input` is -1" in said


def test_a_list_that_is_empty_is_none() -> None:
    assert "settings are good" in price(prices="", command=("streams", "settlement", "--check"))
    assert json.loads(price("--json", prices=""))["price"]["version"] == "2026-11"
