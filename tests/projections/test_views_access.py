"""Who may read what: the files of `infra/clickhouse` on a server that loads them as a real one does.

The local engine reads users and their rights from files, as these are; it has no place for users that SQL makes, so of
`tenants.sql` only the grammar is checked.
"""

import hashlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from infra.clickhouse_server import ClickHouseServer
from infra.ports import free_port
from projections.clickhouse import migrations
from projections.clickhouse.client import ClickHouseUnavailable, Database
from tests.projections.analytics_world import fill, world

pytestmark = pytest.mark.servers

FILES = Path(__file__).resolve().parents[2] / "infra" / "clickhouse"
WORLD = world()
USERS = """<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default>
<password/><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
</default></users></clickhouse>"""
ABOUT_ALL = {"retention", "funnel"}
FORBIDDEN = "ACCESS_DENIED"


class Guarded:
    """A server with the users of the files."""

    def __init__(self, folder: Path) -> None:
        server = ClickHouseServer(folder / "data", free_port(), free_port(), 1_024)
        command = server.command(lambda *_, **__: None)
        settings = folder / "data" / "config.xml"
        text = settings.read_text()
        begin, end = text.index("<profiles>"), text.index("</clickhouse>")
        users = f"<users_config>{folder / 'users.xml'}</users_config>\n"
        settings.write_text(text[:begin] + users + text[end:])
        (folder / "users.xml").write_text(USERS)
        shutil.copytree(FILES / "users.d", folder / "users.d")
        shutil.copy(FILES / "tenant.xml", folder / "users.d" / "tenant_acme.xml")
        digests = {
            "TURNLOG_ANALYST_PASSWORD_SHA256": hashlib.sha256(b"analyst's").hexdigest(),
            "TURNLOG_TENANT_ACME_PASSWORD_SHA256": hashlib.sha256(b"acme's").hexdigest(),
        }
        self.url = server.url
        self._process = subprocess.Popen(
            command, env={**os.environ, **digests}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 60
        while True:
            try:
                Database(self.url, "system", timeout_s=5).query("SELECT 1")
            except ClickHouseUnavailable:
                assert time.monotonic() < until, "the server did not start: it may have refused a file"
                assert self._process.poll() is None, "the server refused a file"
                time.sleep(0.1)
            else:
                return

    def ask(self, user: str, password: str, question: str) -> str:
        """What it answers, errors too."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        given = {"user": user, "password": password, "database": "turnlog", "wait_end_of_query": 1}
        connection.request("POST", f"/?{urlencode(given)}", question.encode())
        answer = connection.getresponse().read().decode()
        connection.close()
        return answer

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def guarded(servers, tmp_path_factory):
    """A server with users and the world in it."""
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    try:
        migrations.apply(made.url, "turnlog")
        fill(Database(made.url, "turnlog"), WORLD)
        yield made
    finally:
        made.stop()


def names_of(guarded, engine):
    return {
        name
        for (name,) in Database(guarded.url, "turnlog").query(
            f"SELECT name FROM system.tables WHERE database = 'turnlog' AND engine LIKE '{engine}'"
        )
    }


def test_an_analyst_reads_every_view_and_no_table(guarded):
    for view in names_of(guarded, "View"):
        answer = guarded.ask("turnlog_analyst", "analyst's", f"SELECT count() FROM {view}")
        assert int(answer) > 0, view
    for table in names_of(guarded, "%MergeTree"):
        assert FORBIDDEN in guarded.ask("turnlog_analyst", "analyst's", f"SELECT 1 FROM {table}"), table


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("INSERT INTO usage_records (account_id) VALUES ('a')", FORBIDDEN),
        ("DROP VIEW billing", FORBIDDEN),
        ("CREATE TABLE t (a Int8) ENGINE = Memory", FORBIDDEN),
        ("ALTER TABLE usage_records DELETE WHERE 1", FORBIDDEN),
        ("SELECT * FROM system.users", FORBIDDEN),
        ("SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')", FORBIDDEN),
        ("SELECT * FROM file('/etc/passwd', 'CSV', 'a String')", FORBIDDEN),
        ("SELECT 1 SETTINGS max_execution_time = 61", "SETTING_CONSTRAINT_VIOLATION"),
        ("SELECT 1 SETTINGS max_execution_time = 0", "SETTING_CONSTRAINT_VIOLATION"),
        ("SELECT 1 SETTINGS max_memory_usage = 8000000001", "SETTING_CONSTRAINT_VIOLATION"),
        ("SELECT 1 SETTINGS session_timezone = 'Asia/Tokyo'", "SETTING_CONSTRAINT_VIOLATION"),
        ("SELECT number FROM numbers(1000001)", "TOO_MANY_ROWS_OR_BYTES"),
    ],
)
def test_an_analyst_cannot(guarded, question, why):
    assert why in guarded.ask("turnlog_analyst", "analyst's", question)


def test_what_is_within_the_limits_is_answered(guarded):
    for question in (
        "SELECT 1 SETTINGS max_execution_time = 60, max_memory_usage = 8000000000",
        "SELECT count() FROM (SELECT number FROM numbers(1000000))",
    ):
        assert "Exception" not in guarded.ask("turnlog_analyst", "analyst's", question), question


def test_a_wrong_password_opens_nothing(guarded):
    assert "AUTHENTICATION_FAILED" in guarded.ask("turnlog_analyst", "acme's", "SELECT 1")
    assert "AUTHENTICATION_FAILED" in guarded.ask("tenant_acme", "", "SELECT 1")


def test_a_tenant_sees_its_own_rows_in_every_view_and_nothing_else(guarded):
    for view in names_of(guarded, "View"):
        own = guarded.ask("tenant_acme", "acme's", f"SELECT count(), countIf(account_id = 'acme') FROM {view}")
        if view in ABOUT_ALL:
            assert FORBIDDEN in guarded.ask("tenant_acme", "acme's", f"SELECT 1 FROM {view}")
            continue
        seen, mine = own.split()
        assert seen == mine != "0", view
        there = Database(guarded.url, "turnlog").query(f"SELECT count() FROM {view} WHERE account_id = 'acme'")
        assert there == [(int(mine),)], view
        other = guarded.ask("tenant_acme", "acme's", f"SELECT count() FROM {view} WHERE account_id = 'labs' OR 1")
        assert other.strip() == mine, view
    for table in names_of(guarded, "%MergeTree"):
        assert FORBIDDEN in guarded.ask("tenant_acme", "acme's", f"SELECT 1 FROM {table}"), table


def test_the_files_name_the_views_that_there_are(guarded):
    views = names_of(guarded, "View")
    analyst = (FILES / "users.d" / "analyst.xml").read_text()
    tenant, sql = (FILES / "tenant.xml").read_text(), (FILES / "tenants.sql").read_text()
    granted = r"GRANT SELECT ON turnlog\.(\w+)"
    assert set(re.findall(granted, analyst)) == views
    assert set(re.findall(granted, tenant)) == set(re.findall(granted, sql)) == views - ABOUT_ALL
    assert set(re.findall(r"<(\w+)><filter>account_id = 'acme'</filter>", tenant)) == views - ABOUT_ALL
    for policy in re.findall(r"CREATE ROW POLICY .*?;", sql, re.DOTALL):
        assert set(re.findall(r"turnlog\.(\w+)", policy)) == views - ABOUT_ALL


def test_statements_for_tenants_are_good_grammar(guarded):
    text = re.sub(r"^--.*$", "", (FILES / "tenants.sql").read_text(), flags=re.MULTILINE)
    statements = [one.strip() for one in text.split(";") if one.strip()]
    assert len(statements) > 15
    database = Database(guarded.url, "turnlog")
    for statement in statements:
        [(written,)] = database.query("SELECT formatQuery(%(statement)s)", {"statement": statement})
        assert written
    assert sum("AS RESTRICTIVE" in statement for statement in statements) == 1
