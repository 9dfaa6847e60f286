"""The page from this machine, for a file of this machine: a server for one person, on the loopback address alone.

It sends the page's files and answers the page's questions, under a path that nobody can guess. It reads no other file
and writes none. Nothing is fetched from a network.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from batchbridge.playground.answers import answer
from batchbridge.playground.links import state_in_link
from batchbridge.playground.pasted_text import kind_of_text
from batchbridge.render.html import PAGES

PAGE = Path(__file__).parent / "page"
LARGEST_QUESTION = 8 << 20
"""Bytes of a question."""
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
}
_IN_BROWSER = 'data-transport="worker"'


@cache
def page_files() -> dict[str, bytes]:
    """Name -> content of every file of the page, as a browser asks for them."""
    found = {file.name: file.read_bytes() for file in sorted(PAGE.iterdir()) if file.suffix in _KINDS}
    return {**found, "page.css": (PAGES / "page.css").read_bytes()}


class LivePage:
    """A server with the page of one file. text, path: the file; fixed: parts of every question."""

    def __init__(self, text: str, path: Path, state: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self._kind, self._path, self._fixed = kind_of_text(text), path, dict(fixed)
        self._token = secrets.token_urlsafe(12)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"
        said = {key: value for key, value in {"text": text, **state}.items() if value not in (None, "", {})}
        self.address = f"http://{self.host}/{self._token}/{state_in_link(said)}"
        """The address that a browser opens."""

    def serve(self) -> None:
        """Answers until `close` is called, or the process is interrupted; then gives the port back."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()

    def close(self) -> None:
        """Ends `serve`, which runs in another thread."""
        self._server.shutdown()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question of the page; the file is read where it lies, as long as it is such a text."""
        text = question.get("text")
        own = isinstance(text, str) and kind_of_text(text) == self._kind
        return answer({**question, **self._fixed, **({"name": str(self._path)} if own else {})})

    def file(self, path: str) -> tuple[bytes, str] | None:
        """The content and the kind of what stands under a path; None: nothing does."""
        folder = f"/{self._token}/"
        if not path.startswith(folder):
            return None
        name = path.removeprefix(folder).partition("?")[0] or "index.html"
        data = page_files().get(name)
        if data is not None and name == "index.html":
            data = data.replace(_IN_BROWSER.encode(), b'data-transport="server"')
        return None if data is None else (data, _KINDS[Path(name).suffix])

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = page.file(self.path) if self._is_own() else None
                if found is None:
                    self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain")
                else:
                    self._send(HTTPStatus.OK, *found)

            def do_POST(self) -> None:
                size = self.headers.get("Content-Length", "")
                known = self._is_own() and self.path == f"/{page._token}/answer"
                if not known or not size.isdecimal() or int(size) > LARGEST_QUESTION:
                    self.close_connection = True
                    self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain")
                    return
                try:
                    question = json.loads(self.rfile.read(int(size)))
                except ValueError:
                    question = None
                found = page.answer(question if isinstance(question, dict) else {"want": ""})
                self._send(HTTPStatus.OK, json.dumps(found).encode(), "application/json")

            def _is_own(self) -> bool:
                """Whether the page asks, and no other site under a name that leads here."""
                origin = self.headers.get("Origin")
                return self.headers.get("Host") == page.host and origin in (None, f"http://{page.host}")

            def _send(self, status: HTTPStatus, data: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the terminal is the person's."""

        return Handler
