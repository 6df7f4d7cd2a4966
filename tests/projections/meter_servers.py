"""Billing providers for tests: real HTTP servers that take, refuse and remember as the real ones do."""

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

DAY_S = 86_400


class Provider:
    """One server. `faults` are what happens to the next requests: a status, or `lost` (taken, but never answered)."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.key = "sk_test_right"
        self.requests = 0
        self.refused = 0
        self.taken: dict[str, dict[str, Any]] = {}
        self.faults: deque[int | str] = deque()
        self.lock = threading.Lock()
        self.most_at_once = 0
        self.at_once = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.server.provider = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def fault(self) -> int | str | None:
        with self.lock:
            self.requests += 1
            return self.faults.popleft() if self.faults else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def provider(self) -> Provider:
        found: Provider = self.server.provider  # type: ignore[attr-defined]
        return found

    def log_message(self, *_: Any) -> None:
        return

    def answer(self, status: int, body: dict[str, Any], **headers: str) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def lose(self) -> None:
        """The answer does not come."""
        self.close_connection = True
        self.connection.close()


class StripeHandler(_Handler):
    """POST /v1/billing/meter_events, as https://docs.stripe.com/api/billing/meter-event/create says it."""

    def do_POST(self) -> None:
        provider, body = self.provider, self.body()
        fault = provider.fault()
        if isinstance(fault, int):
            more = {"Retry_After": "0"} if fault == 429 else {}
            self.answer(fault, {"error": {"type": "api_error", "message": f"a {fault}"}}, **more)
            return
        if self.headers.get("Authorization") != f"Bearer {provider.key}":
            self.answer(401, {"error": {"type": "invalid_request_error", "message": "Invalid API Key provided"}})
            return
        if self.path != "/v1/billing/meter_events":
            self.answer(404, {"error": {"type": "invalid_request_error", "message": "Unrecognized request URL"}})
            return
        form = {name: values[0] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        refusal = self.refusal(form)
        if refusal is not None:
            provider.refused += 1
            self.answer(400, {"error": {"type": "invalid_request_error", **refusal}})
            return
        if fault == "lost":
            self.lose()
            return
        self.answer(200, {"object": "billing.meter_event", **form})

    def refusal(self, form: dict[str, str]) -> dict[str, str] | None:
        identifier = form.get("identifier", "")
        value, customer = form.get("payload[value]", ""), form.get("payload[stripe_customer_id]", "")
        age_s = time.time() - float(form.get("timestamp", "0"))
        if not form.get("event_name") or not value or not customer or not 1 <= len(identifier) <= 100:
            return {"message": "Missing required param", "code": "parameter_missing"}
        if not -300 <= age_s <= 35 * DAY_S:
            return {"message": "timestamp too far in the past or in the future", "code": "timestamp_too_far_in_past"}
        if customer == "cus_gone":
            return {"message": "No such customer: 'cus_gone'", "code": "resource_missing"}
        with self.provider.lock:
            if identifier in self.provider.taken:
                said = {"message": f"An event already exists with identifier {identifier}."}
                return said if len(identifier) % 2 else {**said, "code": "duplicate_meter_event"}
            self.provider.taken[identifier] = {"value": value, "customer": customer, "event": form["event_name"]}
        return None


class OpenMeterHandler(_Handler):
    """POST /api/v1/events, as https://openmeter.io/docs/metering/events/overview says it."""

    def do_POST(self) -> None:
        provider, body = self.provider, self.body()
        fault = provider.fault()
        if isinstance(fault, int):
            more = {"Retry_After": "0"} if fault == 429 else {}
            self.answer(fault, {"title": f"a {fault}", "status": fault}, **more)
            return
        if self.headers.get("Authorization") != f"Bearer {provider.key}":
            self.answer(401, {"title": "Unauthorized"})
            return
        event = json.loads(body)
        good = self.headers["Content-Type"] == "application/cloudevents+json" and event.get("specversion") == "1.0"
        if self.path != "/api/v1/events" or not good or event["subject"] == "cus_gone":
            provider.refused += 1
            self.answer(400, {"title": "Bad Request", "detail": "invalid event"})
            return
        with provider.lock:
            taken = {"value": event["data"]["value"], "customer": event["subject"], "event": event["type"]}
            provider.taken.setdefault(event["id"], taken)
        if fault == "lost":
            self.lose()
            return
        self.send_response(204)
        self.end_headers()
