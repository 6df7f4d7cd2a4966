"""`turnlog report`: the numbers of the views, in the terminal, for programs, and as a page that stands alone."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

from infra.analytics import Report, Wanted, as_object, report, statements, text
from infra.analytics_page import page
from infra.cli_report import table, wanted
from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from tests.projections.analytics_world import fill, world
from tests.projections.logs import fresh_namespace

WORLD = world()
TODAY = date(2025, 11, 30)
NOW = datetime(2025, 11, 30, 12, tzinfo=UTC)
ALL = Wanted(first=date(2025, 10, 1), last=TODAY)


def asks(rows_of_a_day: int = 3):
    """Answers each question with rows of its shape."""

    def ask(question, parameters):
        assert set(re.findall(r"%\((\w+)\)s", question)) <= set(parameters)
        if "FROM usage_daily" in question and "AS grouped" in question:
            name = date(2025, 10, 1) if "usage_day AS grouped" in question else "<b>"
            return [(name, 2, 3, 0.5, 4, Decimal("1234567.890000000000"), "USD")] * rows_of_a_day
        if "AS grouped" in question:
            name = datetime(2025, 10, 1, 7) if "toStartOf" in question else date(2025, 10, 1)  # noqa: DTZ001
            return [(name, 1, 2.0, 3.0, None, float("nan"), 250.4, 1.0, 2.0, 3.0, None)] * rows_of_a_day
        return []

    return ask


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not [value for name, value in attrs if name in ("src", "href", "onload", "onclick")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_stands_alone_and_shows_nothing_that_is_not_escaped():
    made = report("usage", ALL, asks(25), NOW)
    found = page(made)
    tags = _Tags()
    tags.feed(found)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "svg" not in tags.seen or "url(" not in found
    assert set(re.findall(r"https?://[^\"'\s<)]+", found)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "&lt;b&gt;" in found
    assert "prefers-color-scheme: dark" in found
    assert "1,234,567.89" in found
    assert "Only the first of them." in found


@pytest.mark.parametrize("name", ["usage", "latency"])
def test_a_report_of_days_in_which_nothing_happened_says_so(name):
    made = report(name, ALL, lambda _question, _parameters: [], NOW)
    assert made.empty
    assert "Nothing ended in these days" in page(made)
    assert all(not section["rows"] for section in as_object(made)["sections"])


@pytest.mark.parametrize("rows", [1, 2])
def test_one_day_has_a_plot_too(rows):
    made = report("usage", ALL, asks(rows), NOW)
    assert page(made).count("<svg") == 1


def test_what_could_not_be_computed_is_a_dash_and_null():
    made = report("latency", ALL, asks(), NOW)
    assert "–" in table(made.sections[0])
    first = as_object(made)["sections"][0]["rows"][0]
    assert first["first_token_p50"] is None
    assert first["first_token_p95"] is None
    json.dumps(as_object(made), allow_nan=False)


def test_few_days_are_shown_by_hour_and_more_by_day():
    few = Wanted(first=date(2025, 10, 1), last=date(2025, 10, 3))
    more = Wanted(first=date(2025, 10, 1), last=date(2025, 10, 4))
    assert report("latency", few, asks(), NOW).sections[0].title == "By hour (UTC)"
    assert report("latency", more, asks(), NOW).sections[0].title == "By day"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1234567, "tokens", "1,234,567"),
        (Decimal("0.000002230000"), "money", "0.00000223"),
        (Decimal("-1234.5"), "money", "-1,234.50"),
        (Decimal(0), "money", "0.00"),
        (99.94, "ms", "99.9"),
        (1234.4, "ms", "1,234"),
        (0.1234, "share", "12.3%"),
        (None, "share", "–"),
        ("", "text", "(none)"),
    ],
)
def test_values_are_written_for_people(value, unit, shown):
    assert text(value, unit) == shown


def test_days_are_the_last_thirty_where_none_are_given():
    asked = wanted(None, None, None, None, TODAY)
    assert (asked.first, asked.last, asked.days) == (date(2025, 11, 1), TODAY, 30)


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        ("2025-13-01", None, "YYYY-MM-DD"),
        ("2025-1-1", None, "YYYY-MM-DD"),
        ("yesterday", None, "YYYY-MM-DD"),
        (None, "2149-01-01", "1970 to 2148"),
        ("2025-12-02", "2025-12-01", "after the last"),
        ("2000-01-01", "2025-12-01", "more than 3660 days"),
    ],
)
def test_bad_days_are_refused_with_the_reason(first, last, why):
    with pytest.raises(typer.BadParameter, match=why):
        wanted(first, last, None, None, TODAY)


def test_the_longest_period_is_taken():
    assert wanted("2010-01-01", "2020-01-07", None, None, TODAY).days == 3659
    assert wanted("2010-01-01", "2020-01-08", None, None, TODAY).days == 3660


def test_questions_read_views_only():
    for statement in statements():
        assert set(re.findall(r"FROM (\w+)", statement)) <= {
            "usage_daily",
            "billing",
            "generation_stats",
            "failures",
            "cancellations",
        }


def turnlog(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    return subprocess.run(
        [sys.executable, "-m", "infra", "report", *arguments],
        env=kept | env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_without_a_stack_the_command_says_what_to_do(tmp_path: Path) -> None:
    done = turnlog("usage", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "set TURNLOG_CLICKHOUSE_URL" in done.stderr
    away = turnlog("usage", TURNLOG_CLICKHOUSE_URL="http://127.0.0.1:1")
    assert away.returncode == 1
    assert "ClickHouse did not answer" in away.stderr
    assert "Traceback" not in away.stderr


@pytest.mark.servers
def test_the_command_reports_what_the_events_say(servers, tmp_path: Path) -> None:
    namespace = fresh_namespace()
    name = namespace.replace("-", "_")
    env = {"TURNLOG_CLICKHOUSE_URL": servers.clickhouse_url, "TURNLOG_NAMESPACE": namespace}
    missing = turnlog("usage", **env)
    assert missing.returncode == 1
    assert "turnlog provision" in missing.stderr
    migrations.apply(servers.clickhouse_url, name)
    database = Database(servers.clickhouse_url, name)
    fill(database, WORLD)
    days = ("--from", "2025-10-01", "--to", "2025-11-30")
    made = {}
    for which in ("usage", "latency"):
        html = tmp_path / f"{which}.html"
        done = turnlog(which, *days, "--json", "--html", str(html), **env)
        assert done.returncode == 0, done.stderr
        made[which] = {one["title"]: one["rows"] for one in json.loads(done.stdout)["sections"]}
        assert "<svg" in html.read_text(encoding="utf-8")
        shown = turnlog(which, *days, **env)
        assert shown.returncode == 0, shown.stderr
        assert all(title in shown.stdout for title, rows in made[which].items() if rows)
    replies = [one for one in WORLD.usage if one.record_kind == "reply"]
    cost = sum((Decimal(one.cost) for one in (*WORLD.usage, *WORLD.adjustments)), Decimal(0))
    for title in ("By day", "By model", "Accounts, by cost"):
        rows = made["usage"][title]
        assert sum(row["replies"] for row in rows) == len(replies)
        assert sum(row["output"] for row in rows) == sum(one.output_tokens for one in WORLD.usage)
        assert sum(Decimal(row["cost"]) for row in rows) == cost
    for title in ("By day", "By model", "By pool", "By tier"):
        assert sum(row["replies"] for row in made["latency"][title]) == len(WORLD.replies)
    one = turnlog("usage", *days, "--account", "acme", "--json", **env)
    [account] = [rows for rows in json.loads(one.stdout)["sections"] if rows["title"] == "Accounts, by cost"]
    assert [row["account"] for row in account["rows"]] == ["acme"]
    quoted = turnlog("usage", *days, "--account", "a' OR '1", "--json", **env)
    assert all(not section["rows"] for section in json.loads(quoted.stdout)["sections"])
    unwritable = turnlog("usage", *days, "--html", str(tmp_path / "no" / "x.html"), **env)
    assert unwritable.returncode == 1
    assert "cannot be written" in unwritable.stderr
    database.command(f"DROP DATABASE {name}")


def test_a_report_is_a_value():
    made = report("usage", ALL, asks(), NOW)
    assert isinstance(made, Report)
    assert made == report("usage", ALL, asks(), NOW)
