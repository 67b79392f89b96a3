"""An in-memory container runtime for tests, simulations and embedders.

`FakeRuntime` implements `cri.Runtime` on trio's clock, so under `MockClock` days pass in
seconds. It keeps CRI's rules: no container without a READY sandbox, names unique, stops
and removals idempotent, `RuntimeObjectNotFoundError` for removed objects. A call that breaks
the *agent's* contract takes effect and is recorded in `violations`. Cancelling a changing call does
the same harm as in containerd (`cuts`).

A container's image or command defines its behaviour (see `behaviour`). `runtime.faults` injects
faults; after `go_down` every call fails while containers keep running. The status shows an
exit only after `status_lag` seconds, as with real runtimes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from kubelet_trio.cri import (
    ExecResult,
    Listing,
    RuntimeCallError,
    RuntimeTimeoutError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.model import ContainerId, PodUid, SandboxId, WallClock
from kubelet_trio.testing.behaviour import SIGKILL_EXIT, Behave, behaviour_by_name
from kubelet_trio.testing.calls import DEADLINE, NO_DEADLINE, Call, CallDesk, Cut
from kubelet_trio.testing.clock import TrioClock
from kubelet_trio.testing.exits import FakeExitWaiter
from kubelet_trio.testing.images import FakeImageService
from kubelet_trio.testing.node import FakeNode
from kubelet_trio.testing.objects import FakeContainer, FakeSandbox, container_stats
from kubelet_trio.testing.resizing import FakeResizing
from kubelet_trio.testing.streams import FakeEventStream, FakeStreaming

Entry = TypeVar("Entry", v1.PodSandbox, v1.Container)


@dataclass(frozen=True, slots=True)
class FakeExec:
    """Duration and result of a command run by `exec_sync`."""

    takes: float = 0.0
    result: ExecResult = field(default_factory=lambda: ExecResult(b"", b"", 0))


class FakeRuntime(FakeImageService, FakeStreaming, FakeResizing):
    """A container runtime in memory.

    Attributes:
        faults: the active faults.
        images: the image store.
        exit_waiter: the fake pidfds of its processes, for `Pleg`.
        calls: every call so far, oldest first.
        violations: descriptions of calls that broke the agent's contract.
        latency: seconds of a call, by CRI name; "" is the default for all others.
        usage: returns the usage of a running container.
        below_usage: what happens to a memory limit below the usage: "refused", "reclaimed" or
            "oom-killed".
        reports_resources: whether ContainerStatus has resources.
        resizes_containers: whether UpdateContainerResources is supported; `resizes_sandboxes`
            likewise UpdatePodSandboxResources.
        resizes_exited: whether the resources of a container that has exited can be updated.
        on_resize: called with a running container and its new resources, before they apply.
        on_exec: returns duration and result of a command, for the container and the command.
        decoded: number of list entries that were built anew: the cost of relists.
    """

    def __init__(
        self,
        *,
        behave: Behave = behaviour_by_name,
        clock: WallClock | None = None,
        now: Callable[[], float] = trio.current_time,
        status_lag: float = 0.0,
        events: bool = False,
        half_filled_events: bool = False,
        write_logs: bool = False,
        reports_pids: bool = True,
    ) -> None:
        """Create an empty runtime.

        Args:
            behave: returns the behaviour of a container with this config.
            clock: wall time for timestamps; None: `TrioClock(now=now)`.
            now: monotonic seconds; with a `MockClock.current_time` the runtime can be inspected
                outside the trio run.
            status_lag: seconds between an exit and the status that shows it.
            events: whether GetContainerEvents is supported.
            half_filled_events: whether events come without any status.
            write_logs: whether started containers write log files on disk.
            reports_pids: whether verbose statuses have the PID.
        """
        clock = TrioClock(now=now) if clock is None else clock
        self.node = FakeNode(now=now, clock=clock, behave=behave, write_logs=write_logs)
        self.node.status_lag = status_lag
        self.node.half_filled_events = half_filled_events
        self.events = events
        # Descriptors, and the metrics of pods; None: the runtime does not know these calls.
        self.metrics: tuple[list[v1.MetricDescriptor], list[v1.PodSandboxMetrics]] | None = None
        self.reports_pids = reports_pids
        self._desk = CallDesk(self.node)
        self.faults = self._desk.faults
        self.calls: list[Call] = self._desk.log
        FakeImageService.__init__(self, self._desk)
        FakeStreaming.__init__(self, self._desk)
        FakeResizing.__init__(self, self.node, self._desk)
        self.exit_waiter = FakeExitWaiter(self.node)
        self.on_exec: Callable[[FakeContainer, list[str]], FakeExec] = lambda _c, _cmd: FakeExec()
        self.runtime_ready = True
        self.network_ready = True
        self.handler_features: dict[str, v1.RuntimeHandlerFeatures] = {}
        self.runtime_features = v1.RuntimeFeatures()
        linux = v1.LinuxRuntimeConfiguration(cgroup_driver=v1.CgroupDriver.CGROUPFS)
        # What RuntimeConfig answers; None: the runtime lacks the call.
        self.config: v1.RuntimeConfigResponse | None = v1.RuntimeConfigResponse(linux=linux)
        self.pod_cidr = ""  # of the last UpdateRuntimeConfig
        self.decoded = 0
        self._streams: list[FakeEventStream] = []

    # For tests: inspection

    @property
    def violations(self) -> list[str]:
        return self.node.violations

    @property
    def starts(self) -> Mapping[tuple[PodUid, str], int]:
        """The number of starts of each container, by pod and name."""
        return self.node.starts

    @property
    def shared_logs(self) -> list[str]:
        """Paths of logs with a second instance: the agent used a restart count twice."""
        return self.node.shared_logs

    @property
    def sandboxes(self) -> Mapping[SandboxId, FakeSandbox]:
        self.node.settle()
        return self.node.sandboxes

    @property
    def containers(self) -> Mapping[ContainerId, FakeContainer]:
        self.node.settle()
        return self.node.containers

    @property
    def cuts(self) -> Sequence[Cut]:
        """Changing calls that the agent cancelled before their reply."""
        return self._desk.cuts

    def alive(self, uid: PodUid | None = None, name: str | None = None) -> list[FakeContainer]:
        """Return the containers with a running process, of one pod or name if given."""
        self.node.settle()
        return self.node.alive(uid, name)

    def instances(self, pod: str, name: str | None = None) -> list[FakeContainer]:
        """Return the containers of pods of this name, oldest first, running or not."""
        return [
            container
            for container in self.containers.values()
            if container.sandbox.metadata.name == pod and name in (None, container.name)
        ]

    def calls_of(self, *names: str, target: str | None = None) -> list[Call]:
        """Return the calls with these names (all, if none), for one target if given."""
        return [
            call
            for call in self.calls
            if (not names or call.name in names) and target in (None, call.target)
        ]

    # For tests: interference

    @property
    def latency(self) -> dict[str, float]:
        return self._desk.latency

    @latency.setter
    def latency(self, seconds: dict[str, float]) -> None:
        self._desk.latency = seconds

    @property
    def is_down(self) -> bool:
        return self._desk.is_down

    def go_down(self) -> None:
        """Break every connection: all calls fail, also those in progress; containers run on."""
        self._desk.go_down()

    def end_event_streams(self) -> None:
        """End the GetContainerEvents streams cleanly; new ones are accepted."""
        for stream in self._streams:
            stream.end()

    def restart(self) -> None:
        """Accept calls again; nothing was forgotten, and statuses show exits since then."""
        self._desk.come_back()

    def kill(
        self, container_id: ContainerId, exit_code: int = SIGKILL_EXIT, reason: str = ""
    ) -> None:
        """Kill a container's process; `reason` e.g. OOMKilled."""
        self.node.kill(self.node.container("kill", container_id), exit_code, reason)

    def kill_sandbox(self, sandbox_id: SandboxId) -> None:
        """Make a sandbox NOTREADY; its containers keep running."""
        self.node.lose_sandbox(self.node.sandbox("kill", sandbox_id))

    def forget(self, container_id: ContainerId) -> None:
        """Remove a container, process and record, without a call."""
        self.node.forget(self.node.container("forget", container_id))

    @property
    def status_lag(self) -> float:
        return self.node.status_lag

    @status_lag.setter
    def status_lag(self, seconds: float) -> None:
        self.node.status_lag = seconds

    # The service

    async def version(self) -> v1.VersionResponse:
        async def effect() -> v1.VersionResponse:
            return v1.VersionResponse(
                version="0.1.0",
                runtime_name="fake",
                runtime_version="1.0.0",
                runtime_api_version="v1",
            )

        return await self._desk.serve("Version", "", effect)

    async def status(self) -> v1.StatusResponse:
        async def effect() -> v1.StatusResponse:
            conditions = [
                v1.RuntimeCondition(type="RuntimeReady", status=self.runtime_ready),
                v1.RuntimeCondition(type="NetworkReady", status=self.network_ready),
            ]
            return v1.StatusResponse(
                status=v1.RuntimeStatus(conditions=conditions),
                runtime_handlers=[
                    v1.RuntimeHandler(name=name, features=features)
                    for name, features in self.handler_features.items()
                ],
                features=self.runtime_features,
            )

        return await self._desk.serve("Status", "", effect)

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        async def effect() -> v1.RuntimeConfigResponse | None:
            return self.config

        return await self._desk.serve("RuntimeConfig", "", effect)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        async def effect() -> None:
            self.pod_cidr = pod_cidr

        await self._desk.serve("UpdateRuntimeConfig", pod_cidr, effect)

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        async def effect() -> SandboxId:
            return self.node.run_sandbox(config, runtime_handler).id

        # The caller has no id of it, and finds it only by a relist.
        def leave_half_made() -> None:
            with suppress(RuntimeCallError):  # its name is in use: nothing was made
                self.node.lose_sandbox(self.node.run_sandbox(config, runtime_handler))

        meta = config.metadata or v1.PodSandboxMetadata()
        return await self._desk.serve(
            "RunPodSandbox",
            meta.uid,
            effect,
            frozenset({meta.uid, meta.name}),
            # remote_runtime.go: twice the timeout for sandboxes.
            limit=2 * DEADLINE,
            when_cut=leave_half_made,
        )

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        # CRI: stops and removals are idempotent, also for an id that does not exist.
        async def effect() -> None:
            if sandbox := self.node.sandboxes.get(sandbox_id):
                self.node.stop_sandbox(sandbox)

        await self._desk.serve(
            "StopPodSandbox", sandbox_id, effect, self.node.sandbox_names(sandbox_id)
        )

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        async def effect() -> None:
            if sandbox := self.node.sandboxes.get(sandbox_id):
                self.node.remove_sandbox(sandbox)

        await self._desk.serve(
            "RemovePodSandbox", sandbox_id, effect, self.node.sandbox_names(sandbox_id)
        )

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        async def effect() -> v1.PodSandboxStatus:
            return self.node.sandbox("PodSandboxStatus", sandbox_id).status()

        names = self.node.sandbox_names(sandbox_id)
        return await self._desk.serve("PodSandboxStatus", sandbox_id, effect, names)

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        async def effect() -> Listing[v1.PodSandbox]:
            return self._listing([s.listed() for s in self.node.sandboxes_of(uid)], previous)

        return await self._desk.serve("ListPodSandbox", uid or "", effect)

    # Containers

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        async def effect() -> ContainerId:
            sandbox = self.node.sandbox("CreateContainer", sandbox_id)
            image_id = self.images.needed(config)
            return self.node.create_container(sandbox, config, image_id).id

        names = self.node.sandbox_names(sandbox_id)
        names |= {(config.metadata or v1.ContainerMetadata()).name}
        return await self._desk.serve("CreateContainer", sandbox_id, effect, names)

    async def start_container(self, container_id: ContainerId) -> None:
        async def effect() -> None:
            self.node.start_container(self.node.container("StartContainer", container_id))

        def kill_shim() -> None:
            # containerd kills a shim that is just starting when the call is cancelled.
            if container := self.node.containers.get(container_id):
                self.node.fail_start(container, "failed to start shim: context canceled")

        names = self.node.container_names(container_id)
        await self._desk.serve("StartContainer", container_id, effect, names, when_cut=kill_shim)

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        async def effect() -> None:
            if container := self.node.containers.get(container_id):
                await self._terminate(container, grace_period)
                self.node.tell(container)

        names = self.node.container_names(container_id)
        # remote_runtime.go: the grace period, and a timeout for the kill after it.
        limit = DEADLINE + max(grace_period, 0)
        await self._desk.serve("StopContainer", container_id, effect, names, limit=limit)

    async def remove_container(self, container_id: ContainerId) -> None:
        async def effect() -> None:
            if container := self.node.containers.get(container_id):
                self.node.remove_container(container)

        names = self.node.container_names(container_id)
        await self._desk.serve("RemoveContainer", container_id, effect, names)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        async def effect() -> tuple[v1.ContainerStatus, int]:
            container = self.node.container("ContainerStatus", container_id)
            # CRI has the PID only in the verbose `info`, whose format is the runtime's own.
            has_pid = verbose and self.reports_pids
            return self.node.container_status(container), container.pid if has_pid else 0

        names = self.node.container_names(container_id)
        return await self._desk.serve("ContainerStatus", container_id, effect, names)

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        async def effect() -> Listing[v1.Container]:
            return self._listing([c.listed() for c in self.node.containers_of(uid)], previous)

        return await self._desk.serve("ListContainers", uid or "", effect)

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        async def effect() -> ExecResult:
            container = self.node.container("ExecSync", container_id)
            if not container.alive:
                raise RuntimeCallError("ExecSync", f"container {container_id} is not running")
            plan = self.on_exec(container, command)
            # CRI: 0 means no timeout.
            within = timeout_seconds or NO_DEADLINE
            with trio.move_on_after(min(plan.takes, within)) as until_done:
                await self.exit_waiter.wait_dead(container)
            # The container exited first, and the kernel killed the processes in its PID namespace.
            if not until_done.cancelled_caught:
                return ExecResult(b"", b"", SIGKILL_EXIT)
            if plan.takes > within:
                raise RuntimeTimeoutError("ExecSync", f"timed out after {within:g}s")
            return plan.result

        # The command is the runtime's child, not the call's.
        def leave_running() -> None:
            if (container := self.node.containers.get(container_id)) and container.alive:
                container.stray_commands.append(command)

        names = self.node.container_names(container_id)
        limit = timeout_seconds + DEADLINE if timeout_seconds else NO_DEADLINE
        return await self._desk.serve(
            "ExecSync", container_id, effect, names, limit=limit, when_cut=leave_running
        )

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        async def effect() -> None:
            self.node.reopen_log(self.node.container("ReopenContainerLog", container_id))

        names = self.node.container_names(container_id)
        await self._desk.serve("ReopenContainerLog", container_id, effect, names)

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        async def effect() -> list[v1.ContainerStats]:
            return [container_stats(c, self.usage(c)) for c in self.node.alive(uid)]

        return await self._desk.serve("ListContainerStats", uid or "", effect)

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        async def effect() -> list[v1.MetricDescriptor]:
            if self.metrics is None:
                raise UnsupportedCallError("ListMetricDescriptors", "unknown method")
            return self.metrics[0]

        return await self._desk.serve("ListMetricDescriptors", "", effect)

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        async def effect() -> list[v1.PodSandboxMetrics]:
            if self.metrics is None:
                raise UnsupportedCallError("ListPodSandboxMetrics", "unknown method")
            return self.metrics[1]

        return await self._desk.serve("ListPodSandboxMetrics", "", effect)

    @asynccontextmanager
    async def container_events(
        self,
    ) -> AsyncIterator[AsyncIterator[v1.ContainerEventResponse]]:
        self._desk.note("GetContainerEvents")
        stream = FakeEventStream(self.node, self._desk, supported=self.events)
        self.node.subscribers.append(stream.inbox)
        self._streams.append(stream)
        try:
            yield stream
        finally:
            self._streams.remove(stream)
            self.node.subscribers.remove(stream.inbox)

    async def _terminate(self, container: FakeContainer, grace_period: int) -> None:
        """Send SIGTERM, and after the grace period SIGKILL, unless cancelled before."""
        # As in containerd: a grace period of 0 is a SIGKILL at once.
        behaviour = container.behaviour
        if grace_period > 0:
            if not behaviour.ignores_sigterm:
                when = trio.current_time() + behaviour.stop_takes
                self.node.die_at(container, when, behaviour.stop_exit_code)
            with trio.move_on_after(grace_period):
                await self.exit_waiter.wait_dead(container)
        self.node.kill(container, SIGKILL_EXIT)

    def _listing(self, entries: list[Entry], previous: Listing[Entry] | None) -> Listing[Entry]:
        # `Listing`'s promise: an unchanged entry is the same object.
        known = previous.entries if previous is not None else {}
        kept: dict[str, Entry] = {}
        for entry in entries:
            before = known.get(entry.id)
            if before is not None and before == entry:
                kept[entry.id] = before
            else:
                self.decoded += 1
                kept[entry.id] = entry
        return Listing(kept)
