"""Tear down a pod's volumes: unmount, read the mount table again, then remove.

It works from the directories on disk, not from the pod's spec, so it also works after a restart,
for an orphan, and for volumes of the Go kubelet. It removes a directory only if the kernel's
table shows no mount in it.
"""

from __future__ import annotations

from pathlib import Path

from kubelet_trio.model import remove_empty, remove_tree
from kubelet_trio.volumes.claims import give_back
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.layout import (
    OWN_PLUGINS,
    devices_dir,
    sub_paths_dir,
    volumes_dir,
)
from kubelet_trio.volumes.mounter import Mounter

# Seconds that the teardown of a pod waits for the node to let go of a volume: unstage, unmount and
# detach of a device. The Go kubelet does that after the pod's end (UnmountDevice in its
# reconciler). Here the pod waits this long, so that nearly every volume is unstaged when the pod,
# or an embedded agent, has ended: a driver that works takes less, except for a lot of unwritten
# data. What takes longer is cut off, stays in use, and is repeated by `UnusedVolumes`.
RELEASE_PATIENCE = 10.0


def plugin_directories(pod_dir: Path) -> frozenset[str]:
    """Return the names of the plugins that have a directory in a pod's. Raises OSError."""
    found: set[str] = set()
    for directory in (volumes_dir(pod_dir), devices_dir(pod_dir)):
        try:
            found.update(entry.name for entry in directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
    return frozenset(found)


def count_volumes(pods_dir: Path) -> tuple[int, int]:
    """Return the number of volumes in pods' directories, and of directories that are unreadable."""
    found = unreadable = 0
    pods = _names(pods_dir) or ()
    for base in (f(pods_dir / pod) for pod in pods for f in (volumes_dir, devices_dir)):
        for plugin in _names(base) or ():
            names = _names(base / plugin)
            found += len(names or ())
            unreadable += names is None
    return found, unreadable


def _names(directory: Path) -> list[str] | None:
    """Return the names in a directory, none if there is none; None if it is unreadable."""
    try:
        return [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return None


def tear_down(pod_dir: Path, mounter: Mounter, others: frozenset[str] = frozenset()) -> None:
    """Unmount and remove all volumes of a pod. Idempotent.

    `others` are plugins that tear down their volumes themselves, and have not yet done so. The
    pod's directories of volumes then stay, and the caller comes again.

    Raises `VolumeError` with the first path that is still mounted or could not be removed, after
    everything else is gone.
    """
    sub_paths, volumes = sub_paths_dir(pod_dir), volumes_dir(pod_dir)
    own = [volumes / plugin for plugin in sorted(OWN_PLUGINS)]
    errors: list[VolumeError] = []
    # subPaths first: their bind mounts keep the volumes' file systems busy.
    for directory in (sub_paths, *own):
        if directory.is_dir():
            errors.extend(_tear_down_below(directory, mounter))
    for directory in (sub_paths, volumes, devices_dir(pod_dir)):
        if directory.is_dir():
            errors.extend(_remove_if_empty(directory, others))
    if not errors and not others:
        # Last: another pod may use the volume only once it is unmounted here.
        try:
            give_back(pod_dir)
        except OSError as exc:
            errors.append(teardown_error(pod_dir, f"remove failed: {exc}"))
    if errors:
        raise errors[0]


def _tear_down_below(directory: Path, mounter: Mounter) -> list[VolumeError]:
    """Unmount everything below a directory, then remove it with its content."""
    errors = _unmount_all(directory, mounter)
    # Read again: below a mount that is left, `remove_tree` would delete its data.
    if mounted_below(directory, mounter):
        return errors or [teardown_error(directory, "it still holds a mount")]
    try:
        remove_tree(directory)
    except OSError as exc:
        errors.append(teardown_error(directory, f"remove failed: {exc}"))
    return errors


def unmount_foreign(target: Path, mounter: Mounter) -> None:
    """Unmount a volume whose data is not the pod's; then remove only the empty mount point.

    Idempotent. Raises `VolumeError`.
    """
    errors = _unmount_all(target, mounter)
    if errors:
        raise errors[0]
    try:
        remove_empty(target)
    except OSError as exc:
        raise teardown_error(target, f"remove failed: {exc}") from exc
    if target.exists():
        raise teardown_error(target, "remove failed: the mount point is not empty")


def _unmount_all(directory: Path, mounter: Mounter) -> list[VolumeError]:
    errors: list[VolumeError] = []
    # The table lists a mount after the one that it covers, so the reverse order unmounts the top
    # first.
    for path in reversed(mounted_below(directory, mounter)):
        try:
            mounter.unmount(Path(path))
        except OSError as exc:
            errors.append(teardown_error(Path(path), f"unmount failed: {exc.strerror}"))
    return errors


def mounted_below(directory: Path, mounter: Mounter) -> list[str]:
    """Return the mount points at or below a directory, in mount order."""
    path = str(directory)
    return [m.path for m in mounter.mounts() if m.path == path or m.path.startswith(path + "/")]


def _remove_if_empty(directory: Path, others: frozenset[str]) -> list[VolumeError]:
    try:
        for plugin in directory.iterdir():
            if plugin.is_dir():
                remove_empty(plugin)
        remove_empty(directory)
    except OSError as exc:
        return [teardown_error(directory, f"remove failed: {exc}")]
    left = list(directory.iterdir()) if directory.is_dir() else []
    return [
        teardown_error(entry, "a volume of an unsupported kind is left")
        for entry in left
        if entry.name not in others
    ]


def teardown_error(path: Path, cause: str) -> VolumeError:
    """Return the error for a volume that could not be unmounted or removed."""
    return VolumeError(
        path.name, f'UnmountVolume.TearDown failed for volume "{path.name}" : {cause}: {path}'
    )
