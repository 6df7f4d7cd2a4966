"""Tokens (JWT) of issuers that the operator trusts, instead of keys. Setting TURNLOG_JWT_ISSUERS.

Rules:

1. A token names its issuer (`iss`). Only one that is configured is looked at, with that issuer's own keys alone: what a
   token says of keys (`jku`, `jwk`, `x5u`, `x5c`) counts for nothing, and one with `crit` is refused.
2. Its algorithm is one that the issuer is configured with, and one that its key is made for. All are asymmetric.
3. `aud` names the audience, `exp` is not over, `nbf` and `iat` do not lie ahead, each within the issuer's leeway.
4. `sub` is the user. The account is the issuer's (`account`), or what the claim `account_claim` says, and then one of
   `accounts` where those are named. Whether the account lets the user in is for the account to say (`schemas.account`).
5. Of a refused token nothing is told or logged but why.

Sources: RFC 7515, 7517, 7518, 7519, 8037, 8725.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec
from jwt.utils import base64url_decode

from api.issuer_keys import ALGORITHMS, IssuerKeys, Key, KeysAway
from schemas.ids import ACCOUNT_ID, USER_ID_CHARS_MAX, is_account_id, is_user_id

TOKEN_CHARS_MAX = 8_192
ISSUERS_MAX = 16
LEEWAY_S_MAX = 300
DEFAULT_ALGORITHMS = ("RS256", "ES256", "EdDSA")


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who issues tokens for users of accounts."""

    issuer: str
    """As its tokens say it in `iss`, to the letter."""
    jwks_url: str
    """Where its public keys are (RFC 7517): read every five minutes, and when a token names another one."""
    audience: str | tuple[str, ...]
    """What its tokens must say in `aud`, or one of these."""
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    """RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA are possible."""
    account: str | None = None
    """The account of all its users. Absent: a claim of the token names it."""
    account_claim: str = "account"
    """The claim that names the account, where `account` does not."""
    accounts: tuple[str, ...] | None = None
    """The accounts that a claim may name; absent: all. An issuer can open each of them."""
    leeway_s: int = 30
    """How far its clock may be off."""

    @property
    def audiences(self) -> tuple[str, ...]:
        """Any of them is good."""
        return (self.audience,) if isinstance(self.audience, str) else self.audience


def parse_issuers(text: str) -> tuple[Issuer, ...]:
    """The setting TURNLOG_JWT_ISSUERS: a JSON list.

    Raises:
        ValueError: not such a list, or something in it is wrong; names the issuer and the member.
    """
    try:
        issuers = msgspec.json.decode(text, type=tuple[Issuer, ...])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"TURNLOG_JWT_ISSUERS: no JSON list of issuers: {error}") from error
    if len(issuers) > ISSUERS_MAX:
        raise ValueError(f"TURNLOG_JWT_ISSUERS: at most {ISSUERS_MAX} issuers are possible, not {len(issuers)}")
    for one in issuers:
        if (wrong := _wrong(one)) is not None:
            raise ValueError(f"TURNLOG_JWT_ISSUERS: {one.issuer!r}: {wrong}")
    if len({one.issuer for one in issuers}) < len(issuers):
        raise ValueError("TURNLOG_JWT_ISSUERS: an issuer is there twice; give one entry several audiences instead")
    return issuers


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not any(sign.isspace() for sign in url)
    except ValueError:
        return False


def _wrong(issuer: Issuer) -> str | None:
    unknown = [name for name in issuer.algorithms if name not in ALGORITHMS]
    named = (*(issuer.accounts or ()), *((issuer.account,) if issuer.account is not None else ()))
    bad = [name for name in named if not is_account_id(name)]
    found = {
        "issuer must not be empty": not issuer.issuer,
        "jwks_url must begin with https:// (or http://, inside of your own network)": not issuer.jwks_url.startswith(
            ("https://", "http://")
        ),
        "jwks_url is no address": not _is_address(issuer.jwks_url),
        "audience must name one": not issuer.audiences or not all(issuer.audiences),
        "algorithms must name one": not issuer.algorithms,
        f"algorithms has {', '.join(unknown)}; possible are {', '.join(ALGORITHMS)}": bool(unknown),
        "account_claim must not be empty": not issuer.account_claim,
        "give accounts or account, not both": issuer.account is not None and issuer.accounts is not None,
        f"{', '.join(bad)} is no account's id ({ACCOUNT_ID})": bool(bad),
        f"leeway_s is {issuer.leeway_s}; 0 to {LEEWAY_S_MAX} is possible": not 0 <= issuer.leeway_s <= LEEWAY_S_MAX,
    }
    return next((sentence for sentence, is_so in found.items() if is_so), None)


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """What a good token says."""

    account_id: str
    user_id: str
    expires_at_ms: int


class Refused(msgspec.Struct, frozen=True):
    """Why a token opens nothing: the end of a sentence that begins with the token."""

    reason: str


NOT_OURS = Refused("is not signed by an issuer that is trusted here")
"""Said of all that fails before the signature is known to be good."""


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str | None = None
    crit: Any = None


class _Issued(msgspec.Struct, frozen=True):
    iss: str


class Tokens:
    """Reads tokens, with the keys of their issuers."""

    def __init__(self, issuers: Sequence[tuple[Issuer, IssuerKeys]] = ()) -> None:
        self._issuers: Mapping[str, tuple[Issuer, IssuerKeys]] = {one[0].issuer: one for one in issuers}

    async def keep(self) -> None:
        """Keep every issuer's keys fresh, until cancelled."""
        await asyncio.gather(*(keys.keep() for _, keys in self._issuers.values()))

    async def close(self) -> None:
        """Stop fetching."""
        for _, keys in self._issuers.values():
            await keys.close()

    def is_one(self, credential: str) -> bool:
        """Whether it has the form of a token, and there is an issuer at all."""
        return bool(self._issuers) and credential.count(".") == 2 and credential.startswith("ey")

    async def read(self, token: str, now_s: float) -> Signed | Refused | KeysAway:
        """What the token says, if it is good now."""
        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            return NOT_OURS
        try:
            encoded_header, encoded_claims, _ = token.split(".")
            header = msgspec.json.decode(base64url_decode(encoded_header), type=_Header)
            issued = msgspec.json.decode(base64url_decode(encoded_claims), type=_Issued)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return NOT_OURS
        issuer, keys = self._issuers.get(issued.iss, (None, None))
        if issuer is None or keys is None or header.alg not in issuer.algorithms or header.crit is not None:
            return NOT_OURS
        key = await keys.find(header.kid, header.alg)
        if isinstance(key, KeysAway):
            return key
        claims = verified(token, key, header.alg) if key is not None else None
        return NOT_OURS if claims is None else accepted(issuer, claims, now_s)


def verified(token: str, key: Key, algorithm: str) -> Mapping[str, Any] | None:
    """The claims of a token that this key has signed; None: it has not, or they are no claims."""
    try:
        payload = jwt.PyJWS().decode_complete(token, key.key, algorithms=[algorithm])["payload"]
        claims = msgspec.json.decode(payload)
    except (jwt.InvalidTokenError, jwt.InvalidKeyError, msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def accepted(issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> Signed | Refused:
    """Rules 3 and 4, of claims that the issuer has signed."""
    expires_s = _time(claims.get("exp"))
    user_id = claims.get("sub")
    account_id = issuer.account or claims.get(issuer.account_claim)
    untimely = UNREADABLE if expires_s is None else _untimely(issuer, claims, expires_s, now_s)
    if expires_s is None or untimely is not None:
        return Refused(untimely or UNREADABLE)
    if not _is_audience(issuer, claims.get("aud")):
        return Refused("is for another audience (aud)")
    if not isinstance(user_id, str) or not is_user_id(user_id):
        return Refused(f"names no user in sub (1 to {USER_ID_CHARS_MAX} printable characters)")
    if not isinstance(account_id, str) or not is_account_id(account_id):
        return Refused(f"names no account in {issuer.account_claim}")
    if issuer.accounts is not None and account_id not in issuer.accounts:
        return Refused("names an account that its issuer may not open")
    return Signed(account_id=account_id, user_id=user_id, expires_at_ms=int((expires_s + issuer.leeway_s) * 1000))


UNREADABLE = "has no time that can be read in exp (or nbf, iat)"


def _untimely(issuer: Issuer, claims: Mapping[str, Any], expires_s: float, now_s: float) -> str | None:
    if now_s >= expires_s + issuer.leeway_s:
        return "has expired"
    for name in ("nbf", "iat"):
        if claims.get(name) is None:
            continue
        begins_s = _time(claims[name])
        if begins_s is None:
            return UNREADABLE
        if now_s < begins_s - issuer.leeway_s:
            return "is not valid yet (nbf, iat)"
    return None


def _is_audience(issuer: Issuer, audience: Any) -> bool:
    named = audience if isinstance(audience, list) else [audience]
    return any(isinstance(one, str) and one in issuer.audiences for one in named)


def _time(value: Any) -> float | None:
    """Seconds since the epoch, as JSON may tell them; None: it is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 253_402_300_800:
        return None
    return float(value)
