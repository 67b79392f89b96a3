"""What volumes a node has: published to pods, and staged for them.

Disk and mount table are the only source, in the Go kubelet's layout, so the list also shows volumes
of the Go kubelet, of pods that are gone, and of kinds that this agent does not mount:

    pods/<uid>/volumes/<plugin>/<name>                         a mounted volume; CSI: its `mount`
    pods/<uid>/volumeDevices/<plugin>/<name>                   link to a block volume's device
    plugins/kubernetes.io/csi/<driver>/<sha256>/globalmount    a staged CSI volume
    plugins/kubernetes.io/csi/volumeDevices/staging/<name>     a staged CSI block volume
    plugins/kubernetes.io/<plugin>/...                         a mount that several pods share

`read_listing` reads it without touching any volume, so a server that does not answer cannot delay
it; `list_volumes` is pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from lightkube.models.core_v1 import Pod, Volume

from kubelet_trio.model import PodUid, pod_key, read_regular
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import claim_name
from kubelet_trio.volumes.csi.block_paths import STAGING, BlockPaths, block_dir
from kubelet_trio.volumes.csi.data import GLOBAL_MOUNT, MOUNT, RECORD
from kubelet_trio.volumes.csi.types import CSI_PLUGIN
from kubelet_trio.volumes.layout import CSI, OWN_PLUGINS, PLUGINS, VOLUME_DEVICES
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.mountinfo import MountPoint

_MAX_DATA = 1 << 16  # bytes; the Go kubelet writes a few hundred
_MOST = 10_000  # entries of one directory
_KINDS = {name.replace("/", "~"): kind for kind, name in PLUGINS.items()}


@dataclass(frozen=True, slots=True)
class VolumeOnDisk:
    """A volume's directory or link below a pod, or a staged volume (`uid` is empty)."""

    uid: str
    plugin: str  # the directory's name: kubernetes.io~csi
    name: str  # the volume's, or the persistent volume's; "" if nothing shows it
    path: str  # what a container gets: the mount point or the device
    data: Mapping[str, str] = field(default_factory=dict)  # vol_data.json
    is_block: bool = False


@dataclass(frozen=True, slots=True)
class VolumeListing:
    """What was read from disk and from the mount table."""

    published: tuple[VolumeOnDisk, ...] = ()
    staged: tuple[VolumeOnDisk, ...] = ()
    mounts: tuple[MountPoint, ...] = ()


class VolumeFill(msgspec.Struct, frozen=True, omit_defaults=True):
    """How full a volume is, and what its driver says of it. None: not measured."""

    capacity_bytes: int | None = None
    used_bytes: int | None = None
    available_bytes: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None
    abnormal: bool | None = None
    message: str = ""


class VolumeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A volume as `kubelet-trio volumes` shows it. Empty: it has none, or nothing shows it."""

    state: str  # Mounted, Mapped, Present (a plain directory), NotMounted, Staged
    kind: str  # the field of a Volume, or the name of the plugin's directory
    path: str
    mode: str = "Filesystem"  # or Block
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    volume: str = ""  # the name in the pod
    claim: str = ""
    persistent_volume: str = ""
    driver: str = ""
    handle: str = ""
    lifecycle: str = ""  # of a CSI volume: Persistent or Ephemeral
    fs_type: str = ""
    read_only: bool = False
    users: tuple[str, ...] = ()  # of a staged volume: namespace/name of the pods that have it
    use: VolumeFill | None = None

    @property
    def is_own(self) -> bool:
        """Whether it exists for its pod only, and neither a claim nor a driver provides it."""
        return self.kind in _OWN_KINDS


_OWN_KINDS = frozenset(_KINDS[plugin] for plugin in OWN_PLUGINS)


def read_listing(root_dir: Path, mounter: Mounter) -> VolumeListing:
    """Read what is on disk below the root directory, and the mount table. Blocks. Raises OSError.

    Directories that appear or go meanwhile may be missing.
    """
    mounts = mounter.mounts()
    pods = root_dir / "pods"
    published = (v for uid in _names(pods) for v in _of_pod(root_dir, pods / uid, uid))
    staged = (*_staged(root_dir), *_shared(root_dir, mounts))
    return VolumeListing(tuple(published), staged, tuple(mounts))


def _of_pod(root_dir: Path, pod_dir: Path, uid: str) -> Iterator[VolumeOnDisk]:
    for plugin in _names(pod_dir / "volumes"):
        for name in _names(pod_dir / "volumes" / plugin):
            path = pod_dir / "volumes" / plugin / name
            if plugin != CSI:
                yield VolumeOnDisk(uid, plugin, name, str(path))
                continue
            data = _data(path)
            yield VolumeOnDisk(uid, plugin, data.get("specVolID", name), str(path / MOUNT), data)
    for plugin in _names(pod_dir / VOLUME_DEVICES):
        for name in _names(pod_dir / VOLUME_DEVICES / plugin):
            data = _data(BlockPaths(root_dir, name).data) if plugin == CSI else {}
            path = pod_dir / VOLUME_DEVICES / plugin / name
            yield VolumeOnDisk(uid, plugin, name, str(path), data, is_block=True)


def _staged(root_dir: Path) -> Iterator[VolumeOnDisk]:
    base = root_dir / "plugins" / CSI_PLUGIN
    for driver in _names(base):
        if driver == VOLUME_DEVICES:
            continue
        for handle in _names(base / driver):
            path = base / driver / handle
            data = _data(path)
            if data:
                yield VolumeOnDisk("", CSI, "", str(path / GLOBAL_MOUNT), data)
    for name in _names(block_dir(root_dir) / STAGING):
        paths = BlockPaths(root_dir, name)
        yield VolumeOnDisk("", CSI, name, str(paths.staging), _data(paths.data), is_block=True)


def _shared(root_dir: Path, mounts: Sequence[MountPoint]) -> Iterator[VolumeOnDisk]:
    """Yield the mounts of other plugins that pods bind: iSCSI, Fibre Channel, local devices."""
    base = f"{root_dir}/plugins/kubernetes.io/"
    for mount in mounts:
        plugin, _, rest = mount.path.removeprefix(base).partition("/")
        if mount.path.startswith(base) and rest and plugin != "csi":
            # As a local volume's is called after the persistent volume; others have none in it.
            name = rest.rpartition("/")[2] if plugin == "local-volume" else ""
            yield VolumeOnDisk("", f"kubernetes.io~{plugin}", name, mount.path)


def _data(directory: Path) -> Mapping[str, str]:
    """Return the vol_data.json in a directory; empty if it is missing or unreadable."""
    try:
        return msgspec.json.decode(read_regular(directory / RECORD, _MAX_DATA), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _names(directory: Path) -> list[str]:
    """Return the names in a directory, sorted; none if it cannot be read."""
    found: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                # By the type in the directory: stat(2) of a mount point can hang. Links only for
                # devices, whose directory has nothing else.
                if entry.is_dir(follow_symlinks=False) or entry.is_symlink():
                    found.append(entry.name)
                if len(found) >= _MOST:
                    break
    except OSError:
        return []
    return sorted(found)


def list_volumes(
    listing: VolumeListing,
    pods: Mapping[PodUid, Pod],
    names: Mapping[PodUid, Mapping[str, str]],
    uses: Mapping[PodUid, Mapping[str, VolumeFill]],
) -> list[VolumeRow]:
    """Return a row for each volume: those of pods by namespace and name, then staged ones.

    Args:
        listing: what is on disk.
        pods: the pods of the node; others have no name.
        names: by pod the name of each volume on disk in the pod's spec.
        uses: by pod and name in its spec how full a volume is.
    """
    mounts = {mount.path: mount for mount in listing.mounts}  # the latest of a path covers others
    published = []
    for found in listing.published:
        uid = PodUid(found.uid)
        row = _row(found, mounts.get(found.path))
        volume = names.get(uid, {}).get(found.name, found.name)
        published.append(_of(row, found, pods.get(uid), volume, uses.get(uid, {}).get(volume)))
    published.sort(key=lambda r: (r.namespace, r.pod, r.uid, r.volume, r.path))
    staged = [_staged_row(found, mounts.get(found.path), published) for found in listing.staged]
    return published + sorted(staged, key=lambda r: (r.driver, r.handle, r.path))


def _row(found: VolumeOnDisk, mount: MountPoint | None) -> VolumeRow:
    """Return what disk and mount table show of a volume."""
    kind = _KINDS.get(found.plugin, found.plugin)
    lifecycle = found.data.get("volumeLifecycleMode", "")
    is_persistent = kind not in _OWN_KINDS and lifecycle != "Ephemeral"
    return VolumeRow(
        state=_state(found, mount, kind),
        kind=kind,
        path=found.path,
        mode="Block" if found.is_block else "Filesystem",
        uid=found.uid,
        persistent_volume=found.name if is_persistent and kind != "nfs" else "",
        driver=found.data.get("driverName", ""),
        handle=found.data.get("volumeHandle", ""),
        lifecycle=lifecycle,
        fs_type=mount.fstype if mount is not None else "",
        read_only=mount is not None and "ro" in (*mount.options, *mount.super_options),
    )


def _state(found: VolumeOnDisk, mount: MountPoint | None, kind: str) -> str:
    if not found.uid:
        return "Staged"
    if found.is_block:
        return "Mapped"
    if mount is not None:
        return "Mounted"
    return "Present" if kind in _OWN_KINDS else "NotMounted"


def _of(
    row: VolumeRow, found: VolumeOnDisk, pod: Pod | None, volume: str, use: VolumeFill | None
) -> VolumeRow:
    """Add to a row what the pod's spec says."""
    if pod is None:
        return msgspec.structs.replace(row, use=use)
    key = pod_key(pod)
    named = next((v for v in pod_spec(pod).volumes or () if v.name == volume), None)
    claim = claim_name(key.name, named) if named is not None else None
    return msgspec.structs.replace(
        row,
        namespace=key.namespace,
        pod=key.name,
        volume=volume if named is not None else "",
        claim=claim or "",
        persistent_volume=found.name if claim else row.persistent_volume * (named is None),
        read_only=row.read_only or (named is not None and _is_read_only(named)),
        use=use,
    )


def _is_read_only(volume: Volume) -> bool:
    # Only fields that some source has; most sources have none.
    return any(
        getattr(getattr(volume, kind), "readOnly", False) is True
        for kind in volume.__struct_fields__
        if kind != "name"
    )


def _staged_row(
    found: VolumeOnDisk, mount: MountPoint | None, published: Sequence[VolumeRow]
) -> VolumeRow:
    row = _row(found, mount)
    users = [other for other in published if _is_same(row, other)]
    name = next((other.persistent_volume for other in users), "")
    return msgspec.structs.replace(
        row,
        persistent_volume=row.persistent_volume or name,
        users=tuple(dict.fromkeys(f"{o.namespace}/{o.pod}" if o.pod else o.uid for o in users)),
    )


def _is_same(staged: VolumeRow, other: VolumeRow) -> bool:
    if staged.handle:
        return (staged.driver, staged.handle) == (other.driver, other.handle)
    return bool(staged.persistent_volume) and (
        (staged.kind, staged.persistent_volume) == (other.kind, other.persistent_volume)
    )
