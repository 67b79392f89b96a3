"""Names of cgroups: the Go kubelet's tree, for both cgroup drivers.

    <cgroup root>/kubepods                      holds guaranteed pods directly
    <cgroup root>/kubepods/burstable
    <cgroup root>/kubepods/besteffort
                  …/pod<uid>                    one for each pod; the runtime's containers are below

A `CgroupName` is the path as a tuple of plain parts. The cgroupfs driver joins it with
slashes. The systemd driver writes it as nested slices, each named after all its parents
(`kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`), so a dash
inside a part becomes an underscore.
"""

from __future__ import annotations

from typing import Literal

from kubelet_trio.model import PodUid

CgroupDriver = Literal["cgroupfs", "systemd"]
QosClass = Literal["Guaranteed", "Burstable", "BestEffort"]
CgroupName = tuple[str, ...]

_QOS_PARTS: dict[QosClass, CgroupName] = {
    "Guaranteed": (),
    "Burstable": ("burstable",),
    "BestEffort": ("besteffort",),
}
_POD_PREFIX = "pod"
_SLICE = ".slice"


def parse_cgroup(path: str) -> CgroupName:
    """Return the name of a cgroupfs path, such as `--cgroup-root`."""
    return tuple(part for part in path.split("/") if part)


def parse_existing(path: str, driver: CgroupDriver) -> CgroupName:
    """Return the name of an existing cgroup, such as `/system.slice` under systemd."""
    if driver == "cgroupfs":
        return parse_cgroup(path)
    unit = path.rstrip("/").rpartition("/")[2].removesuffix(_SLICE)
    return tuple(part.replace("_", "-") for part in unit.split("-") if part)


def qos_cgroup(qos: QosClass, root: CgroupName = ()) -> CgroupName:
    """Return the cgroup of a QoS class."""
    return (*root, "kubepods", *_QOS_PARTS[qos])


def pod_cgroup(uid: PodUid, qos: QosClass, root: CgroupName = ()) -> CgroupName:
    """Return a pod's own cgroup."""
    return (*qos_cgroup(qos, root), f"{_POD_PREFIX}{uid}")


def cgroup_path(name: CgroupName, driver: CgroupDriver) -> str:
    """Return the absolute path below the cgroup mount, as in CRI requests."""
    if not name:
        return "/"
    if driver == "cgroupfs":
        return "/" + "/".join(name)
    parts = [part.replace("-", "_") for part in name]
    return "/" + "/".join("-".join(parts[: i + 1]) + _SLICE for i in range(len(parts)))


def pod_cgroup_parent(
    uid: PodUid, qos: QosClass, *, driver: CgroupDriver, root: str = "", per_qos: bool = True
) -> str:
    """Return the `cgroup_parent` of a pod's sandbox; empty without `cgroupsPerQOS`."""
    if not per_qos:
        return ""
    return cgroup_path(pod_cgroup(uid, qos, parse_cgroup(root)), driver)


def uid_of_pod_cgroup(directory: str, driver: CgroupDriver) -> PodUid | None:
    """Return the pod UID in the name of a directory below a QoS cgroup, None if none."""
    if driver == "systemd":
        if not directory.endswith(_SLICE):
            return None
        # `cgroup_path` wrote the UID's dashes as underscores. A valid UID has no underscores.
        directory = directory.removesuffix(_SLICE).rpartition("-")[2].replace("_", "-")
    uid = directory.removeprefix(_POD_PREFIX)
    return PodUid(uid) if uid and uid != directory else None
