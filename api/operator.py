"""The operator's key (setting TURNLOG_OPERATOR_KEY): whoever has it may make and change accounts."""

import hashlib
import hmac


class OperatorKey:
    """The key. Compared in constant time; shown nowhere."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._digest = _digest(key)

    def __repr__(self) -> str:
        return "OperatorKey(…)"

    def opens(self, credential: str) -> bool:
        """Whether this is it."""
        return hmac.compare_digest(self._digest, _digest(credential))

    def hidden(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self._key, "…")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
