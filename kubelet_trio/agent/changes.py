"""Passes changes of pods to the registry, which is built after the rooms that report them.

Every pod worker uses the PLEG, the runtime's health and the objects. So they exist before the
registry, and they report to it. Before `subscribe` there are no workers, so a change then needs no
receiver.
"""

from __future__ import annotations

from typing import Protocol

from kubelet_trio.model import PodUid


class PodListener(Protocol):
    """Receives changes; see `PodRegistry`. Its methods never block."""

    def wake(self, uid: PodUid) -> None:
        """Handle a change of a pod at the runtime; the agent may not know the pod."""
        ...

    def objects_changed(self, uid: PodUid) -> None:
        """Handle a change of an object that a pod refers to."""
        ...

    def wake_all(self) -> None:
        """Handle a change that concerns every pod, such as the runtime's state."""
        ...


class PodChanges:
    """A `PodListener` that forwards to its subscribers."""

    def __init__(self) -> None:
        self._listeners: list[PodListener] = []

    def subscribe(self, listener: PodListener) -> None:
        """Pass every later change to `listener`."""
        self._listeners.append(listener)

    def wake(self, uid: PodUid) -> None:
        for listener in self._listeners:
            listener.wake(uid)

    def objects_changed(self, uid: PodUid) -> None:
        for listener in self._listeners:
            listener.objects_changed(uid)

    def wake_all(self) -> None:
        for listener in self._listeners:
            listener.wake_all()
