"""OpenMeter: events as CloudEvents (https://openmeter.io/docs/metering/events/overview).

It drops what it has had, by id and source.
"""

import httpx

from projections.meters.meter import Later, Never, Outcome, Told
from projections.meters.rules import MeterEvent
from schemas.codec import rfc3339, to_json

SOURCE = "turnlog"
REASON_CHARS_MAX = 300


class OpenMeter:
    """A `Meter`."""

    def __init__(self, key: str, base_url: str, timeout_s: float) -> None:
        self._client = httpx.Client(
            base_url=base_url, timeout=timeout_s, headers={"Authorization": f"Bearer {key}"} if key else {}
        )

    def tell(self, event: MeterEvent) -> Outcome:
        body = to_json(cloud_event(event))
        try:
            answer = self._client.post(
                "/api/v1/events", content=body, headers={"Content-Type": "application/cloudevents+json"}
            )
        except httpx.HTTPError as error:
            return Later(f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX])
        if answer.is_success:
            return Told()
        reason = f"{answer.status_code} {answer.text}"[:REASON_CHARS_MAX]
        if answer.status_code in {401, 403}:
            return Later(reason, blocked=True)
        if answer.status_code in {408, 409, 425, 429} or answer.is_server_error:
            return Later(reason, _seconds(answer.headers.get("retry-after")))
        return Never(reason)

    def close(self) -> None:
        self._client.close()


def cloud_event(event: MeterEvent) -> dict[str, object]:
    """The event as OpenMeter takes it."""
    return {
        "specversion": "1.0",
        "type": event.event_name,
        "id": event.identifier,
        "source": SOURCE,
        "subject": event.customer,
        "time": rfc3339(event.at_ms),
        "data": {"value": event.value},
    }


def _seconds(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text is not None else None
    except ValueError:
        return None
