"""What `turnlog report` says: questions to the views, and their answers as tables and series. No output here.

Days are UTC. A question names its parameters as `%(name)s`; values are never written into its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

Unit = Literal["text", "count", "tokens", "ms", "share", "per_s", "money", "day", "hour"]
Rows = list[tuple[Any, ...]]
Ask = Callable[[str, Mapping[str, Any]], Rows]
"""Runs a question against the database of the views."""

ROWS_MAX = 20
"""Of a table that has no natural end, such as accounts by cost."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is about: days from the first to the last, both included; of one account or model, or of all."""

    first: date
    last: date
    account: str | None = None
    model: str | None = None

    @property
    def days(self) -> int:
        """How many."""
        return (self.last - self.first).days + 1

    @property
    def parameters(self) -> dict[str, Any]:
        """For the questions."""
        return {
            "first": self.first.isoformat(),
            "last": self.last.isoformat(),
            "account": self.account or "",
            "model": self.model or "",
            "most": ROWS_MAX,
        }


class Column(msgspec.Struct, frozen=True):
    """Of a table: its name, and what its values are."""

    name: str
    unit: Unit = "count"


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over time, or bars: the first column is the axis, `series` names the columns that are drawn."""

    kind: Literal["line", "bar"]
    series: tuple[str, ...]
    title: str


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its title, and how it is drawn."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    plot: Plot | None = None
    more: bool = False
    """There is more than is shown."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    name: str
    title: str
    wanted: Wanted
    made_at: datetime
    sections: tuple[Section, ...]

    @property
    def empty(self) -> bool:
        """Nothing happened in these days."""
        return not any(section.rows for section in self.sections)


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    columns: tuple[Column, ...]
    sql: str
    plot: Plot | None = None
    bounded: bool = False


_DAYS = """usage_day BETWEEN %(first)s AND %(last)s
  AND (%(account)s = '' OR account_id = %(account)s) AND (%(model)s = '' OR model = %(model)s)"""
_TIMES = """ended_at >= toDateTime64(%(first)s, 3, 'UTC')
  AND ended_at < toDateTime64(%(last)s, 3, 'UTC') + INTERVAL 1 DAY
  AND (%(account)s = '' OR account_id = %(account)s) AND (%(model)s = '' OR model = %(model)s)"""

_SUMS = (
    Column("replies"),
    Column("input", "tokens"),
    Column("cached", "share"),
    Column("output", "tokens"),
    Column("cost", "money"),
    Column("currency", "text"),
)
_SUMMED = """sum(replies), sum(input_tokens),
  if(sum(input_tokens) = 0, NULL, sum(cached_input_tokens) / sum(input_tokens)),
  sum(output_tokens), sum(cost), currency"""


def _usage_by(title: str, column: Column, expression: str, order: str, **how: Any) -> _Question:
    limit = " LIMIT %(most)s + 1" if how.get("bounded") else ""
    return _Question(
        title=title,
        columns=(column, *_SUMS),
        sql=f"SELECT {expression} AS grouped, {_SUMMED} FROM usage_daily WHERE {_DAYS} "  # noqa: S608 - all ours
        f"GROUP BY grouped, currency ORDER BY {order}{limit}",
        **how,
    )


_USAGE = (
    _usage_by(
        "By day",
        Column("day", "day"),
        "usage_day",
        "grouped, currency",
        plot=Plot(kind="bar", series=("output",), title="Output tokens a day"),
    ),
    _usage_by(
        "By model",
        Column("model", "text"),
        "if(model = '', '(corrections)', model)",
        "sum(cost) DESC, grouped, currency",
    ),
    _usage_by(
        "Accounts, by cost",
        Column("account", "text"),
        "account_id",
        "sum(cost) DESC, grouped, currency",
        bounded=True,
    ),
    _Question(
        title="How replies ended",
        columns=(
            Column("tier", "text"),
            Column("replies"),
            Column("cancelled"),
            Column("refused"),
            Column("failed"),
            Column("void attempts"),
        ),
        sql="SELECT tier, sum(replies) AS ended, sum(cancelled_replies), "  # noqa: S608 - all ours
        "sum(refused_replies), sum(failed_replies), sum(void_attempts) "
        f"FROM usage_daily WHERE {_DAYS} GROUP BY tier HAVING ended > 0 ORDER BY tier",
    ),
    _Question(
        title="Not charged",
        columns=(Column("model", "text"), Column("records"), Column("input", "tokens"), Column("output", "tokens")),
        sql="SELECT model, sum(uncharged_records) AS records, "  # noqa: S608 - all ours
        "sum(uncharged_input_tokens), sum(uncharged_output_tokens) "
        f"FROM billing WHERE {_DAYS} GROUP BY model HAVING records > 0 ORDER BY model",
    ),
)

_TIME_COLUMNS = (
    Column("replies"),
    Column("queued p50", "ms"),
    Column("queued p95", "ms"),
    Column("first token p50", "ms"),
    Column("first token p95", "ms"),
    Column("first token p99", "ms"),
    Column("between tokens p50", "ms"),
    Column("between tokens p95", "ms"),
    Column("tokens/s p50", "per_s"),
    Column("cached", "share"),
)
_MEASURED = """count(), quantile(0.5)(queued_ms), quantile(0.95)(queued_ms),
  quantile(0.5)(first_token_ms), quantile(0.95)(first_token_ms), quantile(0.99)(first_token_ms),
  quantile(0.5)(inter_token_ms), quantile(0.95)(inter_token_ms), quantile(0.5)(tokens_per_s),
  if(sum(input_tokens) = 0, NULL, sum(cached_input_tokens) / sum(input_tokens))"""


def _latency_by(title: str, column: Column, expression: str, **how: Any) -> _Question:
    return _Question(
        title=title,
        columns=(column, *_TIME_COLUMNS),
        sql=f"SELECT {expression} AS grouped, {_MEASURED} FROM generation_stats WHERE {_TIMES} "  # noqa: S608 - all ours
        "GROUP BY grouped ORDER BY grouped",
        **how,
    )


_OVER_TIME = Plot(kind="line", series=("first token p50", "first token p95"), title="Time to the first token, ms")
_BY_HOUR = _latency_by("By hour (UTC)", Column("hour", "hour"), "toStartOfHour(ended_at)", plot=_OVER_TIME)
_BY_DAY = _latency_by("By day", Column("day", "day"), "toDate(ended_at)", plot=_OVER_TIME)
HOURS_UP_TO_DAYS = 3
"""A report of more days shows days, not hours."""

_LATENCY = (
    _latency_by("By model", Column("model", "text"), "model"),
    _latency_by("By pool", Column("pool", "text"), "pool"),
    _latency_by("By tier", Column("tier", "text"), "tier"),
    _Question(
        title="What went wrong",
        columns=(Column("what", "text"), Column("reason", "text"), Column("times"), Column("replies")),
        sql="SELECT kind, reason, count(), uniqExact(reply_id) "  # noqa: S608 - all ours
        f"FROM failures WHERE {_TIMES} GROUP BY kind, reason ORDER BY kind, count() DESC, reason",
    ),
    _Question(
        title="Stopped by their readers",
        columns=(Column("after tokens", "text"), Column("replies")),
        sql=f"SELECT after_tokens, count() FROM cancellations WHERE {_TIMES} "  # noqa: S608 - all ours
        "GROUP BY after_tokens ORDER BY min(output_tokens)",
    ),
)

Name = Literal["usage", "latency"]
_TITLES: dict[Name, str] = {"usage": "Usage", "latency": "Latency"}


def report(name: Name, wanted: Wanted, ask: Ask, now: datetime) -> Report:
    """Ask everything that a report holds."""
    if name == "usage":
        questions: Sequence[_Question] = _USAGE
    else:
        questions = (_BY_HOUR if wanted.days <= HOURS_UP_TO_DAYS else _BY_DAY, *_LATENCY)
    return Report(
        name=name,
        title=_TITLES[name],
        wanted=wanted,
        made_at=now.astimezone(UTC),
        sections=tuple(_section(question, ask(question.sql, wanted.parameters)) for question in questions),
    )


def statements() -> tuple[str, ...]:
    """Every question, for those who check them."""
    return tuple(question.sql for question in (*_USAGE, _BY_HOUR, _BY_DAY, *_LATENCY))


def _section(question: _Question, rows: Rows) -> Section:
    shown = rows[:ROWS_MAX] if question.bounded else rows
    return Section(
        title=question.title,
        columns=question.columns,
        rows=tuple(tuple(_plain(value) for value in row) for row in shown),
        plot=question.plot,
        more=len(shown) < len(rows),
    )


def _plain(value: Any) -> Any:
    """None for what could not be computed."""
    return None if isinstance(value, float) and value != value else value  # noqa: PLR0124 - only NaN differs from itself


def text(value: Any, unit: Unit) -> str:  # noqa: PLR0911 - one return a unit
    """A value for a person; a dash where there is none."""
    if value is None:
        return "–"
    match unit:
        case "count" | "tokens":
            return f"{value:,}"
        case "ms":
            return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        case "share":
            return f"{value:.1%}"
        case "per_s":
            return f"{value:.1f}"
        case "money":
            return money(value)
        case "day":
            return str(value)
        case "hour":
            return f"{value:%Y-%m-%d %H:%M}"
        case _:
            return str(value) or "(none)"


def money(value: Decimal) -> str:
    """Exact, with at least two places."""
    whole, _, places = f"{value:,f}".partition(".")
    return f"{whole}.{places.rstrip('0').ljust(2, '0')}"


def as_object(made: Report) -> dict[str, Any]:
    """For programs: sections with rows as objects; money and times as text, shares and milliseconds as numbers."""
    return {
        "report": made.name,
        "from": made.wanted.first.isoformat(),
        "to": made.wanted.last.isoformat(),
        "account": made.wanted.account,
        "model": made.wanted.model,
        "made_at": made.made_at.isoformat(timespec="seconds"),
        "sections": [
            {
                "title": section.title,
                "more": section.more,
                "rows": [
                    {
                        column.name.replace(" ", "_"): _json(value)
                        for column, value in zip(section.columns, row, strict=True)
                    }
                    for row in section.rows
                ],
            }
            for section in made.sections
        ],
    }


def _json(value: Any) -> Any:
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.replace(tzinfo=UTC).isoformat()
        case date():
            return value.isoformat()
        case _:
            return value
