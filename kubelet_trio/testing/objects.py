"""The sandboxes and containers inside a fake runtime, and their CRI messages.

As in a real runtime, a container has two states: whether its process is alive, and
the state in its status, which follows an exit after `status_lag`.
Times are seconds of trio's clock here, and Unix nanoseconds in messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import trio

from kubelet_trio.cri import merged_resources, v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.testing.behaviour import Behaviour

NANO = 1_000_000_000


def ns(seconds: float) -> int:
    """Return Unix seconds as CRI's nanoseconds; 0 stays 0."""
    return round(seconds * NANO)


@dataclass(eq=False, slots=True)
class FakeSandbox:
    """A sandbox in the fake."""

    id: SandboxId
    config: v1.PodSandboxConfig
    created_at: float  # Unix seconds
    ip: str
    runtime_handler: str = ""
    ready: bool = True
    # As configured now: from its config, or the last UpdatePodSandboxResources.
    overhead: v1.LinuxContainerResources = field(init=False)
    resources: v1.LinuxContainerResources = field(init=False)

    def __post_init__(self) -> None:
        linux = self.config.linux or v1.LinuxPodSandboxConfig()
        self.overhead = linux.overhead or v1.LinuxContainerResources()
        self.resources = linux.resources or v1.LinuxContainerResources()

    @property
    def metadata(self) -> v1.PodSandboxMetadata:
        return self.config.metadata or v1.PodSandboxMetadata()

    @property
    def uid(self) -> PodUid:
        return PodUid(self.metadata.uid)

    @property
    def reserved_name(self) -> tuple[str, str, str, int]:
        """The name that the runtime reserves: unique among sandboxes."""
        meta = self.metadata
        return (meta.namespace, meta.name, meta.uid, meta.attempt)

    @property
    def state(self) -> v1.PodSandboxState:
        ready, not_ready = v1.PodSandboxState.SANDBOX_READY, v1.PodSandboxState.SANDBOX_NOTREADY
        return ready if self.ready else not_ready

    @property
    def host_network(self) -> bool:
        options = self.namespaces
        return options is not None and options.network == v1.NamespaceMode.NODE

    @property
    def namespaces(self) -> v1.NamespaceOption | None:
        linux = self.config.linux
        context = linux.security_context if linux else None
        return context.namespace_options if context else None

    def listed(self) -> v1.PodSandbox:
        return v1.PodSandbox(
            id=self.id,
            metadata=self.metadata,
            state=self.state,
            created_at=ns(self.created_at),
            labels=dict(self.config.labels),
            annotations=dict(self.config.annotations),
            runtime_handler=self.runtime_handler,
        )

    def status(self) -> v1.PodSandboxStatus:
        # Real runtimes drop the address when they tear down the network.
        ip = self.ip if self.ready and not self.host_network else ""
        return v1.PodSandboxStatus(
            id=self.id,
            metadata=self.metadata,
            state=self.state,
            created_at=ns(self.created_at),
            network=v1.PodSandboxNetworkStatus(ip=ip),
            linux=v1.LinuxPodSandboxStatus(
                namespaces=v1.Namespace(options=self.namespaces or v1.NamespaceOption())
            ),
            labels=dict(self.config.labels),
            annotations=dict(self.config.annotations),
            runtime_handler=self.runtime_handler,
        )


@dataclass(eq=False, slots=True)
class FakeContainer:
    """A container in the fake.

    `dies_at` is the planned time of its exit (inf: never), `told_at` the time at which
    the status will show an exit that has happened.
    """

    id: ContainerId
    sandbox: FakeSandbox
    config: v1.ContainerConfig
    behaviour: Behaviour
    image_id: str
    created_at: float  # Unix seconds
    pid: int = 0
    started_at: float = 0.0  # Unix seconds
    finished_at: float = 0.0  # Unix seconds
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    alive: bool = False
    state: v1.ContainerState = v1.ContainerState.CONTAINER_CREATED
    dies_at: float = math.inf
    dies_with: tuple[int, str] = (0, "")  # exit code and reason
    told_at: float = math.inf
    changed: trio.Event = field(default_factory=trio.Event)
    stray_commands: list[list[str]] = field(default_factory=list)  # whose caller was cancelled
    # As its cgroup has them now: from its config, or the last UpdateContainerResources.
    resources: v1.LinuxContainerResources = field(init=False)

    def __post_init__(self) -> None:
        linux = self.config.linux or v1.LinuxContainerConfig()
        asked = linux.resources or v1.LinuxContainerResources()
        score = v1.LinuxContainerResources(oom_score_adj=asked.oom_score_adj)
        self.resources = merged_resources(score, asked)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> PodUid:
        return self.sandbox.uid

    @property
    def metadata(self) -> v1.ContainerMetadata:
        return self.config.metadata or v1.ContainerMetadata()

    @property
    def image(self) -> str:
        """The image as its pod named it."""
        image = self.config.image or v1.ImageSpec()
        return image.user_specified_image or image.image

    @property
    def log_path(self) -> str:
        """The log file on the host; "" if the configs have none."""
        directory, path = self.sandbox.config.log_directory, self.config.log_path
        return f"{directory}/{path}" if directory and path else ""

    def notify(self) -> None:
        """Wake the tasks that wait for a change of this container."""
        self.changed.set()
        self.changed = trio.Event()

    def listed(self) -> v1.Container:
        return v1.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox.id,
            metadata=self.metadata,
            image=v1.ImageSpec(image=self.image),
            image_ref=self.image_id,
            image_id=self.image_id,
            state=self.state,
            created_at=ns(self.created_at),
            labels=dict(self.config.labels),
            annotations=dict(self.config.annotations),
        )

    def status(self, *, has_resources: bool = True) -> v1.ContainerStatus:
        # Until `told_at` the status shows a running container, though its process is gone.
        exited = self.state == v1.ContainerState.CONTAINER_EXITED
        return v1.ContainerStatus(
            id=self.id,
            metadata=self.metadata,
            state=self.state,
            created_at=ns(self.created_at),
            started_at=ns(self.started_at),
            finished_at=ns(self.finished_at) if exited else 0,
            exit_code=self.exit_code if exited else 0,
            reason=self.reason if exited else "",
            message=self.message if exited else "",
            image=v1.ImageSpec(image=self.image),
            image_ref=f"{self.image.split(':')[0]}@{self.image_id}",
            image_id=self.image_id,
            labels=dict(self.config.labels),
            annotations=dict(self.config.annotations),
            mounts=list(self.config.mounts),
            stop_signal=self.config.stop_signal,
            log_path=self.log_path,
            resources=v1.ContainerResources(linux=self.resources) if has_resources else None,
        )


@dataclass(frozen=True, slots=True)
class FakeUsage:
    """The usage of a container, set by the test; `disk` is that of the writable layer."""

    memory: int = 0
    disk: int = 0
    inodes: int = 0


def container_stats(container: FakeContainer, usage: FakeUsage) -> v1.ContainerStats:
    """Describe a container's usage as ListContainerStats does."""
    return v1.ContainerStats(
        attributes=v1.ContainerAttributes(
            id=container.id,
            metadata=container.metadata,
            labels=dict(container.config.labels),
            annotations=dict(container.config.annotations),
        ),
        memory=v1.MemoryUsage(working_set_bytes=v1.UInt64Value(value=usage.memory)),
        writable_layer=v1.FilesystemUsage(
            used_bytes=v1.UInt64Value(value=usage.disk),
            inodes_used=v1.UInt64Value(value=usage.inodes),
        ),
    )
