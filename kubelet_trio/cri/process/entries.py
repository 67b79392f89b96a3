"""Sandboxes and containers as the runtime holds them, and the CRI messages that tell of them.

A list entry is made once for each state that an object is in, so that a reader finds the
same message again for as long as nothing changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.lives import EXITED, Life
from kubelet_trio.cri.process.store import ContainerFacts, SandboxFacts
from kubelet_trio.model import ContainerId, PodUid

HOST_FILES = "process:"  # the scheme of our image ids: the host's own files, whatever the name
# Containers are on the host's network; a pod that wants one of its own has this much of it.
POD_IP = "127.0.0.1"


def image_id(name: str) -> str:
    """Return the id of an image that is asked for by name, or by the id itself."""
    return name if name.startswith(HOST_FILES) else f"{HOST_FILES}{name}"


@dataclass(eq=False, slots=True)
class Container:
    """A container. The runtime is its only writer."""

    directory: Path
    facts: ContainerFacts
    config: v1.ContainerConfig
    sandbox: Sandbox
    life: Life = field(default_factory=Life)
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

    def learn(self, life: Life) -> None:
        """Take note of how it stands. News that comes late does not take it back."""
        if life == self.life or life.state < self.life.state:
            return
        before, self.life = self.life, life
        if life.state != before.state:
            self.entry = self._make_entry()

    def _make_entry(self) -> v1.Container:
        return v1.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox.facts.id,
            metadata=self.metadata,
            image=v1.ImageSpec(image=self.image),
            image_ref=image_id(self.image),
            image_id=image_id(self.image),
            state=self.life.state,
            created_at=self.facts.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )

    def status(self) -> v1.ContainerStatus:
        life, facts = self.life, self.facts
        exited = life.state == EXITED
        user = v1.LinuxContainerUser(
            uid=facts.uid, gid=facts.gid, supplemental_groups=list(facts.groups)
        )
        return v1.ContainerStatus(
            id=self.id,
            metadata=self.metadata,
            state=life.state,
            created_at=facts.created_at,
            started_at=life.started_at,
            finished_at=life.finished_at if exited else 0,
            exit_code=life.exit_code if exited else 0,
            reason=life.reason if exited else "",
            message=life.message if exited else "",
            image=v1.ImageSpec(image=self.image),
            image_ref=image_id(self.image),
            image_id=image_id(self.image),
            labels=self.config.labels,
            annotations=self.config.annotations,
            stop_signal=self.config.stop_signal,
            mounts=self.config.mounts,
            log_path=facts.log_path,
            user=v1.ContainerUser(linux=user),
        )


@dataclass(eq=False, slots=True)
class Sandbox:
    """A sandbox: bookkeeping, for there is nothing that its containers would share."""

    directory: Path
    facts: SandboxFacts
    config: v1.PodSandboxConfig
    boot: str  # which the machine is in now
    containers: dict[ContainerId, Container] = field(default_factory=dict)
    entry: v1.PodSandbox = field(init=False)

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
        """What no other sandbox may share."""
        return sandbox_name(self.config)

    @property
    def state(self) -> v1.PodSandboxState:
        states = v1.PodSandboxState
        return states.SANDBOX_READY if self.ready else states.SANDBOX_NOTREADY

    def change(self, facts: SandboxFacts) -> None:
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
    """Return a sandbox's name, as runtimes show it."""
    meta = config.metadata or v1.PodSandboxMetadata()
    return f"{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}"


def container_name(metadata: v1.ContainerMetadata, sandbox: Sandbox) -> str:
    """Return a container's name, as runtimes show it."""
    pod = sandbox.metadata
    return f"{metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{metadata.attempt}"


def _namespaces(config: v1.PodSandboxConfig) -> v1.NamespaceOption:
    """Return what was asked for: a pod is known by it, though all are the host's."""
    linux = config.linux or v1.LinuxPodSandboxConfig()
    security = linux.security_context or v1.LinuxSandboxSecurityContext()
    return security.namespace_options or v1.NamespaceOption()
