"""Measure set-up and teardown of volumes, under the Go kubelet's metric names.

Worker threads only append rows; the meter is not thread-safe, so the Trio thread records them. The
totals count volumes that this process has set up, not those of an earlier one.

Source: pkg/volume/util/metrics.go and pkg/kubelet/volumemanager/metrics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import trio

from kubelet_trio.model import STORAGE, Meter, PodUid
from kubelet_trio.objects import ObjectError, csi_driver_key
from kubelet_trio.volumes.layout import PLUGINS
from kubelet_trio.volumes.spec import VolumeSpec

_DURATION = "storage_operation_duration_seconds"
_OVERALL = "volume_operation_total_seconds"
_UNDO = {"volume_mount": "volume_unmount", "map_volume": "unmap_volume"}


@dataclass(slots=True)
class Operation:
    """One operation, in seconds."""

    kind: str  # of the volume, or the name of its plugin
    took: float = 0.0
    is_done: bool = False
    name: str = "volume_mount"
    is_migrated: bool = False


@dataclass(slots=True)
class VolumeMeter:
    """Records operations, and counts desired and actual volumes by pod."""

    meter: Meter
    _desired: dict[PodUid, tuple[str, ...]] = field(default_factory=dict)  # plugin names
    # Plugin names, and the names of the operations that undo the set-ups.
    _set_up: dict[PodUid, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    _desired_at: dict[PodUid, float] = field(default_factory=dict)  # until they are set up

    def note_desired(self, uid: PodUid, kinds: Iterable[str]) -> None:
        """Replace the kinds of volumes, or names of plugins, that a pod shall have."""
        names = map(_plugin, kinds)
        if uid not in self._desired:
            self._desired_at[uid] = trio.current_time()
        self._desired[uid] = tuple(name for name in names if "/" in name)  # else a claim

    def note_mounted(
        self, uid: PodUid, rows: Iterable[Operation], *, is_first: bool = True
    ) -> None:
        """Record set-ups; those of `is_first` replace the volumes that the pod has."""
        done = []
        for row in rows:
            self._observe(row)
            if row.is_done:
                done.append((_plugin(row.kind), _UNDO[row.name]))
        if done and is_first:
            self._set_up[uid] = tuple(done)
        since = self._desired_at.pop(uid, None) if done and is_first else None
        if since is not None:
            # GenerateMountVolumeFunc: from the wish to the mount, failed attempts included.
            took = trio.current_time() - since
            for plugin, _ in done:
                self.meter.observe(_OVERALL, took, ("overall_volume_mount", plugin), STORAGE)

    @contextmanager
    def unmounting(self, uid: PodUid) -> Iterator[None]:
        """Record a teardown while the block runs it; every volume counts with the whole time."""
        rows: list[Operation] = []
        try:
            with timed(rows, ""):
                yield
        finally:
            (row,) = rows
            for plugin, name in self._set_up.get(uid, ()):
                self._observe(replace(row, kind=plugin, name=name))
            if row.is_done:
                self._set_up.pop(uid, None)
                self._desired.pop(uid, None)
                self._desired_at.pop(uid, None)

    @contextmanager
    def operation(self, name: str, plugin: str) -> Iterator[None]:
        """Record the block as an operation: failed if it raises, or is cancelled."""
        rows: list[Operation] = []
        try:
            with timed(rows, plugin, name):
                yield
        finally:
            self._observe(*rows)

    def totals(self) -> Mapping[tuple[str, str], int]:
        """Return the number of volumes, by plugin and state."""
        desired = (plugin for plugins in self._desired.values() for plugin in plugins)
        actual = (plugin for made in self._set_up.values() for plugin, _ in made)
        return Counter(
            [
                *((plugin, "desired_state_of_world") for plugin in desired),
                *((plugin, "actual_state_of_world") for plugin in actual),
            ]
        )

    def _observe(self, row: Operation) -> None:
        status = "success" if row.is_done else "fail-unknown"
        migrated = "true" if row.is_migrated else "false"
        labels = migrated, row.name, status, _plugin(row.kind)
        self.meter.observe(_DURATION, row.took, labels, STORAGE)


def _plugin(kind: str) -> str:
    return PLUGINS.get(kind, kind)


def plugin_name(spec: VolumeSpec) -> str:
    """Return the name of a volume's plugin in metrics: of a CSI volume, with its driver.

    GetFullQualifiedPluginNameForVolume in pkg/volume/util. But whoever may create pods chooses the
    driver of an inline volume: without a CSIDriver object its name is not shown.
    """
    if spec.kind != "csi":
        return _plugin(spec.kind)
    driver = spec.source.driver
    found = spec.objects.found.get(csi_driver_key(driver))
    if spec.persistent is None and (found is None or isinstance(found, ObjectError)):
        return PLUGINS["csi"]
    return csi_plugin_name(driver)


def csi_plugin_name(driver: str) -> str:
    """Return the name of a plugin in metrics for the volumes of a CSI driver."""
    return f"{PLUGINS['csi']}:{driver}"


@contextmanager
def timed(
    rows: list[Operation], kind: str, name: str = "volume_mount", *, is_migrated: bool = False
) -> Iterator[None]:
    """Add a row for the block; if it raises, the row says that it failed."""
    row, began = Operation(kind, name=name, is_migrated=is_migrated), time.perf_counter()
    rows.append(row)
    try:
        yield
        row.is_done = True
    finally:
        row.took = time.perf_counter() - began
