"""Removes the ResourceSlices of drivers that are gone, so that no more pods are scheduled to them.

At the agent's start no driver is registered, and some may never come back: all slices of the node
go. Later those of a driver go once it has had no connected instance for 30 s, enough to restart a
pod. Drivers publish their slices again when they are back.

Source: KEP-3063 and wipeResourceSlices in pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

import trio

from kubelet_trio.kube import API_ERRORS, KubeApi
from kubelet_trio.model import Backoff, Bell, get_logger

log = get_logger()

WIPING_DELAY = 30.0  # s: defaultWipingDelay
_ALL = ""  # stands for all drivers
_FIRST_RETRY, _LONGEST_RETRY, _JITTER = 1.0, 300.0, 0.2  # s, s, share


class SliceRemovalError(Exception):
    """The API server did not remove ResourceSlices, or cannot be reached. Retried."""


class NodeSlices(Protocol):
    """The ResourceSlices of this node, at the API server."""

    async def remove(self, driver: str) -> None:
        """Remove the slices of a driver; "": of all. There may be none.

        Raises:
            SliceRemovalError: they are not removed.
        """
        ...


class ApiSlices:
    """Implements `NodeSlices` at an API server."""

    def __init__(self, api: KubeApi, node: str) -> None:
        """`node` is the node's name."""
        self._api = api
        self._node = node

    async def remove(self, driver: str) -> None:
        # Not at the top: the models of the API's group take memory.
        from lightkube.models.resource_v1 import ResourceSlice

        # A kubelet may delete those of its node only; the API server wants to see that.
        selector = f"spec.nodeName={self._node}"
        if driver:
            selector += f",spec.driver={driver}"
        try:
            # An API server before 1.34 has none, and would refuse this as forbidden.
            if await self._api.serves(ResourceSlice):
                await self._api.delete_collection(ResourceSlice, field_selector=selector)
        except API_ERRORS as exc:
            raise SliceRemovalError(str(exc)) from exc


@dataclass(eq=False, slots=True)
class _Removal:
    """The slices of one driver are to go at a moment, unless it comes back."""

    driver: str
    at: float  # as `trio.current_time`
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_started: bool = False


class SliceCleaner:
    """Knows which drivers are gone, and removes their slices.

    After a crash the supervisor calls `run` again on the same object, which continues.
    """

    def __init__(self, slices: NodeSlices, delay: float = WIPING_DELAY) -> None:
        """`delay` is the time in seconds that a driver has to come back."""
        self._slices = slices
        self._delay = delay
        self._removals = {_ALL: _Removal(_ALL, at=0.0)}
        self._changed = Bell()

    def note(self, driver: str, is_usable: bool) -> None:
        """Take whether a driver has an instance that is connected now; the same again is fine."""
        if is_usable:
            removal = self._removals.pop(driver, None)
            if removal is not None:
                removal.scope.cancel()
        elif driver not in self._removals:
            self._removals[driver] = _Removal(driver, trio.current_time() + self._delay)
            self._changed.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Remove slices when it is time, until cancelled."""
        for removal in self._removals.values():  # those that a crash has interrupted
            removal.scope, removal.is_started = trio.CancelScope(), False
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                for removal in self._removals.values():
                    if not removal.is_started:
                        removal.is_started = True
                        nursery.start_soon(self._remove, removal)
                await self._changed.wait_ring()

    async def _remove(self, removal: _Removal) -> None:
        """Remove slices, again until that succeeds or the driver is back."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        problem = ""
        with removal.scope:
            await trio.sleep_until(removal.at)
            while True:
                try:
                    await self._slices.remove(removal.driver)
                    break
                except SliceRemovalError as exc:
                    if str(exc) != problem:
                        problem = str(exc)
                        log.warning("dra.slices_kept", driver=removal.driver, error=problem)
                # The jitter keeps the nodes of a restarted cluster apart.
                await trio.sleep(backoff.next_delay() * random.uniform(1, 1 + _JITTER))
            log.info("dra.slices_removed", driver=removal.driver)
            if self._removals.get(removal.driver) is removal:
                del self._removals[removal.driver]
