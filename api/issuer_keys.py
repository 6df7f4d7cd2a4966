"""The public keys of an issuer of tokens: fetched, kept, and fetched again when they have changed.

Rules:

1. A key that is known is given at once. All are fetched anew every `REFRESH_S`, so that a key that its issuer has
   withdrawn opens nothing after that.
2. A key that is not known is worth one fetch, but not within `REFETCH_S` after the last one: whoever makes up key ids
   makes no load elsewhere. All who wait for a fetch wait for the same one.
3. A fetch that fails changes nothing: the keys that are known go on to count, and it is tried again after `RETRY_S`.
   Where none ever came, that is told.
4. Keys that cannot be used are left out: symmetric and private ones, those for encryption, RSA below 2048 bits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import jwt
import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import get_default_algorithms

log = structlog.get_logger()

REFRESH_S = 300.0
RETRY_S = 30.0
REFETCH_S = 5.0
FETCH_S = 5.0
DOCUMENT_BYTES_MAX = 262_144
KEYS_MAX = 100
RSA_BITS = range(2048, 8193)

ALGORITHMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "RS256": ("RSA", ()),
    "RS384": ("RSA", ()),
    "RS512": ("RSA", ()),
    "PS256": ("RSA", ()),
    "PS384": ("RSA", ()),
    "PS512": ("RSA", ()),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
"""Algorithm -> kind and curves of its keys (RFC 7518, 8037)."""

Fetch = Callable[[str], Awaitable[bytes]]


class KeysAway(msgspec.Struct, frozen=True):
    """The issuer's keys could not be fetched, and none are known."""


class Unfetched(Exception):
    """The document did not come, or is none."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A public key."""

    kid: str | None
    algorithms: frozenset[str]
    """Those that it is made for."""
    key: Any


def keys_in(document: bytes) -> tuple[Key, ...]:
    """The keys of a JWK set that can be used. Raises Unfetched when it is none."""
    try:
        listed = msgspec.json.decode(document, type=dict[str, Any])["keys"]
    except (msgspec.MsgspecError, KeyError, RecursionError, ValueError) as error:
        raise Unfetched(f"no JWK set: {type(error).__name__}") from error
    if not isinstance(listed, list):
        raise Unfetched("no JWK set: its keys are no list")
    return tuple(key for one in listed[:KEYS_MAX] if (key := _key(one)) is not None)


def _key(jwk: Any) -> Key | None:
    if not isinstance(jwk, dict) or "d" in jwk or jwk.get("use", "sig") != "sig":
        return None
    kid, only, curve = jwk.get("kid"), jwk.get("alg"), jwk.get("crv")
    made_for = {
        name
        for name, (kind, curves) in ALGORITHMS.items()
        if kind == jwk.get("kty") and (not curves or curve in curves) and only in (None, name)
    }
    if not made_for or not isinstance(kid, str | None):
        return None
    try:
        key: Any = get_default_algorithms()[min(made_for)].from_jwk(jwk)
    except (jwt.InvalidKeyError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size not in RSA_BITS:
        return None
    return Key(kid=kid, algorithms=frozenset(made_for), key=key)


class IssuerKeys:
    """The keys of one issuer. Used from one event loop."""

    def __init__(
        self,
        name: str,
        url: str,
        fetch: Fetch,
        now_s: Callable[[], float],
        told: Callable[[str, str], None] = lambda issuer, outcome: None,  # noqa: ARG005 - nobody listens
        refresh_s: float = REFRESH_S,
    ) -> None:
        """Fetches nothing yet.

        Args:
            name: the issuer's, for logs and metrics.
            url: of its JWK set.
            fetch: gets a document; raises Unfetched.
            now_s: a monotonic clock.
            told: issuer and `done` or `failed`, for each fetch.
            refresh_s: how often all keys are fetched anew.
        """
        self._name = name
        self._url = url
        self._fetch = fetch
        self._now_s = now_s
        self._told = told
        self._refresh_s = refresh_s
        self._keys: tuple[Key, ...] | None = None
        self._tried_s: float | None = None
        self._fetching: asyncio.Task[bool] | None = None

    async def keep(self) -> None:
        """Keep them fresh, until cancelled."""
        while True:
            came = await self._fetched()
            await asyncio.sleep(self._refresh_s if came else min(RETRY_S, self._refresh_s))

    async def find(self, kid: str | None, algorithm: str) -> Key | KeysAway | None:
        """The key of this id for this algorithm; without an id, the only one there is. None: there is no such key."""
        key = self._known(kid, algorithm)
        if key is not None:
            return key
        if self._fetching is not None or self._tried_s is None or self._now_s() - self._tried_s >= REFETCH_S:
            await self._fetched()
        return KeysAway() if self._keys is None else self._known(kid, algorithm)

    async def _fetched(self) -> bool:
        """Wait for the fetch that is going on, or for a new one; whether it came."""
        if self._fetching is None:
            self._tried_s = self._now_s()
            self._fetching = asyncio.create_task(self._fetch_once())
        return await asyncio.shield(self._fetching)

    async def close(self) -> None:
        """Stop fetching."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _known(self, kid: str | None, algorithm: str) -> Key | None:
        fitting = [key for key in self._keys or () if algorithm in key.algorithms and kid in (None, key.kid)]
        return fitting[0] if len(fitting) == 1 or (fitting and kid is not None) else None

    async def _fetch_once(self) -> bool:
        try:
            self._keys = keys_in(await self._fetch(self._url))
        except Unfetched as error:
            log.warning("keys of an issuer not fetched", issuer=self._name, reason=str(error))
            self._told(self._name, "failed")
            return False
        else:
            self._told(self._name, "done")
            return True
        finally:
            self._fetching = None


class HttpFetch:
    """Fetches over HTTP; follows no redirects. The client is made once: that takes a moment of the event loop."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=FETCH_S, headers={"Accept": "application/json"})

    async def __call__(self, url: str) -> bytes:
        """The document. Raises Unfetched."""
        try:
            async with asyncio.timeout(FETCH_S), self._client.stream("GET", url) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise Unfetched(f"answered with {answer.status_code}")
                document = b""
                async for chunk in answer.aiter_bytes():
                    document += chunk
                    if len(document) > DOCUMENT_BYTES_MAX:
                        raise Unfetched(f"has more than {DOCUMENT_BYTES_MAX} bytes")
                return document
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
            raise Unfetched(type(error).__name__) from error

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
