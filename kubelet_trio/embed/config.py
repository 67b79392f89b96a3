"""The configuration of an embedded kubelet."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.cri import Runtime
from kubelet_trio.managers import ManagerSettings
from kubelet_trio.model import blake2b

_MODES = ("process",)
_LEAST_RECORDING = 1 << 20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """Settings of an embedded kubelet. Only `root_dir` must be given.

    Attributes:
        root_dir: its own directory (made if missing): state, volumes, logs. Only one kubelet
            at a time may use it. Opened again, it still has the pods that were kept.
        runtime: `process` (containers are processes of this host, nothing needs to be
            installed), `unix:///run/containerd/containerd.sock` or the like, or an object
            that implements `kubelet_trio.cri.Runtime`, which is used as it is.
        instance: marks this kubelet's pods on the runtime. It owns sandboxes and containers
            with this mark and no others. Empty: derived from `root_dir`.
        node_name: the name of the node in statuses and events; empty: the host's.
        node_ip: one address or two (`a,b`) for hostIP and pods on the host's network; empty:
            detected.
        manifests: a directory (or file) of static pods to run as well.
        allow_root: whether containers of the process runtime may run as root.
        parallel_pulls: the maximum number of concurrent image pulls; None is no limit.
        crash_backoff_base: seconds before the second restart of a crashing container; the
            delay doubles with each further restart.
        crash_backoff_cap: the longest of these delays, in seconds.
        sync_period: seconds between two syncs of a pod without an event.
        pod_logs_dir: the directory of container logs; None: `root_dir/logs`.
        cgroup_root: the parent cgroup of the pods' cgroups; empty: the root. Used only if
            the kubelet may write cgroups.
        cluster_dns: name servers for pods with dnsPolicy ClusterFirst.
        cluster_domain: their search domain.
        control_socket: whether `kubelet-trio --root-dir … pods` and the other commands can
            connect to this kubelet (a unix socket in `root_dir`, for the same user only).
        plugins: whether plugins, such as CSI drivers, may register by a socket below
            `root_dir/plugins_registry`.
        managers: the policies of the CPU, memory and topology managers, such as
            `ManagerSettings(cpu_policy="static", reserved_cpus=frozenset({0}))`; by default
            pods share all CPUs. `static` needs a container runtime. Two kubelets of one
            machine must not give away the same CPUs.
        flight_recorder_size: bytes of the recording below `root_dir/recorder` of what reached the
            kubelet and what it decided, at least 1 MiB; 0: nothing is recorded.
    """

    root_dir: Path | str
    runtime: str | Runtime = "process"
    instance: str = ""
    node_name: str = ""
    node_ip: str = ""
    manifests: Path | str | None = None
    allow_root: bool = False
    parallel_pulls: int | None = 4
    crash_backoff_base: float = 10.0
    crash_backoff_cap: float = 300.0
    sync_period: float = 60.0
    pod_logs_dir: Path | str | None = None
    cgroup_root: str = ""
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    control_socket: bool = False
    plugins: bool = False
    managers: ManagerSettings = field(default_factory=ManagerSettings)
    flight_recorder_size: int = 0

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError naming the field."""
        endpoint = self.runtime if isinstance(self.runtime, str) else _MODES[0]
        if endpoint not in _MODES and not endpoint.removeprefix("unix://").startswith("/"):
            raise ValueError(
                f"runtime: {endpoint!r}: expected 'process', 'unix:///path' or an object"
            )
        if self.parallel_pulls is not None and self.parallel_pulls < 1:
            raise ValueError(f"parallel_pulls: {self.parallel_pulls}: expected 1 or more, or None")
        for name in ("crash_backoff_base", "crash_backoff_cap", "sync_period"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)}: expected more than 0")
        if 0 != self.flight_recorder_size < _LEAST_RECORDING:
            raise ValueError(
                f"flight_recorder_size: {self.flight_recorder_size}: expected 0, or at least "
                f"{_LEAST_RECORDING}"
            )
        managers = self.managers
        if endpoint == _MODES[0] == self.runtime and (managers.gives_cpus or managers.gives_memory):
            raise ValueError(
                "managers: static policies need a container runtime: containers of the runtime "
                "'process' have no cpuset"
            )

    @property
    def root(self) -> Path:
        """The root directory, absolute."""
        return Path(os.path.abspath(self.root_dir))

    @property
    def instance_id(self) -> str:
        """The mark of this kubelet's pods; the same each time for the same directory."""
        return self.instance or blake2b(os.fsencode(self.root), digest_size=8).hexdigest()
