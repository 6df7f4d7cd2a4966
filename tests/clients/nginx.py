"""Debian's nginx in front of an API process, with the settings that it is installed with and one `proxy_pass`."""

import os
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from system.product import eventually

from clients.programs import required
from infra.ports import free_port

CONFIGURATION = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 768; }}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    server_tokens build;
    default_type application/octet-stream;
    types {{ text/html html; text/javascript js mjs; }}
    gzip on;
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {to};
            {settings}
        }}
        location /pages/ {{ root {pages}; }}
    }}
}}
"""


class Nginx:
    """A running nginx. A context manager, which stops it.

    Args:
        to: the address of the API.
        folder: an empty folder, for everything that it writes.
        settings: what stands beside `proxy_pass`; nothing by default.
    """

    def __init__(self, to: str, folder: Path, settings: str = "") -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        pages = Path(__file__).resolve().parent
        user = "user root;" if os.geteuid() == 0 else ""
        text = CONFIGURATION.format(user=user, folder=folder, port=port, to=to, settings=settings, pages=pages)
        (folder / "nginx.conf").write_text(text)
        command = [str(required("nginx")), "-p", str(folder), "-c", str(folder / "nginx.conf")]
        with (folder / "output").open("wb") as output:
            self._child = subprocess.Popen(command, stdout=output, stderr=output)
        eventually("nginx answers", self._answers, within_s=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop it; connections are closed."""
        self._child.terminate()
        self._child.wait(10)

    def _answers(self) -> bool:
        written = (self._folder / "output").read_text()
        assert self._child.poll() is None, f"nginx has ended:\n{written}"
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
