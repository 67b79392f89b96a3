"""Changes of resources in a fake runtime, by the rules of containerd and runc.

Source: container_update_resources.go in containerd's internal/cri/server, update.go in runc, and
fs/memory.go and fs2/memory.go in opencontainers/cgroups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kubelet_trio.cri import RuntimeCallError, UnsupportedCallError, merged_resources, v1
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.testing.behaviour import SIGKILL_EXIT
from kubelet_trio.testing.calls import CallDesk
from kubelet_trio.testing.node import FakeNode
from kubelet_trio.testing.objects import FakeContainer, FakeUsage

BelowUsage = Literal["refused", "reclaimed", "oom-killed"]

_CONTAINER, _SANDBOX = "UpdateContainerResources", "UpdatePodSandboxResources"
_UNLIMITED = -1


class FakeResizing:
    """The part of `FakeRuntime` that changes resources.

    `FakeContainer.resources` is what a container's cgroup has, `FakeSandbox.resources` and
    `overhead` what the runtime knows of its pod.

    Attributes:
        usage: returns the usage of a running container.
        below_usage: what happens to a memory limit below the usage. "refused" as on cgroup v1;
            "reclaimed" and "oom-killed" as on version 2, where the kernel takes any limit and kills
            the container if it cannot reclaim enough.
        resizes_containers: whether UpdateContainerResources is supported.
        resizes_sandboxes: whether UpdatePodSandboxResources is supported: containerd has it since
            2.3.
        resizes_exited: whether a container that has exited is updated without an effect, as in
            containerd; CRI-O refuses.
        on_resize: called with a running container and its new resources before they apply: to
            compare them with the pod's cgroup, or to refuse them with a `RuntimeCallError`.
    """

    def __init__(self, node: FakeNode, desk: CallDesk) -> None:
        self._resized = node
        self._resize_desk = desk
        self.usage: Callable[[FakeContainer], FakeUsage] = lambda _container: FakeUsage()
        self.below_usage: BelowUsage = "refused"
        self.resizes_containers = True
        self.resizes_sandboxes = True
        self.resizes_exited = True
        self.on_resize: Callable[[FakeContainer, v1.LinuxContainerResources], None] = (
            lambda _container, _resources: None
        )

    @property
    def reports_resources(self) -> bool:
        """Whether ContainerStatus has resources: not in containerd before 1.6.9, nor 1.5."""
        return self._resized.reports_resources

    @reports_resources.setter
    def reports_resources(self, reports: bool) -> None:
        self._resized.reports_resources = reports

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        async def effect() -> bool:
            if not self.resizes_sandboxes:
                return False
            sandbox = self._resized.sandbox(_SANDBOX, sandbox_id)
            sandbox.overhead, sandbox.resources = overhead, resources
            return True

        names = self._resized.sandbox_names(sandbox_id)
        return await self._resize_desk.serve(_SANDBOX, sandbox_id, effect, names)

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        async def effect() -> None:
            if not self.resizes_containers:
                raise UnsupportedCallError(
                    _CONTAINER,
                    "the fake runtime does not implement it, and resizing in place needs it",
                    code="Unimplemented",
                )
            self._update(self._resized.container(_CONTAINER, container_id), resources)

        names = self._resized.container_names(container_id)
        await self._resize_desk.serve(_CONTAINER, container_id, effect, names)

    def _update(self, container: FakeContainer, asked: v1.LinuxContainerResources) -> None:
        has_exited = container.state == v1.ContainerState.CONTAINER_EXITED
        if has_exited and not self.resizes_exited:
            text = f"container {container.id} is not running or created state: stopped"
            raise RuntimeCallError(_CONTAINER, text)
        merged = merged_resources(container.resources, asked)
        if container.alive:
            self._apply(container, merged)
        container.resources = merged

    def _apply(self, container: FakeContainer, merged: v1.LinuxContainerResources) -> None:
        """Set the cgroup of a running container. Raises `RuntimeCallError` if it refuses."""
        self.on_resize(container, merged)
        limit, swap = merged.memory_limit_in_bytes, merged.memory_swap_limit_in_bytes
        if swap > 0 and (limit > swap or limit == _UNLIMITED):
            raise _refused("memory+swap limit should be >= memory limit")
        usage = self.usage(container).memory
        if not 0 < limit < usage:
            return
        if self.below_usage == "refused":
            raise _refused(
                f"unable to set memory limit to {limit} "
                f"(current usage: {usage}, peak usage: {usage})"
            )
        if self.below_usage == "oom-killed":
            self._resized.kill(container, SIGKILL_EXIT, "OOMKilled")


def _refused(why: str) -> RuntimeCallError:
    # containerd names the step twice: once for the task, once for the transaction.
    step = "failed to update resources"
    runc = "runc did not terminate successfully: exit status 1"
    return RuntimeCallError(_CONTAINER, f"{step}: {step}: {runc}: {why}\n: unknown", code="Unknown")
