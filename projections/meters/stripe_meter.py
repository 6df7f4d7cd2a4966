"""Stripe: billing meter events (https://docs.stripe.com/api/billing/meter-event/create). Nothing else imports `stripe`.

Stripe refuses an identifier that it has had within at least 24 hours with 400, code `duplicate_meter_event` (or without
a code: "An event already exists with identifier …"): it has it, so that is as good as taken. It takes events of the
last 35 days. That it has taken one does not mean that the customer exists: such errors come by its webhook
`v1.billing.meter.error_report_triggered`.
"""

from typing import Any

import stripe

from projections.meters.meter import Later, Never, Outcome, Told
from projections.meters.rules import MeterEvent

DUPLICATE = "duplicate_meter_event"
DUPLICATE_SENTENCE = "event already exists with identifier"
REASON_CHARS_MAX = 300


class StripeMeter:
    """A `Meter`."""

    def __init__(self, key: str, base_url: str | None, timeout_s: float) -> None:
        self._client = stripe.StripeClient(
            key,
            base_addresses={"api": base_url} if base_url else {},
            # We try again ourselves: counted, bounded, and seen.
            max_network_retries=0,
            http_client=stripe.RequestsClient(timeout=timeout_s),
        )

    def tell(self, event: MeterEvent) -> Outcome:
        try:
            self._client.v1.billing.meter_events.create(
                {
                    "event_name": event.event_name,
                    "identifier": event.identifier,
                    "timestamp": event.at_ms // 1000,
                    "payload": {"stripe_customer_id": event.customer, "value": event.value},
                }
            )
        except stripe.RateLimitError as error:
            return Later(_said(error), _retry_after_s(error))
        except (stripe.AuthenticationError, stripe.PermissionError) as error:
            return Later(_said(error), blocked=True)
        except stripe.StripeError as error:
            return _refused(error)
        return Told()

    def close(self) -> None:
        return


def _refused(error: stripe.StripeError) -> Outcome:
    status = error.http_status
    if status == 400 and (error.code == DUPLICATE or DUPLICATE_SENTENCE in str(error.user_message or error)):
        return Told(again=True)
    if status is None or status in {408, 409, 429} or status >= 500:
        return Later(_said(error), _retry_after_s(error))
    return Never(_said(error))


def _said(error: stripe.StripeError) -> str:
    status = f"{error.http_status} " if error.http_status else ""
    return f"{status}{error.code or type(error).__name__}: {error.user_message or error}"[:REASON_CHARS_MAX]


def _retry_after_s(error: stripe.StripeError) -> float | None:
    headers: Any = error.headers or {}
    try:
        return max(float(headers.get("retry-after")), 0.0)
    except (TypeError, ValueError):
        return None
