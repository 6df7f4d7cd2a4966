"""The dashboards' questions: each panel's SQL is answered by the views, its macros written out as Grafana would."""

import json
import re
from pathlib import Path

import pytest
import yaml

from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.tables import PROGRESS, TABLES
from tests.projections.analytics_world import MONDAY_MS, WEEK_MS, fill, world
from tests.projections.logs import fresh_namespace

FOLDER = Path(__file__).resolve().parents[2] / "infra" / "grafana"
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (FOLDER / "dashboards").glob("*.json")}
SOURCES = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "turnlog.yaml").read_text())["datasources"]
FROM_S, TO_S = MONDAY_MS // 1000, (MONDAY_MS + 8 * WEEK_MS) // 1000
VIEWS = {
    "usage_daily",
    "usage_hourly",
    "billing",
    "generation_stats",
    "failures",
    "cancellations",
    "retention",
    "funnel",
}


def panels(kind):
    return [
        pytest.param(board, panel, id=f"{board}: {panel['title']}")
        for board, content in sorted(BOARDS.items())
        for panel in content["panels"]
        if panel["type"] != "row" and panel["datasource"]["type"] == kind
    ]


def written_out(sql, account="", model=""):
    """As the data source's plugin does, from its documentation."""
    macros = {
        r"\$__timeFilter_ms\((\w+)\)": rf"\1 >= fromUnixTimestamp64Milli({FROM_S * 1000}) "
        rf"AND \1 <= fromUnixTimestamp64Milli({TO_S * 1000})",
        r"\$__timeFilter\((\w+)\)": rf"\1 >= toDateTime({FROM_S}) AND \1 <= toDateTime({TO_S})",
        r"\$__timeInterval\((\w+)\)": r"toStartOfInterval(toDateTime(\1), INTERVAL 3600 second)",
        r"\$__fromTime": f"toDateTime({FROM_S})",
        r"\$__toTime": f"toDateTime({TO_S})",
        r"\$\{account\}": account,
        r"\$\{model\}": model,
    }
    for macro, text in macros.items():
        sql = re.sub(macro, text, sql)
    assert "$" not in sql, sql
    return sql


@pytest.fixture(scope="module")
def database(servers):
    """A database that holds the world."""
    name = fresh_namespace().replace("-", "_")
    migrations.apply(servers.clickhouse_url, name)
    made = Database(servers.clickhouse_url, name)
    fill(made, world())
    yield made
    made.command(f"DROP DATABASE {name}")
    made.close()


@pytest.mark.servers
@pytest.mark.parametrize(("board", "panel"), panels("grafana-clickhouse-datasource"))
def test_a_panel_is_answered(database, board, panel):
    for target in panel["targets"]:
        rows = database.query(written_out(target["rawSql"]))
        assert rows
        assert all(value is not None for value in rows[0][:1])
        if panel["type"] == "timeseries":
            times = [row[0] for row in rows]
            assert times == sorted(times)
            assert "AS time" in target["rawSql"]
        database.query(written_out(target["rawSql"], account="acme", model="small"))


@pytest.mark.parametrize(("board", "panel"), panels("grafana-clickhouse-datasource"))
def test_a_panel_reads_views_only(board, panel):
    for target in panel["targets"]:
        read = set(re.findall(r"(?:FROM|JOIN) (\w+)", target["rawSql"]))
        assert read
        assert read <= VIEWS
        assert not any(table in target["rawSql"] for table in (*TABLES.values(), PROGRESS))


@pytest.mark.servers
def test_variables_are_answered(database):
    queries = [
        variable["query"].replace("today()", "toDate('2025-11-25')")
        for board in BOARDS.values()
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert queries
    for query in queries:
        assert database.query(query) == [("large",), ("small",)]


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_can_be_provisioned(board):
    content = BOARDS[board]
    assert content["uid"] == f"turnlog-{board}"
    assert content["timezone"] == "utc"
    ids = [panel["id"] for panel in content["panels"]]
    assert len(set(ids)) == len(ids)
    known = {source["uid"]: source["type"] for source in SOURCES}
    taken = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] != "row":
            assert known[panel["datasource"]["uid"]] == panel["datasource"]["type"]
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
