"""Migrations: each once, in order, recorded, and never edited."""

import threading

import pytest

from projections.clickhouse import migrations
from projections.clickhouse.client import ClickHouseError, ClickHouseUnavailable, Database
from projections.clickhouse.migrations import Migration, MigrationChanged
from projections.views.tables import TABLES
from tests.projections.logs import fresh_namespace

NAMES = tuple(migration.name for migration in migrations.migrations())


@pytest.fixture
def name(servers):
    made = fresh_namespace().replace("-", "_")
    yield made
    Database(servers.clickhouse_url, "system").command(f"DROP DATABASE IF EXISTS {made}")


def test_statements_end_with_a_semicolon_at_the_end_of_a_line():
    text = "-- about a; b\nSELECT 'a;b',\n 1;\n\nSELECT 2;\n"
    assert list(Migration(1, "x", text).statements()) == ["SELECT 'a;b',\n 1", "SELECT 2"]


def test_numbers_are_dense_and_names_are_checked(tmp_path):
    (tmp_path / "0001_a.sql").touch()
    (tmp_path / "0003_b.sql").touch()
    with pytest.raises(ValueError, match="expected 0002_"):
        migrations.migrations(tmp_path)


@pytest.mark.servers
def test_a_second_run_does_nothing(servers, name):
    assert migrations.apply(servers.clickhouse_url, name) == NAMES
    assert migrations.apply(servers.clickhouse_url, name) == ()
    engine = Database(servers.clickhouse_url, "system").query(
        "SELECT engine FROM system.databases WHERE name = %(name)s", {"name": name}
    )
    assert engine == [("Atomic",)]


@pytest.mark.servers
def test_two_runs_at_once_end_the_same(servers, name):
    failures = []

    def apply():
        try:
            migrations.apply(servers.clickhouse_url, name)
        except ClickHouseError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=apply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert migrations.apply(servers.clickhouse_url, name) == ()


@pytest.mark.servers
def test_an_edited_migration_is_refused(servers, name, monkeypatch):
    migrations.apply(servers.clickhouse_url, name)
    edited = (*migrations.migrations()[:-1], Migration(len(NAMES), NAMES[-1], "SELECT 1;"))
    monkeypatch.setattr(migrations, "migrations", lambda: edited)
    with pytest.raises(MigrationChanged, match=NAMES[-1]):
        migrations.apply(servers.clickhouse_url, name)


@pytest.mark.servers
def test_rows_have_exactly_the_columns_of_their_tables(servers, name):
    migrations.apply(servers.clickhouse_url, name)
    database = Database(servers.clickhouse_url, name)
    for row, table in TABLES.items():
        columns = database.query(
            "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = %(table)s", {"table": table}
        )
        assert {column for (column,) in columns} == set(row.__struct_fields__), table


@pytest.mark.servers
def test_every_table_says_what_it_is(servers, name):
    migrations.apply(servers.clickhouse_url, name)
    silent = Database(servers.clickhouse_url, name).query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND comment = '' "
        "AND engine != 'MaterializedView'"
    )
    assert silent == []


@pytest.mark.servers
def test_replies_that_were_stored_before_have_no_void_attempts_and_are_in_the_statistics(servers, name, monkeypatch):
    all_of_them = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: all_of_them[:4])
    migrations.apply(servers.clickhouse_url, name)
    database = Database(servers.clickhouse_url, name)
    database.command(
        "INSERT INTO reply_rows (account_id, conversation_id, reply_id, attempt) VALUES ('a', 'c', 'r', 2)"
    )
    monkeypatch.setattr(migrations, "migrations", lambda: all_of_them)
    migrations.apply(servers.clickhouse_url, name)
    assert database.query("SELECT attempt, void_reasons, void_workers FROM generation_stats") == [(2, [], [])]


def test_a_server_that_is_away_is_one_clear_error():
    with pytest.raises(ClickHouseUnavailable):
        migrations.apply("http://127.0.0.1:1", "x")
