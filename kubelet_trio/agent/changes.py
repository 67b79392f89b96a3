"""Passes changes that concern pods to the registry, which is built after the rooms they come from.

The PLEG, the runtime's health and the objects are parts of what every pod worker uses, so they
exist before the registry; and they report to it. Before `subscribe` there are no workers, so a
change then needs no receiver.
"""

from __future__ import annotations

from typing import Protocol

from kubelet_trio.model import PodUid


class PodListener(Protocol):
    """Receives changes; see `PodRegistry`. Its methods never block."""

    def wake(self, uid: PodUid) -> None:
        """The runtime has news of a pod, known to the agent or not."""
        ...

    def objects_changed(self, uid: PodUid) -> None:
        """An object that a pod refers to has changed."""
        ...

    def wake_all(self) -> None:
        """Something that concerns every pod has changed, such as the runtime's state."""
        ...


class PodChanges:
    """A `PodListener` that hands on to those that have subscribed."""

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
