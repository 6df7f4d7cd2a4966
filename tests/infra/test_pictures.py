"""Pictures of benchmarks stand alone and do not change without a reason; what a model is given is what a trace says."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import pictures, traffic

LINES = pictures.lines(
    "Latency & rate",
    {"a": [(1, 0.01), (2, 0.5), (3, 9.0)], "b": [(1, 0.02)]},
    x_title="requests a second",
    y_title="seconds",
    logarithmic=True,
    y_range=(0.005, 1.0),
)
BARS = pictures.bars("Bars", ["x", "y"], {"a": [1.0, 2.0], "b": [3.0, None]}, y_title="seconds")


@pytest.mark.parametrize("svg", [LINES, BARS], ids=["lines", "bars"])
def test_a_picture_is_xml_without_scripts_or_references(svg: str) -> None:
    root = ET.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert set(re.findall(r"https?://[^\"'\s<)]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in svg
    assert "url(" not in svg


def test_the_same_values_are_the_same_picture() -> None:
    again = pictures.bars("Bars", ["x", "y"], {"a": [1.0, 2.0], "b": [3.0, None]}, y_title="seconds")
    assert again == BARS


def test_a_logarithmic_axis_has_its_values_as_labels_and_leaves_out_what_is_beyond() -> None:
    labels = set(re.findall(r">([0-9.]+)</text>", LINES))
    assert {"0.005", "0.01", "0.1", "1"} <= labels
    assert LINES.count('class="dot reactive') == 3


def test_traces_are_read_as_they_are_published(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    rows = ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44")
    azure.write_text("\n".join((*rows, "2023-11-16 18:15:50.9951690,396,109")))
    first, second = traffic.azure(azure)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text('{"timestamp": 1500, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n')
    assert traffic.mooncake(mooncake) == [traffic.Arrival(1.5, 6758, 500, (0, 1))]


def test_another_rate_keeps_the_rhythm() -> None:
    faster = traffic.at_rate([traffic.Arrival(float(at), 1, 1) for at in (5, 6, 10)], 6.0)
    assert [arrival.at_s for arrival in faster] == pytest.approx([0.0, 0.1, 0.5])
