"""Serve requests to a fake API server: latency, faults, broken connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from kubelet_trio.kube import KubeError, KubeTimeoutError, KubeUnavailableError
from kubelet_trio.testing.kube.faults import KubeFault, KubeFaultKind, KubeFaults, KubeRequest

T = TypeVar("T")


class Desk:
    """Logs every request, and serves it with latency and faults."""

    def __init__(self) -> None:
        self.faults = KubeFaults()
        self.requests: list[KubeRequest] = []
        self.latency = 0.0  # seconds of each request
        self.timeout = 30.0  # seconds after which a client cancels a request
        self.is_down = False
        self.is_hanging = False
        self.is_mute = False
        self.connection = trio.Event()  # set when connections break, and replaced then
        self._answering = trio.Event()

    def note(self, request: KubeRequest) -> None:
        self.requests.append(request)

    def go_down(self) -> None:
        """Break requests in progress and watches, and refuse new connections."""
        self.is_down = True
        self.cut()

    def hang(self) -> None:
        """Accept requests and never respond; watches stay open and send nothing."""
        self.is_hanging = True

    def mute(self) -> None:
        """Respond to requests, but send nothing on watches, like a proxy that lost its backend."""
        self.is_mute = True

    def come_back(self) -> None:
        """End all of these states. Hung requests continue; a mute watch stays mute."""
        self.is_down = self.is_hanging = self.is_mute = False
        self._answering.set()
        self._answering = trio.Event()

    def cut(self) -> None:
        """Break every open connection."""
        self.connection.set()
        self.connection = trio.Event()

    async def wait_answering(self) -> None:
        while self.is_hanging:
            await self._answering.wait()

    async def serve(self, request: KubeRequest, effect: Callable[[], T]) -> T:
        """Serve one request.

        Raises:
            KubeError: the server refused it, or a fault.
            KubeUnavailableError: the connection broke, or there was no response in time.
        """
        self.note(request)
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise KubeUnavailableError(f"{request.verb} {request.resource}: connection refused")
        fault = self.faults.take(request)
        # `connection` is replaced when connections break: keep the one that this request is on.
        outcome: list[T] = []
        refusal: KubeError | KubeUnavailableError | None = None
        connection = self.connection
        with trio.move_on_after(self.timeout) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, connection, nursery.cancel_scope)
                # Raised below: a nursery would wrap it in a group.
                try:
                    outcome.append(await self._attempt(request, fault, effect))
                except (KubeError, KubeUnavailableError) as exc:
                    refusal = exc
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise KubeTimeoutError(f"{request.verb} {request.resource}: no answer in time")
        if refusal is not None:
            raise refusal
        # Also if the request took effect: the connection broke before its response arrived.
        if not outcome or connection.is_set():
            raise KubeUnavailableError(f"{request.verb} {request.resource}: connection reset")
        if fault is not None and fault.kind is KubeFaultKind.LOST_REPLY:
            raise KubeUnavailableError(f"{request.verb} {request.resource}: unexpected EOF")
        return outcome[0]

    async def _attempt(
        self, request: KubeRequest, fault: KubeFault | None, effect: Callable[[], T]
    ) -> T:
        await trio.sleep(self.latency)
        await self.wait_answering()
        if fault is not None:
            await _before_effect(request, fault)
        return effect()


async def _cancel_when(broken: trio.Event, scope: trio.CancelScope) -> None:
    await broken.wait()
    scope.cancel()


async def _before_effect(request: KubeRequest, fault: KubeFault) -> None:
    if fault.kind is KubeFaultKind.HANG:
        await fault.lifted.wait()
    elif fault.kind is KubeFaultKind.SLOW:
        await trio.sleep(fault.delay)
    elif fault.kind is KubeFaultKind.BROKEN:
        raise KubeUnavailableError(f"{request.verb} {request.resource}: connection refused")
    elif fault.kind is KubeFaultKind.ERROR:
        await trio.sleep(fault.delay)
        raise fault.error or KubeError(500, "InternalError", "injected failure")
