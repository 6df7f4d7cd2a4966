"""The metrics that dashboards and the operations page name are those that the processes serve."""

import json
import re
from pathlib import Path

import httpx
import pytest
from system.product import Product, eventually

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\bturnlog_[a-z_]+\b")
PARTS_OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")


def asked() -> dict[str, set[str]]:
    """The series that each dashboard names, and those of the alarms."""
    found = {}
    for path in (ROOT / "infra" / "grafana" / "dashboards").glob("*.json"):
        panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
        expressions = [target["expr"] for panel in panels for target in panel.get("targets", ()) if "expr" in target]
        found[path.stem] = {name for expression in expressions for name in NAME.findall(expression)}
    return found


def served(product: Product) -> set[str]:
    """The series that the product's processes serve."""
    parts = json.loads(product.turnlog("status", "--json", "--data", str(product.data)).stdout)["parts"]
    pages = [httpx.get(part["metrics"], timeout=10).text for part in parts if part["metrics"]]
    return {name for page in pages for name in re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE)}


def of_what_is_not_in_up() -> set[str]:
    """The series of the processes that `turnlog up` does not start, as their modules name them."""
    sources = [ROOT / "projections" / name / "metrics.py" for name in ("meters", "reconcile")]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    gauges = re.findall(r'_set\("([a-z_]+)"', texts[1])
    return {name for text in texts for name in NAME.findall(text)} | {f"turnlog_reconcile_{name}" for name in gauges}


def test_every_metric_of_a_dashboard_is_served(tmp_path: Path) -> None:
    wanted = {PARTS_OF_HISTOGRAMS.sub("", name) for names in asked().values() for name in names}
    wanted -= {named for name in of_what_is_not_in_up() for named in (name, f"{name}_total")}
    assert len(wanted) > 35
    product = Product(tmp_path, "--engine", "scripted", env={"TURNLOG_METRICS": "true"})
    try:
        headers = {"Authorization": f"Bearer {product.api_key}", "Accept": "text/event-stream"}
        sent = httpx.post(f"{product.url}/v1/messages", headers=headers, json={"content": "hello"}, timeout=30)
        assert sent.status_code == 200
        eventually(f"all of {sorted(wanted)} are served", lambda: not wanted - served(product), within_s=60)
    finally:
        product.close()
