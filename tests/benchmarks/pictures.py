"""Pictures of results: SVG that stands alone, without scripts, fonts or anything else from outside.

The same values give the same bytes, so a picture in the repository changes only when its values do.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pygal
from pygal.style import Style

from tests.benchmarks.stack import REPOSITORY

FOLDER = REPOSITORY / "docs" / "pictures"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: told apart by eyes that do not see all colours, too."""

LEGEND_COLUMNS = 2

Point = tuple[float, float]


def lines(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_title: str,
    y_title: str,
    logarithmic: bool = False,
    x_range: Point | None = None,
    y_range: Point | None = None,
) -> str:
    """A line through the points (x, y) of each named series, in the order of the points.

    Args:
        logarithmic: the vertical axis; its values have to be above 0.
        x_range: where the horizontal axis begins and ends; by default it holds every point.
        y_range: the same of the vertical axis; points outside are not drawn.
    """
    shown = {name: [point for point in points if _within(point, y_range)] for name, points in series.items()}
    scale = math.log10 if logarithmic else float
    chart = pygal.XY(
        **_common(title, x_title, y_title),
        dots_size=4,
        stroke_style={"width": 3},
        xrange=x_range,
        range=None if y_range is None else (scale(y_range[0]), scale(y_range[1])),
    )
    if logarithmic:
        # The library's own would make both axes logarithmic.
        heights = y_range or _span([y for points in shown.values() for _, y in points])
        chart.y_labels = [{"value": math.log10(tick), "label": f"{tick:g}"} for tick in _ticks(*heights)]
    for name, points in shown.items():
        chart.add(name, [(x, scale(y)) for x, y in points])
    return _render(chart, title)


def bars(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    x_title: str = "",
    y_title: str,
    logarithmic: bool = False,
) -> str:
    """A group of bars for each label, with one bar of each named series; None leaves a bar out."""
    chart = pygal.Bar(
        **_common(title, x_title, y_title),
        logarithmic=logarithmic,
        print_values=True,
        print_values_position="top",
        value_formatter=lambda value: "" if value is None else f"{value:,.4g}",
    )
    chart.x_labels = list(labels)
    for name, values in series.items():
        chart.add(name, list(values))
    return _render(chart, title)


def write(name: str, svg: str, folder: Path = FOLDER) -> Path:
    """Put it into the documents' pictures, where `![…](pictures/NAME.svg)` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    path.write_text(svg, encoding="utf-8")
    return path


def _within(point: Point, y_range: Point | None) -> bool:
    return y_range is None or y_range[0] <= point[1] <= y_range[1]


def _span(values: Sequence[float]) -> Point:
    return (min(values), max(values)) if values else (1.0, 10.0)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten, as far as the axis goes."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for step in (1, 2, 5) if low <= (tick := step * 10.0**power) <= high * 1.0001]


def _common(title: str, x_title: str, y_title: str) -> dict[str, Any]:
    style = Style(
        background="#ffffff",
        plot_background="#ffffff",
        foreground="#222222",
        foreground_strong="#000000",
        foreground_subtle="#666666",
        colors=COLOURS,
        font_family="system-ui, sans-serif",
        title_font_size=20,
        label_font_size=15,
        major_label_font_size=15,
        legend_font_size=16,
        value_font_size=13,
        guide_stroke_color="#dddddd",
        major_guide_stroke_color="#bbbbbb",
        guide_stroke_dasharray="none",
        major_guide_stroke_dasharray="none",
        opacity="1",
        transition="0s",
    )
    return {
        "title": title,
        "x_title": x_title or None,
        "y_title": y_title,
        "style": style,
        "js": [],
        "width": 900,
        "height": 540,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": LEGEND_COLUMNS,
        "truncate_legend": -1,
        "explicit_size": False,
        "disable_xml_declaration": True,
    }


def _render(chart: Any, title: str) -> str:
    rows = -(-len(chart.raw_series) // LEGEND_COLUMNS)
    chart.margin_bottom = 20 + 24 * (rows - 1)  # the library leaves room for one row of the legend
    chart.uuid = re.sub(r"\W+", "-", title.lower()).strip("-")
    svg: str = chart.render(is_unicode=True)
    # Comments hold the day and the library's address; the script is for tooltips.
    ours = f"#chart-{chart.uuid} .series .line{{stroke-width:3}}#chart-{chart.uuid} .guides .line{{stroke:#ddd}}"
    svg = svg.replace("</style>", ours + "</style>", 1)
    return re.sub(r"<!--.*?-->|<script.*?</script>|<script[^>]*/>", "", svg, flags=re.DOTALL) + "\n"
