"""An issuer of tokens: a real HTTP server with a JWK set, whose keys are rotated and whose address can be down."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "turnlog-tests"
_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def private_key(algorithm: str) -> Any:
    """A new key for this algorithm; for RSA always the same one, since making one takes long."""
    if algorithm.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[algorithm])
    return ed25519.Ed25519PrivateKey.generate() if algorithm == "EdDSA" else _RSA


def jwk_of(key: Any, algorithm: str, kid: str | None, **members: Any) -> dict[str, Any]:
    """The public part of a key, as a JWK set has it."""
    public: Any = get_default_algorithms()[algorithm]
    made: dict[str, Any] = public.to_jwk(key.public_key(), as_dict=True)
    return made | ({} if kid is None else {"kid": kid}) | members


class FakeIssuer:
    """`url` serves `document`; `status` and `hold_s` make trouble; `asked` counts."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {}
        self.document: bytes | None = None
        self.status = 200
        self.asked = 0
        self.held = threading.Event()
        self.held.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                outer.held.wait(20)
                body = outer.document if outer.document is not None else outer.jwks()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.name = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.name}/jwks.json"

    def rotate(self, kid: str, algorithm: str = "ES256", *, keep: bool = False) -> None:
        """A new key, instead of those before or beside them."""
        if not keep:
            self.keys.clear()
        self.keys[kid] = (algorithm, private_key(algorithm))

    def jwks(self) -> bytes:
        """What it publishes."""
        return json.dumps({"keys": [jwk_of(key, alg, kid) for kid, (alg, key) in self.keys.items()]}).encode()

    def claims(self, **claims: Any) -> dict[str, Any]:
        """Good claims; None takes one away."""
        now_s = claims.pop("now_s", int(time.time()))
        good = {"iss": self.name, "aud": AUDIENCE, "sub": "ada", "account": "alice", "iat": now_s, "exp": now_s + 600}
        return {name: value for name, value in (good | claims).items() if value is not None}

    def token(self, kid: str | None = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token, signed with the newest key or the one named."""
        named = kid or list(self.keys)[-1]
        algorithm, key = self.keys[named]
        return jwt.encode(self.claims(**claims), key, algorithm=algorithm, headers={"kid": named} | (header or {}))

    def setting(self, **members: Any) -> str:
        """As TURNLOG_JWT_ISSUERS names it."""
        return json.dumps([{"issuer": self.name, "jwks_url": self.url, "audience": AUDIENCE} | members])

    def close(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def issuer() -> Iterator[FakeIssuer]:
    made = FakeIssuer()
    made.rotate("one")
    try:
        yield made
    finally:
        made.close()
