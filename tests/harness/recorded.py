"""A node of cgroup version 2 as it was: the files that the agent reads of one.

Recorded under systemd 257 and containerd 1.7 on kernel 6.12: the root, the pods' slices, and one
pod of 40Mi. In its container a child was killed for lack of memory while the main process went on;
its first life had ended the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.model import ContainerId, PodUid

RECORDED = Path(__file__).with_name("recorded_v2.txt")

PODS = "/kubepods.slice"
POD_UID = PodUid("736ae31d-6e46-1e24-ca4e-c96913388d2d")
POD = (
    f"{PODS}/kubepods-burstable.slice/"
    "kubepods-burstable-pod736ae31d_6e46_1e24_ca4e_c96913388d2d.slice"
)
CONTAINER = ContainerId("198ae12227a4f2d846109dd32d8bb76db595de589355a5d11ea2d483b380284c")
CONTAINER_PID = 2849
SANDBOX = "8bcb40090798b7f064a7f6f5d9f27023dee0eed6ca3899af82bd32e615ecc945"


@dataclass(frozen=True, slots=True)
class RecordedNode:
    """Where its files were written."""

    cgroup: Path
    proc: Path

    @property
    def host(self) -> CgroupHost:
        return CgroupHost(2, {"": self.cgroup})


def recorded_node(base: Path) -> RecordedNode:
    """Write the files below `base`."""
    for part in RECORDED.read_text().split("==> ")[1:]:
        name, _, content = part.partition(" <==\n")
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return RecordedNode(base / "cgroup", base / "proc")
