"""What the engine knows of its providers from one request to the next: their breakers and the budget of retries.

The decisions are those of `engines.providers`; this keeps their values, in the event loop's time, and logs when a
breaker opens or closes.
"""

import asyncio
from collections.abc import Sequence

import structlog

from inference_workers.engines import providers
from inference_workers.engines.providers import Asked, Breaker, Kind, Limits, Step

logger = structlog.get_logger("inference_workers.openai")


def now_s() -> float:
    """The event loop's time."""
    return asyncio.get_running_loop().time()


class Circuits:
    """The providers of these names, in order."""

    def __init__(self, names: Sequence[str], limits: Limits) -> None:
        self.limits = limits
        self.names = tuple(names)
        self.breakers = [Breaker() for _ in names]
        self._budget = limits.retry_burst

    def begun(self) -> None:
        """Another generation has begun."""
        self._budget = providers.filled(self.limits, self._budget)

    def next_step(self, asked: Sequence[Asked], until_s: float) -> Step:
        """What a generation does now."""
        may_retry = providers.may_retry(self._budget)
        return providers.next_step(
            self.limits, self.breakers, asked, may_retry=may_retry, now_s=now_s(), until_s=until_s
        )

    def request(self, provider: int, asked: Sequence[Asked]) -> "Verdict":
        """A generation asks the provider that `next_step` has named."""
        breaker = providers.entered(self.limits, self.breakers[provider], now_s())
        if breaker is None:
            raise AssertionError("a provider is asked that must not be asked")
        self.put(provider, breaker)
        if any(one.provider == provider for one in asked):
            self._budget -= 1
        return Verdict(self, provider)

    def busy(self, provider: int, length_s: float) -> None:
        """The provider has said that it has no room for so long."""
        self.put(provider, providers.busied(self.breakers[provider], now_s() + length_s))

    def unasked(self, asked: Sequence[Asked]) -> list[str]:
        """Names of the providers that a generation did not ask, because they may not be asked now."""
        tried, now = {one.provider for one in asked}, now_s()
        return [
            name
            for index, (name, breaker) in enumerate(zip(self.names, self.breakers, strict=True))
            if index not in tried and providers.ready_s(breaker) > now
        ]

    def out_s(self) -> float:
        """How long it takes until a provider may be asked; 0 where a generation would wait for that."""
        left_s = min(map(providers.ready_s, self.breakers)) - now_s()
        return left_s if left_s > self.limits.wait_max_s else 0.0

    def put(self, provider: int, breaker: Breaker) -> None:
        """The provider's breaker from now on."""
        if breaker.circuit != self.breakers[provider].circuit:
            logger.warning(
                "breaker", provider=self.names[provider], circuit=breaker.circuit, times_opened=breaker.opened
            )
        self.breakers[provider] = breaker


class Verdict:
    """What one request tells its provider's breaker: that it was answered, that it failed, or nothing."""

    def __init__(self, circuits: Circuits, provider: int) -> None:
        self._circuits = circuits
        self._provider = provider
        self._turn = circuits.breakers[provider].turn
        self._told = False

    def answered(self) -> None:
        """The first token has come, or an end without one. May be called again."""
        if not self._told:
            self._tell(providers.answered(self._circuits.limits, self._breaker, self._turn, now_s()))

    def failed(self, kind: Kind) -> None:
        """It was not answered, or broke off later. A provider that refuses or is busy is not broken."""
        if kind in ("broken", "denied"):
            self._tell(providers.failed(self._circuits.limits, self._breaker, self._turn, now_s()))
        else:
            self.answered()

    def close(self) -> None:
        """The request is over. Where it was cancelled before anything came, another one may try."""
        if not self._told:
            self._tell(providers.abandoned(self._breaker, self._turn, now_s()))

    @property
    def _breaker(self) -> Breaker:
        return self._circuits.breakers[self._provider]

    def _tell(self, breaker: Breaker) -> None:
        if self._turn == self._breaker.turn:
            self._turn = breaker.turn
        self._told = True
        self._circuits.put(self._provider, breaker)
