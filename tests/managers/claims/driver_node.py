"""A node with DRA drivers in memory: sockets are streams, time is virtual."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.managers.claims import ClaimRef, DraDrivers
from kubelet_trio.model import Meter
from kubelet_trio.testing.dra import FakeDraDriver
from tests.harness.dra_services import dra_server

CLAIM = ClaimRef("ns", "gpu", "uid-1")
OTHER = ClaimRef("ns", "nic", "uid-2")


class DraNode:
    """The registered drivers of a node, and the sockets of their instances."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.notes: list[Callable[[str, bool], None]] = []  # called with changes
        self.changes: list[tuple[str, bool]] = []
        self.unwell: list[tuple[str, str, str, tuple[str, str]]] = []  # with the time's health
        self.drivers = DraDrivers(
            self.meter,
            dial=self._dial,
            on_health=self._note_health,
            on_change=self._note_change,
        )
        self._served: dict[str, FakeDraDriver] = {}  # by path
        self._nurseries: dict[str, trio.Nursery] = {}
        self._tasks: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._tasks:
            task_status.started()
            await trio.sleep_forever()

    async def start(self, driver: FakeDraDriver, path: str = "/dra.sock") -> None:
        """Let an instance live and listen at a path, until it dies or is stopped."""
        assert self._tasks is not None
        await self._tasks.start(partial(self._live, driver, path))

    def stop(self, path: str = "/dra.sock") -> None:
        """Kill what listens at a path."""
        self._nurseries[path].cancel_scope.cancel()

    async def register(
        self,
        driver: FakeDraDriver,
        path: str = "/dra.sock",
        versions: Sequence[str] | None = None,
    ) -> trio.CancelScope:
        """Start an instance, register and connect it; cancelling the result deregisters it."""
        assert self._tasks is not None
        if path not in self._served:
            await self.start(driver, path)
        scope: trio.CancelScope = await self._tasks.start(
            self._registered, driver.name, path, driver.services if versions is None else versions
        )
        await wait_all_tasks_blocked()
        return scope

    def calls(self, method: str) -> dict[str, int]:
        """Return how many calls were measured, by status."""
        found = self.meter.histograms("dra_grpc_operations_duration_seconds")
        return {labels[2]: h.count for labels, h in found if labels[1].endswith(f"/{method}")}

    async def _registered(
        self,
        name: str,
        path: str,
        versions: Sequence[str],
        *,
        task_status: trio.TaskStatus[trio.CancelScope],
    ) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.drivers.run_plugin, name, path, versions)
                task_status.started(scope)

    async def _live(
        self, driver: FakeDraDriver, path: str, *, task_status: trio.TaskStatus[None]
    ) -> None:
        try:
            async with trio.open_nursery() as connections:
                self._served[path], self._nurseries[path] = driver, connections
                task_status.started()
                await driver.run()
                connections.cancel_scope.cancel()
        finally:
            del self._served[path], self._nurseries[path]

    async def _dial(self, path: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        driver = self._served.get(path)
        if driver is None or self._nurseries[path].cancel_scope.cancel_called:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        near, far = memory_stream_pair()
        self._nurseries[path].start_soon(dra_server(driver, path).serve_stream, far)
        return near

    def _note_change(self, driver: str, is_usable: bool) -> None:
        self.changes.append((driver, is_usable))
        for note in self.notes:
            note(driver, is_usable)

    def _note_health(self, driver: str, pool: str, device: str) -> None:
        shown = self.drivers.healths.health(driver, pool, device)
        self.unwell.append((driver, pool, device, shown))


@asynccontextmanager
async def open_node() -> AsyncIterator[DraNode]:
    """Run a node within a block."""
    async with trio.open_nursery() as nursery:
        node = DraNode()
        await nursery.start(node.run)
        yield node
        nursery.cancel_scope.cancel()
