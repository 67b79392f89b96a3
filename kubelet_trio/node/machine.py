"""Reads the machine: its resources, and the ids and versions for the node's status. Blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightkube.models.core_v1 import NodeSwapStatus, NodeSystemInfo

from kubelet_trio.model import canonical_quantity, parse_cpus

_ARCHES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's resources."""

    cpus: int
    memory: int  # bytes
    swap: int = 0  # bytes
    hugepages: Mapping[str, int] = field(default_factory=dict)  # bytes by size: 2Mi, 1Gi
    storage: int = 0  # bytes of the file system that the pods' directories are on
    max_pids: int = 0  # 0: unknown
    online: frozenset[int] = frozenset()  # the CPUs; there may be gaps between them


def read_machine(
    root_dir: Path, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> Machine:
    """Return this machine's resources; `root_dir` is on the pods' disk. Raises OSError."""
    while not root_dir.exists():  # on a first start
        root_dir = root_dir.parent
    disk = os.statvfs(root_dir)
    meminfo = (proc / "meminfo").read_text()
    cpus = os.cpu_count() or 1
    return Machine(
        cpus=cpus,
        memory=_meminfo(meminfo, "MemTotal"),
        swap=_meminfo(meminfo, "SwapTotal"),
        hugepages=_hugepages(sys / "kernel" / "mm" / "hugepages"),
        storage=disk.f_blocks * disk.f_frsize,
        max_pids=_max_pids(proc / "sys" / "kernel"),
        online=_online(sys / "devices" / "system" / "cpu" / "online") or frozenset(range(cpus)),
    )


def _online(file: Path) -> frozenset[int]:
    """Return the CPUs that are online; none if the kernel does not say, as in some containers."""
    try:
        return parse_cpus(_read(file))
    except ValueError:
        return frozenset()


def _meminfo(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _hugepages(directory: Path) -> dict[str, int]:
    if not directory.is_dir():
        return {}
    found = {}
    for entry in directory.iterdir():
        match = re.fullmatch(r"hugepages-(\d+)kB", entry.name)
        if match is not None:
            size = int(match[1]) * 1024
            found[size] = size * int((entry / "nr_hugepages").read_text())
    ordered = sorted(found.items())
    return {canonical_quantity(f"{size // 1024}Ki"): amount for size, amount in ordered}


def _max_pids(kernel: Path) -> int:
    """Return the machine's limit of processes: the smaller of the kernel's two limits."""
    limits = []
    for name in ("pid_max", "threads-max"):
        try:
            limits.append(int((kernel / name).read_text()))
        except FileNotFoundError:
            continue
    return min(limits, default=0)


def go_arch(machine: str = "") -> str:
    """Return the processor's architecture as Go names it."""
    machine = machine or os.uname().machine
    return _ARCHES.get(machine, machine)


def system_info(
    version: str, runtime: str, *, root: Path = Path("/"), uname: Callable[[], object] = os.uname
) -> NodeSystemInfo:
    """Return the node's `nodeInfo`. Never fails: a value that cannot be read is empty.

    Args:
        version: the reported kubelet version, such as `v1.36.0`.
        runtime: such as `containerd://1.7.2`.
        root: the root of the machine's files.
        uname: for tests.
    """
    machine_id = _first(root, "etc/machine-id", "var/lib/dbus/machine-id")
    kernel = uname()
    return NodeSystemInfo(
        machineID=machine_id,
        # Machines without DMI tables, such as ARM boards, have no product UUID.
        systemUUID=_first(root, "sys/class/dmi/id/product_uuid") or machine_id,
        bootID=_first(root, "proc/sys/kernel/random/boot_id"),
        kernelVersion=str(getattr(kernel, "release", "")),
        osImage=_os_image(root),
        containerRuntimeVersion=runtime,
        kubeletVersion=version,
        kubeProxyVersion="",  # empty with the gate DisableNodeKubeProxyVersion
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
    capacity = _meminfo(_read(root / "proc/meminfo"), "SwapTotal")
    # An API server of 1.36 refuses a node whose swap has capacity 0.
    return NodeSwapStatus(capacity=capacity) if capacity else None
