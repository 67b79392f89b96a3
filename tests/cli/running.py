"""A control socket served by a thread, as the command line meets it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from kubelet_trio.server import (
    SOCKET_NAME,
    add_exec,
    add_images,
    add_node,
    add_plan,
    add_record,
    add_stats,
    add_topology,
    add_volumes,
    add_why,
    control_router,
    open_unix,
    serve_http,
)
from tests.server.fake_view import FakeView
from tests.server.node_view import FakeKubeletApiView


class ServedView:
    """A view behind a socket; `do` changes it on the thread that owns it."""

    def __init__(self, view: FakeView, root: Path) -> None:
        self.view = view
        self.root = root
        self.summary = b"{}"  # what is used
        self.volumes = b'{"items":[]}'
        self.topology = b"{}"
        self.why: object = None  # of every pod
        self.plan: Callable[[bytes, bool], object] = lambda _given, _manifests: {}
        self.node = b"{}"
        self.on_record: Callable[[], None] = lambda: None
        self._ready: queue.Queue[trio.lowlevel.TrioToken] = queue.Queue()
        self._stop = trio.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))

    def __enter__(self) -> ServedView:
        self._thread.start()
        self._token = self._ready.get(timeout=10)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._stop.set)
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def do(self, change: Callable[[], object]) -> None:
        trio.from_thread.run_sync(change, trio_token=self._token)

    async def _summary(self) -> bytes:
        return self.summary

    async def _plan(self, given: bytes, with_manifests: bool) -> object:
        return self.plan(given, with_manifests)

    async def _record(self) -> object:
        self.on_record()
        return {"entries": 1, "lost": 0, "bytes": 1}

    async def _volumes(self) -> bytes:
        return self.volumes

    async def _topology(self) -> bytes:
        return self.topology

    async def _node(self) -> bytes:
        return self.node

    async def _serve(self) -> None:
        async with trio.open_nursery() as self.nursery:
            nursery = self.nursery
            listener = open_unix(self.root / SOCKET_NAME)
            router = control_router(self.view)
            add_stats(router, self._summary)
            add_record(router, self._record)
            add_volumes(router, self._volumes)
            add_topology(router, self._topology)
            add_plan(router, self._plan)
            add_why(router, self.view, lambda _uid: self.why)
            add_node(router, self._node)
            if isinstance(self.view, FakeKubeletApiView):
                add_images(router, self.view)
                add_exec(router, self.view)
            await nursery.start(serve_http, router, [listener])
            self._ready.put(trio.lowlevel.current_trio_token())
            await self._stop.wait()
            nursery.cancel_scope.cancel()


@contextmanager
def served(view: FakeView, root: Path) -> Iterator[ServedView]:
    with ServedView(view, root) as running:
        yield running
