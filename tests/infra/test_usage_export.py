"""Usage records out of the views into files, and back into the log."""

import csv
import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from deployment import Deployment
from msgspec.structs import replace

from infra.errors import StackError
from infra.usage_export import Selection, export
from infra.usage_rows import MEMBERS, event_of
from projections.clickhouse.client import ClickHouseUnavailable, Database
from schemas import events as e
from schemas.invoice import adjustment
from tests.infra.usage import Usage, accounts_of, turnlog, used

pytestmark = pytest.mark.servers

AWKWARD = 'A "quoted", =1+1 reason; ünïcode'
ALL = ("--from", "2026-01-01", "--to", "2026-12-31")


def refund(n: int, account: str = "demo", reason: str = AWKWARD) -> e.UsageAdjusted:
    return adjustment(
        account_id=account,
        reply_id=f"rep_{n:06d}",
        usage_day="2026-10-05",
        currency="USD",
        adjustment_id="one",
        amount="-0.000000000001",
        reason=reason,
        now_ms=1_790_000_000_000,
    )


@pytest.fixture
def usage(provisioned: Deployment) -> Usage:
    return Usage(provisioned)


def test_each_record_is_exported_once_in_its_highest_revision_in_all_formats(usage: Usage, tmp_path: Path) -> None:
    first = used(1, gpu_ms=None, queued_ms=None)
    usage.append(first, used(2), used(2), used(2, revision=2, cost="0.25"), refund(1), used(3, day="2026-11-01"))
    usage.append(used(4, kind="attempt-1", charged=False, counted=False, status="failed", cost="0"))
    usage.project()
    usage.project()
    files = {form: tmp_path / f"usage.{form}" for form in ("csv", "jsonl", "parquet")}
    for form, path in files.items():
        done = turnlog(usage.deployment, "usage", "export", *ALL, "--format", form, "--out", str(path), "--json")
        assert (done["rows"], done["bytes"]) == (5, path.stat().st_size)
    rows = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert [(row["reply_id"], row["record_kind"], row["revision"]) for row in rows] == [
        ("rep_000001", "adjustment-one", 1),
        ("rep_000001", "reply", 1),
        ("rep_000002", "reply", 2),
        ("rep_000004", "attempt-1", 1),
        ("rep_000003", "reply", 1),
    ]
    assert event_of(rows[1], strict=True) == first
    assert event_of(rows[0], strict=True) == refund(1)
    with files["csv"].open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [event_of(row, strict=False) for row in table] == [event_of(row, strict=True) for row in rows]
    refused = turnlog(usage.deployment, "usage", "import", str(files["parquet"]), code=1)
    assert "give CSV or JSON lines of `turnlog usage export`" in refused
    columns, total = parquet(usage.database(), files["parquet"])
    assert columns == list(MEMBERS)
    assert total == sum(Decimal(row["cost"]) for row in rows)


def parquet(database: Database, path: Path) -> tuple[list[str], Decimal]:
    """Its columns, and the sum of the costs, as ClickHouse reads them from the bytes."""
    from urllib.parse import urlsplit

    from clickhouse_connect import get_client

    parts = urlsplit(database._url)
    client = get_client(host=parts.hostname, port=parts.port, database=database._database)
    client.command(
        "CREATE TABLE parquet_again (account_id String, usage_day Date, reply_id String, cost Decimal(38, 12)) "
        "ENGINE = Memory"
    )
    client.raw_insert(
        "parquet_again",
        insert_block=path.read_bytes(),
        fmt="Parquet",
        settings={"input_format_parquet_allow_missing_columns": 1, "input_format_skip_unknown_fields": 1},
    )
    total = client.query("SELECT sum(cost) FROM parquet_again").result_rows[0][0]
    shown = path.read_bytes()
    client.close()
    return [name for name in MEMBERS if name.encode() in shown], total


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_the_same_records_are_the_same_bytes_whatever_parts_and_pages_they_came_in(
    usage: Usage, tmp_path: Path, form: str
) -> None:
    events = accounts_of([used(n, day=f"2026-{n % 3 + 9:02d}-0{n % 7 + 1}") for n in range(300)], 7)
    usage.append(*events[:150])
    usage.project()
    usage.append(*events[100:])
    usage.project()
    database = usage.database()
    chosen = Selection("2026-01-01", "2026-12-31", None, form)  # type: ignore[arg-type]
    one, other = tmp_path / "one", tmp_path / "other"
    assert export(database, chosen, one).rows == 300
    database.command("OPTIMIZE TABLE usage_records FINAL")
    assert export(database, chosen, other, page_rows=7).rows == 300
    assert one.read_bytes() == other.read_bytes()
    assert export(database, chosen, one).rows == 300
    assert one.read_bytes() == other.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_days_and_account_select(usage: Usage, tmp_path: Path) -> None:
    usage.append(*accounts_of([used(n, day=f"2026-10-0{n % 9 + 1}") for n in range(18)], 2))
    usage.project()
    database, out = usage.database(), tmp_path / "out"
    assert export(database, Selection("2026-10-02", "2026-10-03", None, "csv"), out).rows == 4
    assert export(database, Selection("2026-10-02", "2026-10-03", "acc-1", "csv"), out).rows == 2
    assert export(database, Selection("2026-10-02", "2026-10-03", "acc-1' OR '1'='1", "jsonl"), out).rows == 0
    assert out.read_bytes() == b""


class Breaking(Database):
    """Fails after some pages."""

    left = 2

    def raw(self, *arguments: object, **options: object) -> bytes:
        if self.left == 0:
            raise ClickHouseUnavailable("it is away")
        self.left -= 1
        return super().raw(*arguments, **options)  # type: ignore[arg-type]


def test_an_export_that_breaks_off_leaves_what_was_there_and_goes_on_later(usage: Usage, tmp_path: Path) -> None:
    usage.append(*[used(n) for n in range(50)])
    usage.project()
    whole, out = tmp_path / "whole", tmp_path / "out"
    out.write_text("before")
    chosen = Selection("2026-10-01", "2026-10-31", None, "csv")
    export(usage.database(), chosen, whole, page_rows=10)
    breaking = Breaking(usage.deployment.clickhouse_url, usage.deployment.database)
    with pytest.raises(StackError, match="go on"):
        export(breaking, chosen, out, page_rows=10)
    assert out.read_text() == "before"
    with (tmp_path / "out.part").open("ab") as file:
        file.write(b"half a li")
    pages: list[int] = []
    done = export(usage.database(), chosen, out, pages.append, page_rows=10)
    assert (done.rows, done.taken_up, pages[0]) == (50, True, 30)
    assert out.read_bytes() == whole.read_bytes()
    other = Selection("2026-10-01", "2026-10-30", None, "csv")
    breaking.left = 1
    with pytest.raises(StackError):
        export(breaking, chosen, out, page_rows=10)
    assert not export(usage.database(), other, out, page_rows=10).taken_up
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("mark", ["[]", "{}", '{"selection": {}, "rows": 1, "bytes": null, "after": []}', "half a"])
def test_what_a_strange_mark_says_of_an_earlier_run_is_not_believed(usage: Usage, tmp_path: Path, mark: str) -> None:
    usage.append(*[used(n) for n in range(5)])
    usage.project()
    out = tmp_path / "out"
    (tmp_path / "out.part").write_text("something")
    (tmp_path / "out.part.json").write_text(mark)
    done = export(usage.database(), Selection("2026-10-01", "2026-10-31", None, "csv"), out)
    assert (done.rows, done.taken_up) == (5, False)
    assert "something" not in out.read_text()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("event", "changes_what_was_passed"),
    [
        (used(3, revision=2, cost="0.7"), True),
        (replace(used(1_000), account_id="acc-0"), True),
        (refund(2), True),
        (used(999_999), False),
        (used(3), False),
    ],
)
def test_an_export_that_is_gone_on_with_is_what_a_fresh_one_is(
    usage: Usage, tmp_path: Path, form: str, event: e.Event, changes_what_was_passed: bool
) -> None:
    usage.append(*[used(n) for n in range(50)])
    usage.project()
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    chosen = Selection("2026-10-01", "2026-10-31", None, form)  # type: ignore[arg-type]
    breaking = Breaking(usage.deployment.clickhouse_url, usage.deployment.database)
    with pytest.raises(StackError, match="go on"):
        export(breaking, chosen, out, page_rows=10)
    usage.append(event)
    usage.project()
    done = export(usage.database(), chosen, out, page_rows=10)
    assert (done.taken_up, done.begun_anew) == (not changes_what_was_passed, changes_what_was_passed)
    assert export(usage.database(), chosen, fresh).rows == done.rows
    assert out.read_bytes() == fresh.read_bytes()


def test_a_command_that_begins_an_export_anew_says_so(usage: Usage, tmp_path: Path) -> None:
    usage.append(*[used(n) for n in range(50)])
    usage.project()
    out = tmp_path / "out"
    breaking = Breaking(usage.deployment.clickhouse_url, usage.deployment.database)
    with pytest.raises(StackError, match="go on"):
        export(breaking, Selection("2026-01-01", "2026-12-31", None, "csv"), out, page_rows=10)
    usage.append(used(3, revision=2))
    usage.project()
    assert "it was begun anew" in turnlog(usage.deployment, "usage", "export", *ALL, "--out", str(out))


KILLED = """
import sys
from pathlib import Path
from infra.usage_export import Selection, export
from projections.clickhouse.client import Database
url, name, out, form = sys.argv[1:]
def tell(rows):
    print(rows, flush=True)
print("begun", flush=True)
export(Database(url, name), Selection("2026-01-01", "2026-12-31", None, form), Path(out), tell, page_rows=3)
"""


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_kills_at_any_moment_leave_no_half_file_and_the_end_is_the_whole(
    usage: Usage, tmp_path: Path, form: str
) -> None:
    usage.append(*[used(n) for n in range(120)])
    usage.project()
    whole, out = tmp_path / "whole", tmp_path / "out"
    export(usage.database(), Selection("2026-01-01", "2026-12-31", None, form), whole)  # type: ignore[arg-type]
    arguments = [usage.deployment.clickhouse_url, usage.deployment.database, str(out), form]
    kills = 0
    for number in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        for _ in range(number % 5 + 1):
            process.stdout.readline()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        ended = process.wait()
        process.stdout.close()
        kills += ended != 0
        if out.exists():
            assert out.read_bytes() == whole.read_bytes()
        if ended == 0:
            break
    done = turnlog(usage.deployment, "usage", "export", *ALL, "--format", form, "--out", str(out), "--json")
    assert done["rows"] == 120
    assert out.read_bytes() == whole.read_bytes()
    assert kills >= 1


def test_two_exports_into_one_file_do_not_meet(usage: Usage, tmp_path: Path) -> None:
    import fcntl

    usage.append(used(1))
    usage.project()
    out = tmp_path / "out"
    with (tmp_path / "out.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StackError, match="Another export"):
            export(usage.database(), Selection("2026-01-01", "2026-12-31", None, "csv"), out)
    assert export(usage.database(), Selection("2026-01-01", "2026-12-31", None, "csv"), out).rows == 1


def test_what_is_wrong_with_a_command_is_said(usage: Usage, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    for arguments, said in [
        (("--from", "2026-13-01", "--to", "2026-12-31", *out), "YYYY-MM-DD"),
        (("--from", "2026-12-02", "--to", "2026-12-01", *out), "after"),
        ((*ALL, "--out", str(tmp_path)), "no place"),
        ((*ALL, "--out", str(tmp_path / "none" / "out")), "no place"),
    ]:
        assert said in turnlog(usage.deployment, "usage", "export", *arguments, code=1)
    assert "Invalid value" in turnlog(usage.deployment, "usage", "export", *ALL, *out, "--format", "xml", code=2)


def test_an_exported_history_that_is_imported_again_changes_nothing(usage: Usage, tmp_path: Path) -> None:
    usage.append(used(1), used(2, revision=2, cost="0.25"), refund(1), used(3, day="2026-11-01", gpu_ms=None))
    usage.append(replace(used(4), account_id="other"))
    usage.project()
    before = turnlog(usage.deployment, "invoices", "show", "demo", "2026-10", "--json")
    totals = usage.database().query("SELECT * FROM billing ORDER BY ALL")
    for form in ("csv", "jsonl"):
        path = tmp_path / form
        turnlog(usage.deployment, "usage", "export", *ALL, "--format", form, "--out", str(path))
        content = path.read_bytes()
        done = turnlog(usage.deployment, "usage", "import", str(path), "--json")
        assert (done["records"], done["accounts"]) == (5, 2)
        usage.project()
        turnlog(usage.deployment, "usage", "export", *ALL, "--format", form, "--out", str(path))
        assert path.read_bytes() == content
        assert turnlog(usage.deployment, "invoices", "show", "demo", "2026-10", "--json") == before
        assert usage.database().query("SELECT * FROM billing ORDER BY ALL") == totals
    assert len(usage.events()) == 15


def test_a_history_moves_to_another_deployment(usage: Usage, deployment: Deployment, tmp_path: Path) -> None:
    from deployment import new_deployment

    usage.append(used(1), refund(1))
    usage.project()
    path = tmp_path / "history.jsonl"
    turnlog(usage.deployment, "usage", "export", *ALL, "--format", "jsonl", "--out", str(path))
    other = Usage(new_deployment(deployment.servers))
    other.deployment.provision()
    try:
        turnlog(other.deployment, "usage", "import", str(path))
        assert turnlog(other.deployment, "invoices", "show", "demo", "2026-10", "--json") == turnlog(
            usage.deployment, "invoices", "show", "demo", "2026-10", "--json"
        )
    finally:
        other.deployment.remove()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1....", "neither CSV nor JSON"),
        (b'{"record": "recorded"}\n', "record 1: Object missing"),
        (b'{"record": "gone"}\n', "`record` is 'gone'"),
        (b"{not json\n", "record 1: no JSON object"),
        (b"\xff\xfe", "give CSV or JSON lines"),
        (b"account_id,record\ndemo,recorded\n", "record 1: Object missing"),
    ],
)
def test_a_file_that_is_no_export_is_refused_whole(usage: Usage, tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert said in turnlog(usage.deployment, "usage", "import", str(path), code=1)
    assert usage.events() == []


def test_a_bad_record_in_the_middle_is_named_and_nothing_is_written(usage: Usage, tmp_path: Path) -> None:
    usage.append(used(1), used(2))
    usage.project()
    path = tmp_path / "history.jsonl"
    turnlog(usage.deployment, "usage", "export", *ALL, "--format", "jsonl", "--out", str(path))
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second.replace('"cost":"0.1"', '"cost":"lots"') + "\n")
    assert "record 2: a day, a count or an amount" in turnlog(usage.deployment, "usage", "import", str(path), code=1)
    assert len(usage.events()) == 2
