"""The facts about a machine that its checks and the plan of an installation decide by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet_trio.cgroups import Delegation
from kubelet_trio.install.containerd import ContainerdFiles
from kubelet_trio.install.findings import OsRelease


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the agent's configuration asks of the machine."""

    problems: tuple[str, ...] = ()  # why the configuration is refused
    endpoint: str = "unix:///run/containerd/containerd.sock"
    cgroup_driver: str = "cgroupfs"
    fail_swap_on: bool = True
    fail_cgroup_v1: bool = True
    static_pod_path: str = ""
    root_dir: str = "/var/lib/kubelet"
    pod_logs_dir: str = "/var/log/pods"
    cgroup_root: str = ""
    hostname_override: str = ""
    has_user_namespace_gate: bool = False  # KubeletInUserNamespace
    # Addresses to listen on: field, host, port.
    ports: tuple[tuple[str, str, int], ...] = (
        ("healthzPort", "127.0.0.1", 10248),
        ("port", "0.0.0.0", 10250),
    )

    @property
    def socket(self) -> str:
        """The path of the runtime's socket."""
        return self.endpoint.removeprefix("unix://")


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What the container runtime says of itself; `error` is why it says nothing."""

    error: str = ""
    is_down: bool = False  # nothing accepts connections at the socket
    name: str = ""
    version: str = ""
    cgroup_driver: str = ""  # "" if it does not say
    network_problem: str = ""  # the message of a NetworkReady that is false
    sandbox_image: str = ""  # "" if it does not say
    has_sandbox_image: bool = False


@dataclass(frozen=True, slots=True)
class CniFacts:
    """The network plugins and their configuration."""

    # Configuration files in the runtime's directory, in the order that the runtime reads them.
    configs: tuple[str, ...] = ()
    plugins: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by directory
    routes: tuple[str, ...] = ()  # the IPv4 networks that the machine has, as CIDRs


@dataclass(frozen=True, slots=True)
class Process:
    """A running process."""

    pid: int
    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Security:
    """AppArmor and SELinux."""

    apparmor: bool = False
    apparmor_parser: bool = False
    selinux: str = ""  # enforcing, permissive, or empty
    container_selinux: bool = False  # whether the policy for containers is installed


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """The user namespace that the check runs in."""

    users: int = 0  # how many it has
    cgroups: Delegation = field(default_factory=Delegation)


@dataclass(frozen=True, slots=True)
class UserFacts:
    """An ordinary user, in the machine's own namespace."""

    name: str = ""
    subuids: int = 0  # of /etc/subuid
    subgids: int = 0
    # Controllers that systemd delegates; None: no systemd of this user runs.
    delegated: frozenset[str] | None = None
    sysctls: Mapping[str, str] = field(default_factory=dict)  # of user namespaces, readable ones


@dataclass(frozen=True, slots=True)
class Facts:
    """One machine, at one moment."""

    wanted: Wanted = field(default_factory=Wanted)
    os: OsRelease = field(default_factory=OsRelease)
    is_root: bool = True
    namespace: NamespaceFacts | None = None  # None: the machine's own
    user: UserFacts | None = None  # None: root, or in a user namespace
    systemd: bool = True  # whether systemd is process 1
    hostname: str = "node"
    is_hostname_resolved: bool = True
    machine_id: str = ""
    cgroup_version: int = 2
    controllers: frozenset[str] = frozenset()
    swaps: tuple[str, ...] = ()
    memory: int = 0  # bytes
    free: Mapping[str, int] = field(default_factory=dict)  # bytes by directory
    programs: frozenset[str] = frozenset()  # those found on PATH
    missing_modules: tuple[str, ...] = ()  # kernel modules that are neither loaded nor built in
    sysctls: Mapping[str, str] = field(default_factory=dict)  # readable ones
    busy_ports: Mapping[int, str] = field(default_factory=dict)  # who has it, by port
    is_clock_synchronised: bool | None = None  # None if the kernel does not say
    processes: tuple[Process, ...] = ()
    agent_pid: int = 0  # of the agent that runs on the root directory, 0 if none
    security: Security = field(default_factory=Security)
    runtime: RuntimeFacts = field(default_factory=RuntimeFacts)
    cni: CniFacts = field(default_factory=CniFacts)
    containerd: ContainerdFiles = field(default_factory=ContainerdFiles)
