"""Keeps the node's CSINode, which tells the scheduler and controllers about its CSI drivers.

It is created at the agent's start, and the node is not ready before. A driver's entry is written
when the driver registers (`install`), and removed when the driver is gone. The object is created
again if somebody deletes it, or if the Node is another one. An API server that does not answer is
waited for; one that refuses to store the object at the start for more than two minutes ends the
agent, so that a restart can repair it. Source: initializeCSINode in pkg/volume/csi/csi_plugin.go.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

import trio
from lightkube.models.core_v1 import Node
from lightkube.models.storage_v1 import CSINode
from trio_util import AsyncValue, wait_any

from kubelet_trio.kube import KubeApi, KubeError, KubeUnavailableError, NotFoundError
from kubelet_trio.model import Backoff, Bell, get_logger
from kubelet_trio.node.csi_object import (
    DriverFacts,
    changed_csi_node,
    new_csi_node,
    node_patch,
    owner_of,
    without_replaced,
)
from kubelet_trio.node.errors import CsiNodeError
from kubelet_trio.node.registration import CALL_LIMIT, NodeObject

log = get_logger()
D = TypeVar("D", bound=DriverFacts)

NOT_YET = "CSINode is not yet initialized"
_RETRIES = (0.01, 0.05, 0.25)  # seconds between the tries of one write: updateBackoff upstream
_START_RETRIES = (0.03, 0.24, 1.92, 15.36, 122.88)  # seconds: initBackoff upstream
_JITTER = 0.1
_UNANSWERED = 1.0  # seconds between requests to an API server that has not answered yet
# Seconds between checks that the object still exists: a node may not watch it (the role
# `system:node` has the verb `get` only).
_CHECK = 300.0
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0  # seconds between tries to write changed drivers
_INVALID = 422


class CsiNodeObject:
    """The CSINode of this node. One task runs it; registrations of drivers call `install`."""

    def __init__(self, api: KubeApi, name: str, node: NodeObject, changed: Bell) -> None:
        """Take the seams; `changed` is rung when `problem` changes."""
        self._api = api
        self._name = name
        self._node = node
        self._changed = changed
        self._lock = trio.Lock()  # one driver is written or removed at a time
        self._problem: str | None = NOT_YET
        self._is_reached = False  # the API server has answered a request for the CSINode
        self._written: dict[str, DriverFacts] = {}  # drivers whose facts are written
        self._unsure: set[str] = set()  # names of which a part may be written: a try was cut short
        self._left = Bell()  # rung when a registration has failed, and may have left a part
        self._written_to = ""  # the UID of the Node that has them

    def problem(self) -> str | None:
        """Return why the node is not ready; None once the CSINode exists."""
        return self._problem

    async def run(
        self,
        drivers: AsyncValue[Mapping[str, D]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep the object until cancelled. Ready at once, connected or not.

        Args:
            drivers: the registered drivers by name.
            task_status: started at once.

        Raises `CsiNodeError` if the API server keeps refusing the object at the start.
        """
        task_status.started()
        if self._problem is not None:
            await self._initialize()
        backoff, told = Backoff(_FIRST_DELAY, _LONGEST_DELAY), ""
        while True:
            node = await self._known_node()
            seen = drivers.value
            try:
                await self._sync(node, drivers)
            except (CsiNodeError, KubeUnavailableError) as exc:
                delay = backoff.next_delay()
                if str(exc) != told:
                    told = str(exc)
                    log.warning("csi_node.write_failed", error=told)
            else:
                backoff.reset()
                if told:
                    told = ""
                    log.info("csi_node.written")
                delay = _jittered(_CHECK)
            with trio.move_on_after(delay):
                await wait_any(
                    partial(drivers.wait_value, partial(_is_other, seen)),
                    partial(self._node.value.wait_value, partial(_is_other_node, _uid(node))),
                    self._left.wait_ring,
                )

    async def install(self, driver: DriverFacts) -> None:
        """Write the facts of a driver that registers.

        An API server that does not answer refuses no driver: they are written later.

        Raises `CsiNodeError` with a text for the driver; it must then not be registered.
        """
        if not driver.node_id:
            raise CsiNodeError("error adding CSI driver node info: driverNodeID must not be empty")
        try:
            await self._install(driver)
        except KubeUnavailableError as exc:
            log.warning("csi_node.write_failed", driver=driver.name, error=str(exc))
        finally:
            if driver.name in self._unsure:
                self._left.ring()

    # At the start

    async def _initialize(self) -> None:
        failures = 0
        while True:
            await self._known_node()
            delay = _UNANSWERED
            try:
                write = partial(self._write, (), ())
                async with self._lock:
                    await self._retry("error updating CSINode annotation", write)
                break
            except KubeUnavailableError as exc:
                log.info("csi_node.waiting", error=str(exc))
            except CsiNodeError as exc:
                # A client that still bootstraps its certificate may not read it yet.
                if not self._is_reached:
                    log.info("csi_node.waiting", error=str(exc))
                else:
                    self._tell(f"failed to initialize CSINode: {exc}")
                    if failures == len(_START_RETRIES):
                        text = f"Failed to initialize CSINode after retrying: {exc}"
                        raise CsiNodeError(text) from exc
                    delay = _jittered(_START_RETRIES[failures])
                    failures += 1
            await trio.sleep(delay)
        self._tell(None)
        log.info("csi_node.initialized", node=self._name)

    def _tell(self, problem: str | None) -> None:
        self._problem = problem
        self._changed.ring()

    # Writing

    async def _sync(self, node: Node, drivers: AsyncValue[Mapping[str, D]]) -> None:
        """Write what differs, and check that the object exists.

        Raises `CsiNodeError` for the first driver that is refused, after the others, and
        `KubeUnavailableError`.
        """
        if self._written_to not in ("", _uid(node)):
            self._written.clear()  # a new Node has nothing of it
        self._written_to = _uid(node)
        seen, refused = drivers.value, list[CsiNodeError]()
        steps = [
            partial(self._uninstall, name, drivers)
            for name in sorted({*self._written, *self._unsure} - seen.keys())
        ] + [
            partial(self._install, driver)
            for driver in seen.values()
            if self._written.get(driver.name) != driver
        ]
        for step in steps:
            try:
                await step()
            except CsiNodeError as exc:
                refused.append(exc)
        async with self._lock:
            write = partial(self._write, tuple(self._written.values()), ())
            await self._retry("error updating CSINode", write)
        if refused:
            raise refused[0]

    async def _install(self, driver: DriverFacts) -> None:
        why = "error updating {} object with CSI driver node info: error updating {}"
        patch = partial(self._patch_node, (driver,), ())
        write = partial(self._write, (driver,), ())
        async with self._lock:
            self._unsure.add(driver.name)
            await self._retry(why.format("Node", "node"), patch)
            await self._retry(why.format("CSINode", "CSINode"), write)
            self._written[driver.name] = driver
            self._unsure.discard(driver.name)

    async def _uninstall(self, name: str, drivers: AsyncValue[Mapping[str, D]]) -> None:
        """Remove a driver, unless it is registered by now (unregisterDriver, also upstream after
        a registration that failed).
        """
        async with self._lock:
            if name in drivers.value:
                return
            why = "error uninstalling CSI driver from CSINode object error updating CSINode"
            await self._retry(why, partial(self._write, (), (name,)))
            why = "error removing CSI driver node info from Node object error updating node"
            await self._retry(why, partial(self._patch_node, (), (name,)))
            self._written.pop(name, None)
            self._unsure.discard(name)

    async def _retry(self, why: str, step: Callable[[], Awaitable[None]]) -> None:
        """Try a write, again after a conflict. Needs the lock.

        Raises `CsiNodeError` with all reasons, and `KubeUnavailableError`.
        """
        reasons: dict[str, None] = {}  # each once, in order
        for delay in (*_RETRIES, None):
            try:
                with trio.fail_after(CALL_LIMIT):
                    await step()
                return
            except trio.TooSlowError as exc:
                raise KubeUnavailableError(f"no answer within {CALL_LIMIT:g}s") from exc
            except (KubeError, CsiNodeError) as exc:
                reasons[str(exc)] = None
                cause = exc
            if delay is None or not self._is_reached:
                break
            await trio.sleep(_jittered(delay))
        text = "; ".join(reasons)
        raise CsiNodeError(f"{why}: timed out waiting for the condition; caused by: {text}") from (
            cause
        )

    async def _write(self, install: Collection[DriverFacts], remove: Collection[str]) -> None:
        """Write the CSINode once.

        Raises `KubeError`, `KubeUnavailableError` and `CsiNodeError`.
        """
        uid = _uid(self._node.value.value)
        if not uid:
            raise KubeUnavailableError(f"the object of node {self._name} is not known yet")
        try:
            found = await self._api.get(CSINode, self._name)
        except NotFoundError:
            self._is_reached = True
            known = {**self._written, **{driver.name: driver for driver in install}}
            kept = [driver for name, driver in known.items() if name not in remove]
            await self._api.create(new_csi_node(self._name, uid, kept))
            return
        self._is_reached = True
        await self._check_owner(found, uid)
        wanted = changed_csi_node(found, install, remove)
        if wanted is None:
            return
        try:
            await self._api.update(wanted)
        except KubeError as exc:
            less = without_replaced(found, wanted) if exc.code == _INVALID else None
            if less is None:
                raise
            cleared = await self._api.update(less)
            again = changed_csi_node(cleared, install, remove)
            if again is not None:
                await self._api.update(again)

    async def _check_owner(self, found: CSINode, uid: str) -> None:
        """Delete the object of an earlier Node of this name. Raises `CsiNodeError` then."""
        owner = owner_of(found, self._name, uid)
        if owner == uid:
            return
        ids = f'(oldNodeID="{owner}", newNodeID="{uid}")'
        try:
            await self._api.delete(CSINode, self._name)
        except KubeError as exc:
            text = f'error deleting existing CSINode "{self._name}": {exc}'
            raise CsiNodeError(text) from exc
        raise CsiNodeError(f'CSINode "{self._name}" was owned by different node {ids}, deleted it')

    async def _patch_node(self, install: Collection[DriverFacts], remove: Collection[str]) -> None:
        """Write a driver's names to the Node once. Raises as `_write`."""
        node = await self._api.get(Node, self._name)
        patch = node_patch(node, install, remove)
        if patch:
            # The subresource: a node may not change its Node's metadata otherwise on old servers.
            node = await self._api.patch(Node, self._name, patch, subresource="status")
        self._node.put(node)

    async def _known_node(self) -> Node:
        node: Node = await self._node.value.wait_value(lambda node: node is not None)
        return node


def _uid(node: Node | None) -> str:
    return (node.metadata.uid if node is not None and node.metadata is not None else None) or ""


def _is_other(before: object, now: object) -> bool:
    return now is not before


def _is_other_node(uid: str, now: Node | None) -> bool:
    return now is not None and _uid(now) != uid


def _jittered(delay: float) -> float:
    return delay * random.uniform(1, 1 + _JITTER)
