"""The SELinux labels that the node's volumes are mounted with, and pods that want different ones.

A volume has one label at a time. The first pod decides it; a pod that wants another waits until no
pod uses the volume. Where labels are not enforced yet (`takes_label`) such pods are only counted,
in metrics that warn of an upgrade. After a restart each pod registers again with its first volume;
until then the labels of mounted volumes are those on disk and in the mount table.

Source: pkg/kubelet/volumemanager/cache/desired_state_of_world.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubelet_trio.model import Meter, Offload, get_logger
from kubelet_trio.objects import ObjectError
from kubelet_trio.volumes.csi.types import CsiVolume
from kubelet_trio.volumes.errors import (
    ContextError,
    LabelConflictError,
    ManyLabelsError,
    unprocessed_error,
)
from kubelet_trio.volumes.host.plugins import unique_name
from kubelet_trio.volumes.layout import PLUGINS
from kubelet_trio.volumes.selinux import (
    SELinuxContext,
    WantedLabel,
    file_default,
    mode_label,
    takes_label,
    wanted_label,
)
from kubelet_trio.volumes.spec import VolumeSpec

log = get_logger()

_MOST_BYTES = 64 << 10  # of a file of the policy
_METRIC = "volume_manager_selinux_"
# By the error: the metric's name before `_errors_total` or `_warnings_total`.
_KINDS = {
    ContextError: "container",
    ManyLabelsError: "pod_context_mismatch",
    LabelConflictError: "volume_context_mismatch",
}


def read_default(root: Path = Path("/")) -> SELinuxContext | None:
    """Return the label of containers' files by the host's policy; None if it names none. Blocks.

    containerLabels in github.com/opencontainers/selinux/go-selinux.
    """
    try:
        config = _read(root / "etc/selinux/config") or ""
        found = re.search(r"^\s*SELINUXTYPE\s*=\s*([\w.-]+)", config, re.MULTILINE)
        policy = root / "etc/selinux" / (found[1] if found else "targeted")
        contexts = _read(root / "usr/share/containers/selinux/contexts")
        if contexts is None:
            contexts = _read(policy / "contexts/lxc_contexts")
        return file_default(contexts or "")
    except (OSError, ContextError) as exc:
        # Then no label is known, and the runtime relabels the files.
        log.warning("volumes.selinux_policy_unreadable", error=str(exc))
        return None


def _read(path: Path) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None


@dataclass(slots=True)
class _Labelled:
    """A volume that pods want."""

    label: str  # that the first of them wants, whatever the access mode
    users: set[str] = field(default_factory=set)  # UIDs of pods


@dataclass(slots=True)
class VolumeLabels:
    """Gives each volume its label; for nodes with SELinux."""

    meter: Meter
    offload: Offload
    any_mode: bool = False  # the gate SELinuxMount
    default: Callable[[], SELinuxContext | None] = read_default  # blocks
    _volumes: dict[str, _Labelled] = field(default_factory=dict)  # by their names on the node

    async def label(self, specs: Iterable[VolumeSpec]) -> list[VolumeSpec]:
        """Return the specs of a pod's volumes, with the labels to mount them with.

        Registers the pod, until `forget`. Raises `VolumeError` if one cannot have its label.
        """
        default = await self.offload(self.default)
        done: list[VolumeSpec] = []
        failed: dict[str, str] = {}
        for spec in specs:
            try:
                done.append(replace(spec, selinux_label=self._label(spec, default)))
            except (ObjectError, ValueError) as exc:
                failed[spec.name] = str(exc)
        if failed:
            raise unprocessed_error(failed)
        return done

    def forget(self, uid: str) -> None:
        """Note that a pod wants no volume any more: its teardown begins."""
        for name, volume in list(self._volumes.items()):
            volume.users.discard(uid)
            if not volume.users:
                del self._volumes[name]

    def _label(self, spec: VolumeSpec, default: SELinuxContext | None) -> str | None:
        """Return a volume's label; "": none, None: its plugin has no labels.

        Raises `ContextError`, `ManyLabelsError`, `LabelConflictError`, `ObjectError`, ValueError.
        """
        try:
            wanted = wanted_label(spec, default)
        except (ContextError, ManyLabelsError) as exc:
            self._report(exc, spec)
            return None
        if not wanted.is_supported:
            return None
        volume = self._volume(spec, wanted)
        takes = takes_label(spec.persistent, any_mode=self.any_mode)
        return volume.label if takes else ""

    def _volume(self, spec: VolumeSpec, wanted: WantedLabel) -> _Labelled:
        """Register a pod's use of a volume. Raises `LabelConflictError` or ValueError."""
        uid, name = spec.uid, _name(spec)
        volume = self._volumes.get(name)
        if volume is None:
            volume = self._volumes[name] = _Labelled(wanted.label)
            if wanted.label:
                self.meter.change(f"{_METRIC}volumes_admitted_total", 1, _labels(spec))
        elif uid not in volume.users and volume.label != wanted.label:
            text = f'"{volume.label}" and "{wanted.label}"'
            text = f"conflicting SELinux labels of volume {spec.disk_name}: {text}"
            self._report(LabelConflictError(text), spec)
        volume.users.add(uid)
        return volume

    def _report(self, problem: Exception, spec: VolumeSpec) -> None:
        """Count a problem; raise it where labels are enforced (handleSELinuxMetricError)."""
        takes = takes_label(spec.persistent, any_mode=self.any_mode)
        kind, state = _KINDS[type(problem)], "errors" if takes else "warnings"
        labels = _labels(spec) if isinstance(problem, LabelConflictError) else _labels(spec)[:1]
        self.meter.change(f"{_METRIC}{kind}_{state}_total", 1, labels)
        if takes:
            raise problem
        log.debug("volume.selinux_label_ignored", volume=spec.name, error=str(problem))


def _labels(spec: VolumeSpec) -> tuple[str, ...]:
    """Return the labels of a metric by access mode and plugin (getVolumePluginNameWithDriver)."""
    plugin = PLUGINS.get(spec.kind, spec.kind)
    if spec.kind == "csi":
        plugin = f"{plugin}/{spec.source.driver}"
    return mode_label(spec.persistent), plugin


def _name(spec: VolumeSpec) -> str:
    """Return a volume's name on the node: of an inline CSI volume, only its pod's."""
    if spec.kind != "csi":
        return unique_name(spec) or spec.disk_name
    if spec.persistent is None:
        return f"{spec.uid}/{spec.name}"
    return CsiVolume(spec.source.driver, spec.source.volumeHandle).unique_name
