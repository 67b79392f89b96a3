"""Resource limits of a container, applied where the agent may write cgroups.

A container's cgroup is `<the pod's cgroup parent>/<container id>`, as with other runtimes.
On version 1 it exists once per controller. It holds the container's processes, never its shim.
All functions block.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cri.generated.runtime import v1

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """The cgroup directories of one container, and the limits that could not be set in them."""

    directories: tuple[Path, ...]
    failures: tuple[str, ...] = ()

    @property
    def procs(self) -> list[str]:
        return [str(directory / "cgroup.procs") for directory in self.directories]

    @property
    def kill_file(self) -> str:
        found = [d / "cgroup.kill" for d in self.directories if (d / "cgroup.kill").exists()]
        return str(found[0]) if found else ""

    @property
    def oom_file(self) -> str:
        """The file whose line `oom_kill` counts OOM kills; the shim reads it at the end."""
        names = ("memory.events", "memory.oom_control")
        found = [d / n for d in self.directories for n in names if (d / n).exists()]
        return str(found[0]) if found else ""


def cgroup_paths(parent: str, name: str, root: Path = _ROOT) -> list[Path]:
    """Return a container's cgroup directories, one per hierarchy that can limit something."""
    inside = f"{parent.strip('/')}/{name}".lstrip("/")
    if (root / "cgroup.controllers").exists():
        return [root / inside]
    return [root / c / inside for c in _CONTROLLERS if (root / c / "cgroup.procs").exists()]


def make_cgroup(
    parent: str, name: str, resources: v1.LinuxContainerResources, root: Path = _ROOT
) -> ContainerCgroup:
    """Create a container's cgroup and set its limits. Raises OSError if it cannot be created."""
    directories = cgroup_paths(parent, name, root)
    if not directories:
        raise FileNotFoundError(f"no cgroups at {root}")
    try:
        for directory in directories:
            _make(directory, root)
    except OSError:
        remove_cgroup(directories)
        raise
    failures = _set(directories, _settings(resources, root))
    return ContainerCgroup(tuple(directories), tuple(failures))


def change_cgroup(
    directories: Sequence[Path],
    before: v1.LinuxContainerResources,
    after: v1.LinuxContainerResources,
    root: Path = _ROOT,
) -> list[tuple[Path, str]]:
    """Change the limits of a container's cgroup; return the files written and their old values.

    A limit that has no file is left out, as when the cgroup was created. Raises OSError if the
    kernel refuses one; those before it are then set back.
    """
    changed: list[tuple[Path, str]] = []
    for name, value in _settings(after, root, before=before).items():
        file = next((d / name for d in directories if (d / name).exists()), None)
        if file is None:
            continue
        try:
            held = file.read_text().strip()
            _write(file, value)
        except OSError as exc:
            set_back(changed)
            raise OSError(exc.errno, f"{exc.strerror} for the value {value}", str(file)) from exc
        changed.append((file, held))
    return changed


def set_back(changed: Sequence[tuple[Path, str]]) -> None:
    """Undo what `change_cgroup` returned. Raises OSError."""
    for file, held in reversed(changed):
        _write(file, held)


def remove_cgroup(directories: Iterable[Path]) -> None:
    """Remove those of a container's cgroups that are empty."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()


def _make(directory: Path, root: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if not (root / "cgroup.controllers").exists():
        return
    for parent in reversed(directory.parents):
        if parent == root or root in parent.parents:
            for controller in _CONTROLLERS:
                # If this fails, setting the limit fails as well, and `_set` reports it.
                with suppress(OSError):
                    _write(parent / "cgroup.subtree_control", f"+{controller}")


def _set(directories: Iterable[Path], settings: Mapping[str, str]) -> Iterator[str]:
    """Write each setting to its file; yield a message for each one that failed."""
    for name, value in settings.items():
        files = [d / name for d in directories if (d / name).exists()]
        if not files:
            yield f"{name}: the cgroup has no such file"
            continue
        try:
            _write(files[0], value)
        except OSError as exc:
            yield f"{name}: {exc.strerror}"


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _settings(
    resources: v1.LinuxContainerResources,
    root: Path,
    *,
    before: v1.LinuxContainerResources | None = None,
) -> dict[str, str]:
    if (root / "cgroup.controllers").exists():
        return settings_v2(resources)
    return settings_v1(resources, before=before)


def settings_v1(
    resources: v1.LinuxContainerResources, *, before: v1.LinuxContainerResources | None = None
) -> dict[str, str]:
    """Return the cgroup v1 files to write, in order, with their values.

    `before` is what a cgroup that exists already has.
    """
    settings: dict[str, str] = {}
    if resources.cpu_shares:
        settings["cpu.shares"] = str(resources.cpu_shares)
    if resources.cpu_quota and resources.cpu_period > 0:
        settings["cpu.cfs_period_us"] = str(resources.cpu_period)
        settings["cpu.cfs_quota_us"] = str(resources.cpu_quota)
    memory, swap = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    limits = [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", swap)]
    # The kernel refuses a memory+swap limit below the memory limit, at each of the two writes.
    if before is not None and _is_above(memory, before.memory_limit_in_bytes):
        limits.reverse()
    settings.update((name, str(limit)) for name, limit in limits if limit)
    return settings


def _is_above(limit: int, other: int) -> bool:
    """Compare two limits in bytes, of which 0 and -1 are none."""
    return other > 0 and (limit <= 0 or limit > other)


def settings_v2(resources: v1.LinuxContainerResources) -> dict[str, str]:
    """Return the cgroup v2 files to write, with their values."""
    settings: dict[str, str] = {}
    if resources.cpu_shares:
        # Shares 2..262144 map linearly to weights 1..10000: the formula of KEP-2254.
        settings["cpu.weight"] = str(1 + (resources.cpu_shares - 2) * 9999 // 262142)
    if resources.cpu_quota and resources.cpu_period > 0:
        settings["cpu.max"] = f"{_or_max(resources.cpu_quota)} {resources.cpu_period}"
    if resources.memory_limit_in_bytes:
        settings["memory.max"] = _or_max(resources.memory_limit_in_bytes)
    return {**settings, **resources.unified}


def _or_max(limit: int) -> str:
    return str(limit) if limit > 0 else "max"
