"""Follows a collection of a real API server: every state that it tells, as it tells it."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.harness.pods import Json

_WATCH = 5  # seconds of one watch, after which the end is looked for


class Feed:
    """Lists and watches a path as the user of a kubeconfig, from its making to `close()`.

    `replace` is given each list's items, `change` each event of a watch; both in a thread of
    the feed's own. Bookmarks are not told.
    """

    def __init__(
        self,
        kubeconfig: Path,
        path: str,
        *,
        replace: Callable[[list[Json]], None] = lambda _items: None,
        change: Callable[[Json], None],
    ) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._host = urllib.parse.urlsplit(cluster["server"]).netloc
        self._path = path
        self._replace, self._change = replace, change
        self._version = ""  # to go on from; "" before a list
        self._ends = threading.Event()
        self.listed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed of {path}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch and its thread."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                if not self._version:
                    self._version = self._list()
                    self.listed.set()
                self._follow()
            except (OSError, http.client.HTTPException, ValueError):
                # The server is away. Versions outlive it; if not it will say so.
                self._ends.wait(0.2)

    def _list(self) -> str:
        with self._ask(self._path) as answer:
            if answer.status != 200:
                raise OSError(f"{answer.status} for {self._path}")
            found = json.loads(answer.read())
        self._replace(found["items"])
        return str(found["metadata"]["resourceVersion"])

    def _follow(self) -> None:
        """Watch once, from the last version on."""
        query = f"watch=1&resourceVersion={self._version}&timeoutSeconds={_WATCH}"
        mark = "&" if "?" in self._path else "?"  # a path may come with a selector
        with self._ask(f"{self._path}{mark}{query}&allowWatchBookmarks=true") as answer:
            if answer.status != 200:
                self._version = ""
                return
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._version = ""
                    return
                self._version = str(event["object"]["metadata"]["resourceVersion"])
                if event["type"] != "BOOKMARK":
                    self._change(event)

    def _ask(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(self._host, timeout=30, context=self._tls)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise
