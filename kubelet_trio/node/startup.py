"""Measures how long the node took from its boot to Ready, under the Go kubelet's metric names.

Only of a node whose object this agent has created, and once: an agent that starts again on a known
node measures nothing. Source: pkg/kubelet/util/node_startup_latency_tracker.go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kubelet_trio.model import Meter, WallClock


@dataclass(slots=True)
class NodeStartup:
    """Takes the moments of the start, and sets the gauges. Made when the agent starts."""

    meter: Meter
    clock: WallClock
    uptime: float = field(default_factory=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))  # s
    _began_at: float = field(init=False)  # Unix seconds, as all below
    _attempt_at: float | None = None
    _created_at: float | None = None
    _is_ready: bool = False

    def __post_init__(self) -> None:
        self._began_at = self.clock.time()

    def note_attempt(self) -> None:
        """Note that the node is about to be registered."""
        if self._attempt_at is None:
            self._attempt_at = self.clock.time()

    def note_created(self) -> None:
        """Note that the node's object has been created."""
        if self._attempt_at is None or self._created_at is not None:
            return
        self._created_at = self.clock.time()
        self._set("pre_kubelet_duration", self.uptime)
        self._set("pre_registration_duration", self._attempt_at - self._began_at)
        self._set("registration_duration", self._created_at - self._attempt_at)

    def note_ready(self) -> None:
        """Note that the API server has been told that the node is Ready."""
        if self._created_at is None or self._is_ready:
            return
        self._is_ready = True
        now = self.clock.time()
        self._set("post_registration_duration", now - self._created_at)
        self._set("duration", self.uptime + now - self._began_at)

    def _set(self, name: str, seconds: float) -> None:
        self.meter.set(f"kubelet_node_startup_{name}_seconds", seconds)
