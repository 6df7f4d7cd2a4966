"""What `turnlog up` says while it works: frozen events, and how a person or a program reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from infra.parts import PartReport


@dataclass(frozen=True)
class Progress:
    """Something takes a while."""

    detail: str


@dataclass(frozen=True)
class PartChanged:
    """A part entered another state; ``after_s`` counts from the start of the stack."""

    part: PartReport
    after_s: float


@dataclass(frozen=True)
class Ready:
    """The service can be used."""

    url: str
    api_key: str
    after_s: float


@dataclass(frozen=True)
class ServersReady:
    """The three servers can be used; ``environment`` names them to a process."""

    environment: Mapping[str, str]
    after_s: float


@dataclass(frozen=True)
class Failed:
    """The stack could not be started."""

    detail: str


@dataclass(frozen=True)
class Stopped:
    """Nothing of the stack runs any more."""


Event = Progress | PartChanged | Ready | ServersReady | Failed | Stopped
Report = Callable[[Event], None]

NAMES = {
    Progress: "progress",
    PartChanged: "part",
    Ready: "ready",
    ServersReady: "ready",
    Failed: "failed",
    Stopped: "stopped",
}
SILENT_STATES = {"waiting", "starting", "stopping"}


def as_object(event: Event) -> dict[str, Any]:
    """The event as a JSON object with the member `event`."""
    body = asdict(event)
    if isinstance(event, PartChanged):
        body = {**body.pop("part"), **body}
    if isinstance(event, PartChanged | Ready | ServersReady):
        body["after_s"] = round(event.after_s, 3)
    return {"event": NAMES[type(event)], **body}


def from_object(body: dict[str, Any]) -> Event:
    """The event of a JSON object that `as_object` made."""
    members = {name: value for name, value in body.items() if name != "event"}
    match body["event"]:
        case "part":
            after_s = members.pop("after_s")
            return PartChanged(PartReport(**members), after_s)
        case "ready":
            return ServersReady(**members) if "environment" in members else Ready(**members)
        case "progress":
            return Progress(**members)
        case "failed":
            return Failed(**members)
        case _:
            return Stopped()


def as_json(event: Event) -> str:
    """One line of JSON."""
    return json.dumps(as_object(event))


def as_text(event: Event, chat: str = "turnlog chat") -> str | None:
    """Lines for a person; None when the event is not worth one. ``chat`` is the command of a chat."""
    match event:
        case Progress(detail):
            return detail
        case PartChanged(part, after_s):
            return _part_line(part, after_s)
        case Ready(url, api_key, after_s):
            return (
                f"\nReady after {after_s:.1f} s.\n\n  URL  {url}\n  Key  {api_key}\n\n"
                f'  curl -N {url}/v1/messages -H "Authorization: Bearer {api_key}" \\\n'
                "    -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \\\n"
                '    -d \'{"content": "Hello"}\'\n\n'
                f"Or `{chat}` in another terminal. Ctrl-C stops everything."
            )
        case ServersReady(environment, after_s):
            exports = "\n".join(f"  export {name}={value}" for name, value in environment.items())
            return f"\nServers ready after {after_s:.1f} s.\n\n{exports}\n\nCtrl-C stops them."
        case Failed(detail):
            return f"Error: {detail}"
        case Stopped():
            return "Stopped."


def _part_line(part: PartReport, after_s: float) -> str | None:
    if part.state in SILENT_STATES:
        return None
    where = part.address or (f"pid {part.pid}" if part.pid else "")
    about = f"  {part.detail}" if part.detail else ""
    return f"  {part.name:<22}{part.state:<12}{where:<28}{after_s:6.1f} s{about}"
