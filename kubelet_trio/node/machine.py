"""Facts of the machine that the node's status tells: ids, versions, swap. Blocks; never fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lightkube.models.core_v1 import NodeSwapStatus, NodeSystemInfo

_ARCHES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def go_arch(machine: str = "") -> str:
    """Return the processor as Go names it."""
    machine = machine or os.uname().machine
    return _ARCHES.get(machine, machine)


def system_info(
    version: str, runtime: str, *, root: Path = Path("/"), uname: Callable[[], object] = os.uname
) -> NodeSystemInfo:
    """Return the machine as `nodeInfo` has it; what cannot be read is empty.

    Args:
        version: what the agent says that it is, as `v1.36.0`.
        runtime: as `containerd://1.7.2`.
        root: where the machine's files are.
        uname: for tests.
    """
    machine_id = _first(root, "etc/machine-id", "var/lib/dbus/machine-id")
    kernel = uname()
    return NodeSystemInfo(
        machineID=machine_id,
        # Machines without firmware tables (ARM boards) are known by what they are called.
        systemUUID=_first(root, "sys/class/dmi/id/product_uuid") or machine_id,
        bootID=_first(root, "proc/sys/kernel/random/boot_id"),
        kernelVersion=str(getattr(kernel, "release", "")),
        osImage=_os_image(root),
        containerRuntimeVersion=runtime,
        kubeletVersion=version,
        kubeProxyVersion="",  # not ours to tell, and empty upstream by now
        operatingSystem="linux",
        architecture=go_arch(str(getattr(kernel, "machine", ""))),
        swap=_swap(root),
    )


def _first(root: Path, *names: str) -> str:
    for name in names:
        text = _read(root / name).strip()
        if text:
            return text
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _os_image(root: Path) -> str:
    text = _read(root / "etc/os-release") or _read(root / "usr/lib/os-release")
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return "Unknown"


def _swap(root: Path) -> NodeSwapStatus | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("SwapTotal:"):
            capacity = int(line.split()[1]) * 1024
            # An API server of 1.36 refuses the whole node for a swap of no capacity.
            return NodeSwapStatus(capacity=capacity) if capacity else None
    return None
