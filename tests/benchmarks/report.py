"""Results: printed as tables, appended to a file of JSON lines, and written into docs/benchmarks.md."""

import argparse
import os
import platform
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.benchmarks.stack import REPOSITORY

RESULTS = REPOSITORY / ".turnlog" / "benchmarks.jsonl"
DOCUMENT = REPOSITORY / "docs" / "benchmarks.md"


class Table(msgspec.Struct, frozen=True):
    """A table: first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a benchmark. `reached` says of each target whether it was met."""

    name: str
    how: str
    tables: tuple[Table, ...]
    figures: dict[str, float]
    reached: dict[str, bool]
    machine: str
    at: str


def result(name: str, how: str, tables: Sequence[Table], figures: dict[str, float], reached: dict[str, bool]) -> Result:
    """A result of this machine, now."""
    return Result(
        name=name,
        how=" ".join(how.split()),
        tables=tuple(tables),
        figures=figures,
        reached=reached,
        machine=machine(),
        at=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def machine() -> str:
    """Cores, memory and interpreter; nothing that names the machine."""
    cores = len(os.sched_getaffinity(0))
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{cores} cores, {memory_gb:.0f} GB, {platform.system()}, Python {platform.python_version()}"


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which this share of the values lies (nearest rank); NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{seconds * 1000:.1f} ms"


def markdown(table: Table) -> str:
    """The table as Markdown."""
    lines = [f"| {' | '.join(table.columns)} |", "|" + "---|" * len(table.columns)]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join(lines)


def plain(table: Table) -> str:
    """The table for a terminal."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([table.title, *lines])


def show(made: Result, results: Path = RESULTS) -> None:
    """Print it and append it to the results file."""
    print(f"\n{made.name}: {made.how}\n{made.machine}")
    for table in made.tables:
        print(f"\n{plain(table)}")
    for target, met in made.reached.items():
        print(f"{'reached' if met else 'MISSED '}  {target}")
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab") as stream:
        stream.write(msgspec.json.encode(made) + b"\n")


def section(made: Result) -> str:
    """The part of the document about one benchmark."""
    parts = [f"<!-- begin {made.name} -->", f"{made.how}", f"Measured {made.at} on {made.machine}."]
    for table in made.tables:
        parts += [f"**{table.title}**" if table.title else "", markdown(table)]
    if made.reached:
        rows = tuple((target, "yes" if met else "**no**") for target, met in made.reached.items())
        parts.append(markdown(Table("", ("target", "reached"), rows)))
    parts.append(f"<!-- end {made.name} -->")
    return "\n\n".join(part for part in parts if part)


def write_document(made: Result, document: Path = DOCUMENT) -> None:
    """Replace the benchmark's part of the document; it must have one."""
    text = document.read_text(encoding="utf-8")
    place = re.compile(rf"<!-- begin {made.name} -->.*?<!-- end {made.name} -->", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{document} has no part for {made.name}")
    document.write_text(place.sub(lambda _: section(made), text), encoding="utf-8")


def options(description: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of JSON lines to append to")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    return parser


def finish(made: Result, chosen: argparse.Namespace) -> int:
    """Print, append and perhaps write; 0 when every target was reached, else 1."""
    show(made, chosen.results)
    if chosen.write:
        write_document(made)
    return 0 if all(made.reached.values()) else 1
