"""The sandboxes and containers of the runtime: read from disk once, then kept up to date.

The disk is the source of truth that successive agents share; the registry is the running agent's
view of it. Only the runtime that owns a registry writes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kubelet_trio.cri.errors import RuntimeCallError, RuntimeObjectNotFoundError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process import process_state, store
from kubelet_trio.cri.process.launch import effective_stop_signal, resources_of
from kubelet_trio.cri.process.process_state import EXITED, RUNNING, ProcessState
from kubelet_trio.cri.process.store import ContainerFacts, SandboxFacts
from kubelet_trio.model import ContainerId, Offload, PodUid, SandboxId

HOST_FILES = "process:"  # the scheme of our image ids: every name means the host's own files
# All containers are on the host's network; a pod without `hostNetwork` reports this address.
POD_IP = "127.0.0.1"


def image_id(name: str) -> str:
    """Return the id of an image that is given by name or by id."""
    return name if name.startswith(HOST_FILES) else f"{HOST_FILES}{name}"


@dataclass(eq=False, slots=True)
class Container:
    """A container. Only the runtime changes it."""

    directory: Path
    facts: ContainerFacts
    config: v1.ContainerConfig
    sandbox: Sandbox
    process: ProcessState = field(default_factory=ProcessState)
    # The list entry, made once for each state: while it is the same object, nothing changed.
    entry: v1.Container = field(init=False)

    def __post_init__(self) -> None:
        self.entry = self._make_entry()

    @property
    def id(self) -> ContainerId:
        return self.facts.id

    @property
    def metadata(self) -> v1.ContainerMetadata:
        return self.config.metadata or v1.ContainerMetadata()

    @property
    def image(self) -> str:
        """The image as its pod named it."""
        image = self.config.image or v1.ImageSpec()
        return image.user_specified_image or image.image.removeprefix(HOST_FILES)

    @property
    def live_cgroups(self) -> tuple[Path, ...]:
        """The cgroup directories that limit it now or once it starts; none after its exit."""
        return () if self.process.state == EXITED else tuple(map(Path, self.facts.cgroups))

    def update(self, observed: ProcessState) -> None:
        """Store an observed state; an older one that arrives late is ignored."""
        if observed == self.process or observed.state < self.process.state:
            return
        before, self.process = self.process, observed
        if observed.state != before.state:
            self.entry = self._make_entry()

    def _make_entry(self) -> v1.Container:
        return v1.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox.facts.id,
            metadata=self.metadata,
            image=v1.ImageSpec(image=self.image),
            image_ref=image_id(self.image),
            image_id=image_id(self.image),
            state=self.process.state,
            created_at=self.facts.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )

    def status(self) -> v1.ContainerStatus:
        process, facts = self.process, self.facts
        exited = process.state == EXITED
        user = v1.LinuxContainerUser(
            uid=facts.uid, gid=facts.gid, supplemental_groups=list(facts.groups)
        )
        return v1.ContainerStatus(
            id=self.id,
            metadata=self.metadata,
            state=process.state,
            created_at=facts.created_at,
            started_at=process.started_at,
            finished_at=process.finished_at if exited else 0,
            exit_code=process.exit_code if exited else 0,
            reason=process.reason if exited else "",
            message=process.message if exited else "",
            image=v1.ImageSpec(image=self.image),
            image_ref=image_id(self.image),
            image_id=image_id(self.image),
            labels=self.config.labels,
            annotations=self.config.annotations,
            stop_signal=effective_stop_signal(self.config),
            mounts=self.config.mounts,
            log_path=facts.log_path,
            user=v1.ContainerUser(linux=user),
            resources=v1.ContainerResources(linux=resources_of(self.config)),
        )


@dataclass(eq=False, slots=True)
class Sandbox:
    """A sandbox. Bookkeeping only: its containers share no namespace."""

    directory: Path
    facts: SandboxFacts
    config: v1.PodSandboxConfig
    boot: str  # id of the machine's current boot
    containers: dict[ContainerId, Container] = field(default_factory=dict)
    entry: v1.PodSandbox = field(init=False)  # as `Container.entry`

    def __post_init__(self) -> None:
        self.entry = self._make_entry()

    @property
    def ready(self) -> bool:
        return not self.facts.stopped and self.facts.boot == self.boot

    @property
    def metadata(self) -> v1.PodSandboxMetadata:
        return self.config.metadata or v1.PodSandboxMetadata()

    @property
    def uid(self) -> PodUid:
        return PodUid(self.metadata.uid)

    @property
    def reserved_name(self) -> str:
        """The name that no other sandbox may have."""
        return sandbox_name(self.config)

    @property
    def state(self) -> v1.PodSandboxState:
        states = v1.PodSandboxState
        return states.SANDBOX_READY if self.ready else states.SANDBOX_NOTREADY

    def update(self, facts: SandboxFacts) -> None:
        self.facts = facts
        self.entry = self._make_entry()

    def _make_entry(self) -> v1.PodSandbox:
        return v1.PodSandbox(
            id=self.facts.id,
            metadata=self.metadata,
            state=self.state,
            created_at=self.facts.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )

    def status(self) -> v1.PodSandboxStatus:
        options = _namespaces(self.config)
        on_host = options.network == v1.NamespaceMode.NODE
        return v1.PodSandboxStatus(
            id=self.facts.id,
            metadata=self.metadata,
            state=self.state,
            created_at=self.facts.created_at,
            network=v1.PodSandboxNetworkStatus(ip=POD_IP if self.ready and not on_host else ""),
            linux=v1.LinuxPodSandboxStatus(namespaces=v1.Namespace(options=options)),
            labels=self.config.labels,
            annotations=self.config.annotations,
        )


def sandbox_name(config: v1.PodSandboxConfig) -> str:
    """Return a sandbox's name in the format of other runtimes."""
    meta = config.metadata or v1.PodSandboxMetadata()
    return f"{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}"


def container_name(metadata: v1.ContainerMetadata, sandbox: Sandbox) -> str:
    """Return a container's name in the format of other runtimes."""
    pod = sandbox.metadata
    return f"{metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{metadata.attempt}"


def _namespaces(config: v1.PodSandboxConfig) -> v1.NamespaceOption:
    """Return the namespaces that the config asks for.

    All are the host's in fact. The status repeats the request, since `hostNetwork` of a pod is
    read from it.
    """
    linux = config.linux or v1.LinuxPodSandboxConfig()
    security = linux.security_context or v1.LinuxSandboxSecurityContext()
    return security.namespace_options or v1.NamespaceOption()


class Registry:
    """The sandboxes and containers below one state directory, oldest first."""

    def __init__(self, state_dir: Path, offload: Offload) -> None:
        self.sandboxes: dict[SandboxId, Sandbox] = {}
        self.containers: dict[ContainerId, Container] = {}
        self.boot = ""  # id of the machine's current boot, once loaded
        self._state_dir = state_dir
        self._offload = offload
        self._loading = trio.Lock()
        self._loaded = False
        self._reserved: set[tuple[str, str]] = set()  # names of objects that are being created

    async def load(self) -> None:
        """Read what an earlier agent left, on the first call."""
        if self._loaded:
            await trio.lowlevel.checkpoint()
            return
        async with self._loading:
            if self._loaded:
                return
            self.boot = await self._offload(process_state.boot_id)
            sandboxes = await self._offload(_load_all, self._state_dir, self.boot)
            self.sandboxes = {sandbox.facts.id: sandbox for sandbox in sandboxes}
            for sandbox in sandboxes:
                self.containers.update(sandbox.containers)
            await self.observe(self.containers.values())
            self._loaded = True

    async def observe(self, containers: Iterable[Container]) -> None:
        """Read the current state of those containers that have not exited."""
        live = [c for c in containers if c.process.state != EXITED]
        if not live:
            await trio.lowlevel.checkpoint()
            return
        asked = [(container.directory, container.id) for container in live]
        states = await self._offload(_read_states, asked, self.boot)
        for container, state in zip(live, states, strict=True):
            container.update(state)

    def sandbox(self, call: str, sandbox_id: SandboxId) -> Sandbox:
        """Return a sandbox. Raises `RuntimeObjectNotFoundError`."""
        if sandbox_id not in self.sandboxes:
            raise RuntimeObjectNotFoundError(call, f'sandbox "{sandbox_id}": not found')
        return self.sandboxes[sandbox_id]

    def ready_sandbox(self, call: str, sandbox_id: SandboxId) -> Sandbox:
        """Return a sandbox that is ready. Raises `RuntimeCallError`."""
        sandbox = self.sandbox(call, sandbox_id)
        if not sandbox.ready:
            raise RuntimeCallError(call, f"sandbox {sandbox_id} is not running")
        return sandbox

    async def find(self, call: str, container_id: ContainerId) -> Container:
        """Return a container in its current state. Raises `RuntimeObjectNotFoundError`."""
        await self.load()
        container = self.containers.get(container_id)
        if container is not None:
            await self.observe([container])
        if container_id not in self.containers:
            raise RuntimeObjectNotFoundError(call, f'container "{container_id}": not found')
        return self.containers[container_id]

    async def find_running(self, call: str, container_id: ContainerId) -> Container:
        """Return a running container. Raises `RuntimeCallError`."""
        container = await self.find(call, container_id)
        if container.process.state != RUNNING:
            raise RuntimeCallError(call, f"container {container_id} is not running")
        return container

    async def of_pod(self, uid: PodUid | None) -> list[Container]:
        """Return the containers of a pod (all pods if None) in their current state."""
        await self.load()
        asked = [c for c in self.containers.values() if uid in (None, c.sandbox.uid)]
        await self.observe(asked)
        return [c for c in asked if c.id in self.containers]

    def add(self, container: Container) -> None:
        container.sandbox.containers[container.id] = container
        self.containers[container.id] = container

    def drop(self, container: Container) -> None:
        container.sandbox.containers.pop(container.id, None)
        self.containers.pop(container.id, None)

    @contextmanager
    def reserve(self, call: str, kind: str, name: str) -> Iterator[None]:
        """Reserve a name while its object is created; a second reservation of it fails.

        Raises `RuntimeCallError`.
        """
        key = (kind, name)
        if key in self._reserved:
            raise RuntimeCallError(call, f'the {kind} "{name}" is being made')
        self._reserved.add(key)
        try:
            yield
        finally:
            self._reserved.discard(key)


def _load_all(state_dir: Path, boot: str) -> list[Sandbox]:
    store.make_state_dir(state_dir)
    found = []
    for directory, facts, config in store.load_sandboxes(state_dir):
        sandbox = Sandbox(directory, facts, config, boot)
        for place, container_facts, container_config in store.load_containers(directory):
            container = Container(place, container_facts, container_config, sandbox)
            sandbox.containers[container.id] = container
        found.append(sandbox)
    return found


def _read_states(asked: Sequence[tuple[Path, ContainerId]], boot: str) -> list[ProcessState]:
    return [
        process_state.read_process_state(directory, container_id, boot)
        for directory, container_id in asked
    ]
