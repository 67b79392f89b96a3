"""A registry on the loopback, read-only: what is there can be taken away, or made to hang."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pack.oci import MANIFEST_TYPE, digest
from tests.harness.images import Image, encode


class Registry:
    """Serves images by `<repository>:<tag>`; runtimes take 127.0.0.1 without TLS.

    `let_through` is set unless requests shall hang; `logins` has `user:password` of the
    repositories that are not for everybody.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.let_through = threading.Event()
        self.let_through.set()
        self.asked = threading.Event()
        self.logins: dict[str, str] = {}
        self._blobs: dict[str, bytes] = {}
        self._tags: dict[str, bytes] = {}

    def add(self, name: str, image: Image) -> str:
        """Offer an image as `name` (`repository:tag`) and return its full reference."""
        blobs = encode(image)
        self._blobs |= {digest(blob): blob for blob in blobs}
        self._tags[name] = blobs.manifest
        return self.reference(name)

    def reference(self, name: str) -> str:
        return f"127.0.0.1:{self.port}/{name}"

    def admits(self, path: str, authorization: str | None) -> bool:
        """Return whether a request may have what is at its path."""
        repository = path.partition("/v2/")[2].rsplit("/", 2)[0]
        login = self.logins.get(repository)
        if login is None:
            return True
        return authorization == f"Basic {base64.b64encode(login.encode()).decode()}"

    def find(self, path: str) -> tuple[str, bytes] | None:
        """Return content type and content of a request's path."""
        _, _, rest = path.partition("/v2/")
        if not rest:
            return "application/json", b"{}"
        repository, kind, name = rest.rsplit("/", 2)
        if kind == "blobs":
            found, content_type = self._blobs.get(name), "application/octet-stream"
        else:
            tagged = self._tags.get(f"{repository}:{name}")
            found, content_type = tagged or self._blobs.get(name), MANIFEST_TYPE
        return None if found is None else (content_type, found)


@contextmanager
def open_registry() -> Iterator[Registry]:
    """Serve a registry on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.set()
            registry.let_through.wait(60)
            if not registry.admits(self.path, self.headers.get("Authorization")):
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="tests"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            found = registry.find(self.path)
            content_type, content = found or ("text/plain", b"no such thing\n")
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", digest(content))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's name
            """Say nothing: the tests do."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry = Registry(server.server_address[1])
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield registry
        finally:
            registry.let_through.set()
            server.shutdown()
            serving.join()
