"""How long set-up and teardown of volumes take, told to the meter under the Go kubelet's names.

What blocks runs in a worker thread and writes plain rows; the meter is told in trio's. Which
volumes are set up is remembered as far as this life of the agent has set them up.

Source: pkg/volume/util/metrics.go and pkg/kubelet/volumemanager/metrics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kubelet_trio.model import STORAGE, Meter, PodUid
from kubelet_trio.volumes.layout import PLUGINS

_DURATION = "storage_operation_duration_seconds"


@dataclass(slots=True)
class Row:
    """One operation, in seconds."""

    kind: str
    took: float = 0.0
    is_done: bool = False


@dataclass(slots=True)
class VolumeMeter:
    """See the module."""

    meter: Meter
    _wanted: dict[PodUid, tuple[str, ...]] = field(default_factory=dict)  # plugin names
    _set_up: dict[PodUid, tuple[str, ...]] = field(default_factory=dict)

    def wants(self, uid: PodUid, kinds: Iterable[str]) -> None:
        """A pod's volumes are to be set up: as far as known, all of them."""
        self._wanted[uid] = tuple(PLUGINS[kind] for kind in kinds if kind in PLUGINS)

    def mounted(self, uid: PodUid, rows: Iterable[Row], *, is_first: bool = True) -> None:
        """Volumes of a pod were set up, or could not be: all of them, or those that change."""
        done = []
        for row in rows:
            self._tell("volume_mount", row)
            if row.is_done:
                done.append(_plugin(row.kind))
        if done and is_first:
            self._set_up[uid] = tuple(done)

    @contextmanager
    def unmounting(self, uid: PodUid) -> Iterator[None]:
        """Around the teardown of all of a pod's volumes: each counts with the time of all."""
        row, began = Row(""), time.perf_counter()
        try:
            yield
            row.is_done = True
        finally:
            row.took = time.perf_counter() - began
            for plugin in self._set_up.get(uid, ()):
                self._tell("volume_unmount", row, plugin)
            if row.is_done:
                self._set_up.pop(uid, None)
                self._wanted.pop(uid, None)

    def totals(self) -> Mapping[tuple[str, str], int]:
        """Return how many volumes there are, by plugin and state."""
        states = (
            ("desired_state_of_world", self._wanted),
            ("actual_state_of_world", self._set_up),
        )
        return Counter(
            (plugin, state)
            for state, pods in states
            for plugins in pods.values()
            for plugin in plugins
        )

    def _tell(self, operation: str, row: Row, plugin: str = "") -> None:
        status = "success" if row.is_done else "fail-unknown"
        labels = "false", operation, status, plugin or _plugin(row.kind)
        self.meter.observe(_DURATION, row.took, labels, STORAGE)


def _plugin(kind: str) -> str:
    return PLUGINS.get(kind, kind)


@contextmanager
def timed(rows: list[Row], kind: str) -> Iterator[None]:
    """Add a row for what is done inside; one that raises has failed."""
    row, began = Row(kind), time.perf_counter()
    rows.append(row)
    try:
        yield
        row.is_done = True
    finally:
        row.took = time.perf_counter() - began
