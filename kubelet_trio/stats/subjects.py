"""Assign cgroups to pods, containers and sandboxes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.stats.usage import Filesystem

_SCOPE = ".scope"


@dataclass(frozen=True, slots=True)
class ContainerSubject:
    """A running container."""

    id: ContainerId
    name: str
    image: str = ""
    pid: int = 0
    started_at: float = 0.0  # Unix seconds
    created_at: float = 0.0
    log_dir: str = ""  # directory of all its logs


@dataclass(frozen=True, slots=True)
class PodSubject:
    """A pod with a running sandbox or container."""

    uid: PodUid
    name: str
    namespace: str
    containers: tuple[ContainerSubject, ...] = ()
    sandbox_id: SandboxId | None = None
    sandbox_created_at: float = 0.0
    started_at: float = 0.0  # Unix seconds
    host_network: bool = False
    claims: Mapping[str, str] = field(default_factory=dict)  # volume name to claim name
    volumes: frozenset[str] = frozenset()  # names of all its volumes
    local_volumes: frozenset[str] = frozenset()  # volumes that count as ephemeral storage


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of cgroups, by pod and by container."""

    pods: Mapping[PodUid, str]
    containers: Mapping[str, str]  # by the id of a container or a sandbox


@dataclass(frozen=True, slots=True)
class DiskReading:
    """The usage of filesystems, which cgroups do not show."""

    node: Filesystem | None = None
    images: Filesystem | None = None
    containers: Filesystem | None = None
    writable: Mapping[str, Filesystem] = field(default_factory=dict)  # by container id
    logs: Mapping[str, Filesystem] = field(default_factory=dict)  # by container id
    volumes: Mapping[PodUid, Mapping[str, Filesystem]] = field(default_factory=dict)
    hosts: Mapping[PodUid, Filesystem] = field(default_factory=dict)  # the pods' hosts files


def find_places(
    paths: Iterable[str], ids: Iterable[str], pod_of: Callable[[str], PodUid | None]
) -> Places:
    """Assign cgroups by their names; `pod_of` returns the pod UID in a directory's name."""
    # CRI does not report a container's cgroup, but its name has the id: `<id>` (cgroupfs),
    # `cri-containerd-<id>.scope` and `crio-<id>.scope` (systemd).
    known = frozenset(ids)
    pods: dict[PodUid, str] = {}
    containers: dict[str, str] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        uid = pod_of(name)
        # The first one: `walk` yields parents first, so a container cannot take a pod's place by
        # the name of a cgroup that it creates.
        if uid is not None:
            pods.setdefault(uid, path)
            continue
        identity = name.removesuffix(_SCOPE)
        for candidate in (identity, identity.rpartition("-")[2]):
            if candidate in known:
                containers.setdefault(candidate, path)
                break
    return Places(pods, containers)
