"""A new user's walk through the money: replies of two accounts, one cancelled, and the same total everywhere."""

import json
import re
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from system.product import Client, Product, Seen, eventually

from projections.clickhouse.client import Database

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

FREE, PAID = f"walker-{uuid.uuid4().hex[:6]}", f"runner-{uuid.uuid4().hex[:6]}"
TODAY = datetime.now(UTC).date()
MONTH = f"{TODAY:%Y-%m}"
LAST_DAY = TODAY.replace(day=1) - timedelta(days=1)
LAST_MONTH = f"{LAST_DAY:%Y-%m}"


@pytest.fixture(scope="module")
def clients(product: Product) -> dict[str, Client]:
    return {
        FREE: Client(product.url, product.open_account(FREE, "free")),
        PAID: Client(product.url, product.open_account(PAID, "paid")),
    }


@pytest.fixture(scope="module")
def database(product: Product) -> Iterator[Database]:
    opened = Database(product.parts()["clickhouse"]["address"], "turnlog")
    yield opened
    opened.close()


README = Path(__file__).parents[2] / "README.md"


def query_of_readme(account: str) -> str:
    """The README's question to ClickHouse about the account's bill, for a program."""
    [query] = re.findall(r"SELECT [^`\"]* FORMAT PrettyCompact", README.read_text(encoding="utf-8"))
    return str(query).replace("'ada'", f"'{account}'").replace(" FORMAT PrettyCompact", " FORMAT JSON")


def command(product: Product, *arguments: str) -> Any:
    return json.loads(product.turnlog(*arguments, "--json", "--data", str(product.data)).stdout)


def asked(product: Product, query: str) -> Any:
    """ClickHouse's answer over HTTP."""
    answer = httpx.post(product.parts()["clickhouse"]["address"], params={"database": "turnlog"}, content=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def totals(product: Product, database: Database, client: Client, account: str) -> list[Decimal]:
    """The month's total by: usage, usage records, the invoice and its lines, the command line, the view billing."""
    days = {"from": f"{MONTH}-01", "to": TODAY.isoformat()}
    usage = client.get("/v1/usage", **days)["data"]
    bill = client.get(f"/v1/invoices/{MONTH}")
    shown = command(product, "invoices", "show", account, MONTH)
    view = database.query(
        "SELECT sum(cost) FROM billing WHERE account_id = %(account)s AND usage_day >= %(first)s",
        {"account": account, "first": f"{MONTH}-01"},
    )
    return [
        sum((Decimal(row["cost"]) for row in usage), Decimal(0)),
        sum((Decimal(row["cost"]) for row in client.pages("/v1/usage/records")), Decimal(0)),
        Decimal(bill["totals"][0]["amount"]),
        sum((Decimal(line["amount"]) for line in bill["lines"]), Decimal(0)),
        Decimal(shown["totals"][0]["amount"]),
        sum((Decimal(line["amount"]) for line in shown["lines"]), Decimal(0)),
        Decimal(view[0][0]),
    ]


def test_a_new_user_finds_the_same_total_everywhere_and_a_cancelled_reply_on_it_in_part(
    product: Product, clients: dict[str, Client], database: Database
) -> None:
    expected: dict[str, int] = {}
    for account, client in clients.items():
        eventually("the key opens", lambda client=client: client.http.get("/v1/models").status_code == 200)
        assert client.get("/v1/invoices") == {"data": []}
        for chunks in (10, 25):
            client.read(client.send({"chunks": chunks, "every_ms": 2}, max_output_tokens=5_000)["reply"]["id"])
        reply_id = client.send({"chunks": 4_000, "every_ms": 20}, max_output_tokens=5_000)["reply"]["id"]
        cancelled: list[int] = []

        def cancel(
            seen: Seen, reply_id: str = reply_id, client: Client = client, cancelled: list[int] = cancelled
        ) -> None:
            if seen.offset >= 10 and not cancelled:
                cancelled.append(seen.offset)
                assert client.http.post(f"/v1/messages/{reply_id}/cancel").status_code in (200, 202)

        seen = client.read(reply_id, each=cancel)
        assert seen.end is not None
        assert seen.end["status"] == "cancelled"
        [record] = eventually(
            "the partial bill is there", lambda client=client, id_=reply_id: client.usage_records(id_)
        )
        assert record["status"] == "cancelled"
        assert record["charged"]
        assert cancelled[0] - 1 <= record["output_tokens"] == seen.end["usage"]["output_tokens"] < 4_000
        expected[account] = 35 + record["output_tokens"]
    for account, client in clients.items():
        eventually("three records", lambda client=client: len(client.pages("/v1/usage/records")) == 3)
        amounts = totals(product, database, client, account)
        assert len(set(amounts)) == 1, amounts
        [line] = client.get(f"/v1/invoices/{MONTH}")["lines"]
        assert (line["description"], line["records"], line["output_tokens"]) == ("usage", 3, expected[account])
        told = asked(product, query_of_readme(account))
        [row] = told["data"]
        assert (row["model"], row["price_version"]) == (line["model"], line["price_version"])
        assert (int(row["output_tokens"]), Decimal(str(told["totals"]["amount"]))) == (expected[account], amounts[0])
        price = next(one["price"] for one in client.get("/v1/models")["data"] if one["name"] == line["model"])
        parts = {
            "input": line["uncached_input_tokens"],
            "cached_input": line["cache_read_input_tokens"],
            "cache_write": line["cache_write_input_tokens"],
            "cache_write_long": line["cache_write_long_input_tokens"],
            "output": line["output_tokens"],
        }
        assert price["version"] == line["price_version"]
        assert amounts[0] == sum(count * Decimal(price[name]) for name, count in parts.items()) / 1_000_000


def test_who_is_limited_waits_the_time_that_it_is_told_and_gets_in(product: Product) -> None:
    account = f"eager-{uuid.uuid4().hex[:6]}"
    client = Client(product.url, product.open_account(account, "free"))
    eventually("the key opens", lambda: client.http.get("/v1/models").status_code == 200)

    def send(number: int) -> httpx.Response:
        body = {"client_message_id": f"hi-{number}", "content": '{"chunks": 1}', "max_output_tokens": 1}
        return client.http.post("/v1/messages", json=body)

    accepted = 0
    while (answer := send(accepted)).status_code == 202 or answer.json()["code"] != "rate_limited":
        assert "RateLimit" in answer.headers
        if answer.status_code == 202:
            accepted += 1
            assert accepted < 200, "60 requests, and one more each second"
        else:  # a busy machine has too many replies at once
            assert answer.status_code in (429, 503), answer.text
            time.sleep(int(answer.headers["Retry-After"]))
    assert accepted >= 60
    time.sleep(int(answer.headers["Retry-After"]))
    assert send(accepted).status_code == 202


def test_reading_and_resuming_costs_nothing(clients: dict[str, Client]) -> None:
    client = clients[FREE]
    reply_id = client.send({"chunks": 20, "every_ms": 2}, max_output_tokens=5_000)["reply"]["id"]
    whole = client.read(reply_id)
    eventually("its record", lambda: client.usage_records(reply_id))
    before = client.pages("/v1/usage/records")
    for after in range(0, whole.offset, 3):  # pieces are fewer than chunks where the machine is busy
        client.read(reply_id, Seen(offset=after))
        client.message(reply_id)
    later = client.send({"chunks": 1, "every_ms": 1}, max_output_tokens=5_000)["reply"]["id"]
    client.read(later)
    eventually("a later record", lambda: client.usage_records(later))
    assert [one for one in client.pages("/v1/usage/records") if one["message_id"] != later] == before


def test_a_closed_month_a_late_record_one_that_comes_twice_and_a_correction_are_the_same_everywhere(
    product: Product, clients: dict[str, Client], database: Database, tmp_path: Path
) -> None:
    client = clients[PAID]
    out = tmp_path / "usage.jsonl"
    days = ("--from", f"{MONTH}-01", "--to", TODAY.isoformat())
    chosen = (*days, "--account", PAID, "--format", "jsonl", "--out", str(out))
    assert command(product, "usage", "export", *chosen)["rows"] >= 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]

    def imported(*made: dict[str, Any]) -> None:
        path = tmp_path / "import.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
        assert command(product, "usage", "import", str(path))["records"] == len(made)

    before = totals(product, database, client, PAID)
    old = [
        {**rows[0], "reply_id": f"rep_old_{n}", "usage_day": LAST_DAY.isoformat(), "cost": f"0.{n}1"} for n in (1, 2, 3)
    ]
    imported(*rows, old[0], old[0], old[1])
    [closed] = [one for one in command(product, "invoices", "close", LAST_MONTH)["closed"] if one["account_id"] == PAID]
    assert closed["totals"] == [{"currency": "USD", "amount": "0.32"}]
    imported(old[0], old[2])
    command(
        product, "usage", "adjust", PAID, rows[0]["reply_id"], "--amount", "-0.5", "--reason", "Sorry.", "--id", "s1"
    )
    expected = before[0] + Decimal("0.31") - Decimal("0.5")

    def bill() -> list[tuple[str, str]]:
        lines = client.get(f"/v1/invoices/{MONTH}")["lines"]
        return [(line["description"], line["usage_period"]) for line in lines]

    eventually("the bill has all three", lambda: bill() == [("usage", MONTH), ("late", LAST_MONTH), ("Sorry.", MONTH)])
    shown, told = command(product, "invoices", "show", PAID, MONTH), client.get(f"/v1/invoices/{MONTH}")
    assert shown == {"account_id": PAID, **told}
    assert Decimal(told["totals"][0]["amount"]) == expected
    last = client.get(f"/v1/invoices/{LAST_MONTH}")
    assert (last["status"], last["totals"]) == ("closed", [{"currency": "USD", "amount": "0.32"}])
    lines = database.query("SELECT sum(amount) FROM invoice_lines WHERE account_id = %(a)s", {"a": PAID})
    assert lines == [(Decimal("0.32"),)]
    assert [one["reply_id"] for one in command(product, "invoices", "late", "--account", PAID)["late"]] == ["rep_old_3"]
    assert [item["period"] for item in client.get("/v1/invoices")["data"]] == [MONTH, LAST_MONTH]
    everything = database.query("SELECT sum(cost) FROM billing WHERE account_id = %(a)s", {"a": PAID})
    assert everything == [(expected + Decimal("0.32"),)]
    assert client.http.get("/v1/invoices/2001-01").status_code == 404
