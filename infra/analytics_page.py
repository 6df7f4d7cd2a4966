"""A report as one HTML page that stands alone: tables and plots, light and dark, nothing from outside.

The plots are SVG whose lines and letters take their colours from the page, so that both themes have one picture.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from html import escape
from typing import Any

import pygal
from pygal.style import Style

from infra.analytics import Column, Report, Section, Wanted, text

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Of Okabe and Ito: told apart by eyes that do not see all colours, too, on white and on black."""
LABELS_MAX = 16

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1a1a1a; --soft: #5b6066; --line: #d9dce0; --band: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e8e9eb; --soft: #a2a8b0; --line: #363c43; --band: #1d2125; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.about, footer { color: var(--soft); margin: .2rem 0 0; } footer { margin-top: 3rem; font-size: .85rem; }
p.none { padding: 1rem; border: 1px dashed var(--line); border-radius: .5rem; color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1.4rem; }
.figures div { flex: 1 1 9rem; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: .5rem; }
.figures b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.figures span { color: var(--soft); font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
th.word, td.word, th.time { text-align: left; }
td.time { text-align: left; } td.word { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; }
tbody tr:nth-child(even) { background: var(--band); }
svg { width: 100%; height: auto; }
@media print { body { max-width: none; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""


def page(made: Report) -> str:
    """The whole page."""
    body = "".join(_section(section) for section in made.sections if section.rows)
    if made.empty:
        body = (
            '<p class="none">Nothing ended in these days. Choose others with --from and --to, or another account.</p>'
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Turnlog: {escape(made.title.lower())}, {made.wanted.first} to {made.wanted.last}</title>"
        f"<style>{CSS}</style></head><body><main><h1>{escape(made.title)}</h1>"
        f'<p class="about">{escape(about(made.wanted))}</p>{_figures(made)}{body}</main>'
        f"<footer>Made {made.made_at:%Y-%m-%d %H:%M} UTC by <code>turnlog report {made.name}</code>. All times UTC."
        "</footer>"
        "</body></html>\n"
    )


def about(wanted: Wanted) -> str:
    """What the report is about, in a line."""
    days = f"{wanted.first} to {wanted.last} (UTC)" if wanted.days > 1 else f"{wanted.first} (UTC)"
    account = f"account {wanted.account}" if wanted.account else "all accounts"
    model = f", model {wanted.model}" if wanted.model else ""
    return f"{days}, {account}{model}"


def _figures(made: Report) -> str:
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in figures(made))
    return f'<div class="figures">{boxes}</div>' if boxes and not made.empty else ""


def figures(made: Report) -> list[tuple[str, str]]:
    """Totals that stand above the tables: sums of the first table's counts and money, by currency."""
    if made.name != "usage" or not made.sections:
        return []
    days = made.sections[0]
    names = [column.name for column in days.columns]
    shown = [
        (name, text(sum(row[names.index(name)] for row in days.rows), "count"))
        for name in ("replies", "input", "output")
    ]
    costs: dict[str, Any] = {}
    for row in days.rows:
        currency = row[names.index("currency")]
        costs[currency] = costs.get(currency, 0) + row[names.index("cost")]
    return [
        *((name if name == "replies" else f"{name} tokens", value) for name, value in shown),
        *((f"cost, {currency}", text(amount, "money")) for currency, amount in sorted(costs.items())),
    ]


def _section(section: Section) -> str:
    head = "".join(f"<th{_class(column)}>{escape(column.name)}</th>" for column in section.columns)
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(column)}>{escape(text(value, column.unit))}</td>"
            for column, value in zip(section.columns, row, strict=True)
        )
        + "</tr>"
        for row in section.rows
    )
    more = '<p class="about">Only the first of them.</p>' if section.more else ""
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'
    unit = ", times in ms" if any(column.unit == "ms" for column in section.columns) else ""
    return f"<section><h2>{escape(section.title + unit)}</h2>{_plot(section)}{table}</section>"


def _class(column: Column) -> str:
    if column.unit in ("day", "hour"):
        return ' class="time"'
    return ' class="word"' if column.unit == "text" else ""


def _plot(section: Section) -> str:
    plot = section.plot
    if plot is None or not section.rows:
        return ""
    names = [column.name for column in section.columns]
    axis = section.columns[0]
    series = {name: _summed([(row[0], row[names.index(name)]) for row in section.rows]) for name in plot.series}
    places = _places(axis, [row[0] for row in section.rows])
    labels = [text(place, axis.unit) for place in places]
    kind = pygal.Bar if plot.kind == "bar" or len(places) == 1 else pygal.Line
    chart = kind(**_looks(plot.title, labels, several=len(series) > 1))
    chart.x_labels = labels
    chart.x_labels_major = labels[:: -(-len(labels) // LABELS_MAX)]
    for name, points in series.items():
        chart.add(name, [points.get(place) for place in places])
    return _standing_alone(chart, plot.title)


def _places(axis: Column, found: Sequence[Any]) -> list[Any]:
    """Of the axis: days and hours in which nothing happened are there too."""
    steps = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
    if axis.unit not in steps:
        return list(dict.fromkeys(found))
    step, first, last = steps[axis.unit], min(found), max(found)
    return [first + number * step for number in range((last - first) // step + 1)]


def _summed(points: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """One value for each place: rows of several currencies are one bar."""
    found: dict[Any, Any] = {}
    for place, value in points:
        found[place] = value if found.get(place) is None else found[place] + (value or 0)
    return found


def _looks(title: str, labels: Sequence[str], *, several: bool) -> dict[str, Any]:
    style = Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--ink)",
        foreground_strong="var(--ink)",
        foreground_subtle="var(--line)",
        guide_stroke_color="var(--line)",
        major_guide_stroke_color="var(--line)",
        guide_stroke_dasharray="none",
        major_guide_stroke_dasharray="none",
        colors=COLOURS,
        value_colors=("var(--ink)",) * len(COLOURS),
        font_family="system-ui, sans-serif",
        title_font_size=17,
        label_font_size=13,
        major_label_font_size=13,
        legend_font_size=14,
        opacity="1",
        transition="0s",
    )
    return {
        "title": title,
        "style": style,
        "js": [],
        "width": 1000,
        "height": 360,
        "margin_bottom": 24,
        "show_legend": several,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": 4,
        "truncate_legend": -1,
        "truncate_label": -1,
        "show_minor_x_labels": False,
        "x_label_rotation": 30 if len(labels) > 8 else 0,
        "show_x_guides": False,
        "dots_size": 2.5,
        "include_x_axis": True,
        "value_formatter": lambda value: f"{value:,.0f}",
        "explicit_size": False,
        "disable_xml_declaration": True,
    }


def _standing_alone(chart: Any, title: str) -> str:
    chart.uuid = re.sub(r"\W+", "-", title.lower()).strip("-")
    svg: str = chart.render(is_unicode=True)
    ours = (
        f"#chart-{chart.uuid} .series .line{{stroke-width:2.5}}#chart-{chart.uuid} .guides .line{{stroke:var(--line)}}"
    )
    svg = svg.replace("</style>", ours + "</style>", 1).replace(
        "<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1
    )
    return re.sub(r"<!--.*?-->|<script.*?</script>|<script[^>]*/>", "", svg, flags=re.DOTALL)
