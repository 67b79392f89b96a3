"""The kernel settings of a node, as the Go kubelet sets them.

Source: setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go, with the values of
k8s.io/component-helpers/node/util/sysctl.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.host.left_out import LeftOut
from kubelet_trio.model import get_logger

log = get_logger()

PROC_SYS = Path("/proc/sys")

TUNABLES: tuple[tuple[str, int], ...] = (
    ("vm/overcommit_memory", 1),  # always: requests and limits decide, not a guess of the kernel
    ("vm/panic_on_oom", 0),  # kill a process, not the node
    ("kernel/panic", 10),  # seconds until a node that panicked reboots
    ("kernel/panic_on_oops", 1),
    # A runtime makes a key for each container (RootMaxKeysSetting); 25 bytes for each key.
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting with another value than the kubelet's; `actual` is None if `error` is set."""

    name: str
    wanted: int
    actual: int | None
    error: str = ""

    def __str__(self) -> str:
        if self.actual is None:
            return f"{self.name} cannot be read: {self.error}"
        return f"{self.name} is {self.actual}, expected {self.wanted}"


def differences(root: Path = PROC_SYS) -> list[Difference]:
    """Return the settings below `root` (/proc/sys) that differ from the kubelet's."""
    return list(_differences(root))


def _differences(root: Path) -> Iterator[Difference]:
    for name, wanted in TUNABLES:
        try:
            actual = int((root / name).read_text())
        except (OSError, ValueError) as exc:
            yield Difference(name, wanted, None, str(exc))
        else:
            if actual != wanted:
                yield Difference(name, wanted, actual)


def set_tunables(root: Path = PROC_SYS) -> list[LeftOut]:
    """Write each setting that differs; return those that cannot be read or written, as one."""
    refused, names = [], []
    for found in differences(root):
        if found.actual is None:
            refused.append(str(found))
            names.append(found.name)
            continue
        try:
            _write(root / found.name, found.wanted)
        except OSError as exc:
            refused.append(f"{found.name} stays {found.actual}, wanted {found.wanted}: {exc}")
            names.append(found.name)
        else:
            log.info("kernel.set", name=found.name, before=found.actual, now=found.wanted)
    if not refused:
        return []
    # Pods run without these settings too, and in a container /proc/sys is often read-only.
    effect = "they stay as they are"
    told = {"settings": refused, "effect": effect}
    what = f"the kernel settings {', '.join(names)}"
    return [LeftOut("kernel.settings_refused", what, effect, told)]


def _write(path: Path, value: int) -> None:
    """Write to an existing file in one call."""
    # kernel.sysctl_writes_strict: a number must be complete in one write, at offset 0.
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)
