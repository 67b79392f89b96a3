"""The embedded runtime: a container is a process of this host, without images or isolation.

A pod gets supervision, logs, restarts and an ordered termination. Each container has a shim of
its own and its state on disk (`store`, `process_state`), so a later agent finds all of them even
if this one is killed.

`run` is the supervised child that owns the shims' nursery; the rest is plain calls. Only this
object changes the state in memory. Calls about one container may overlap: each of their steps may
run twice, and a state that arrives late is dropped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec
import trio

import kubelet_trio
from kubelet_trio.cri.errors import (
    RuntimeCallError,
    RuntimeTimeoutError,
    UnsupportedCallError,
)
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process import cgroup, control, process_state, stats, store
from kubelet_trio.cri.process.control import ProcessStreams
from kubelet_trio.cri.process.creation import ContainerCreator
from kubelet_trio.cri.process.identity import RefusedError, own_identity
from kubelet_trio.cri.process.launch import stop_signal
from kubelet_trio.cri.process.launcher import Launcher
from kubelet_trio.cri.process.registry import (
    Container,
    Registry,
    Sandbox,
    container_name,
    sandbox_name,
)
from kubelet_trio.cri.process.resizing import change_resources
from kubelet_trio.cri.process.unsupported import HostImages, NoMetrics, NoStreamUrls
from kubelet_trio.cri.protocol import REQUEST_TIMEOUT, ExecResult, Listing, LocalStreams
from kubelet_trio.model import (
    ContainerId,
    Offload,
    PodUid,
    Purpose,
    SandboxId,
    get_logger,
    thread_offload,
)

log = get_logger()

NOTICE = (
    "containers are processes of this host: image names stand for the host's own files, and "
    "nothing isolates a container from the host or from another"
)
_MAX_EXEC_OUTPUT = 16 << 20  # bytes of each stream: containerd's and CRI-O's limit for ExecSync
_POLL = 0.01  # s
_SHIM_LIMIT = 2.0  # s for a shim to end once its container was stopped


class ProcessRuntime(HostImages, NoMetrics, NoStreamUrls):
    """`Runtime` on host processes."""

    def __init__(
        self,
        root_dir: Path,
        *,
        allow_root: bool = False,
        request_timeout: float = REQUEST_TIMEOUT,
        offload: Offload = thread_offload.of(Purpose.RUNTIME),
        python: str = sys.executable,
    ) -> None:
        """Use `root_dir/process-runtime`; nothing is read or created before the first call.

        Args:
            root_dir: the agent's directory. Only one agent at a time may use it.
            allow_root: whether containers may run as root.
            request_timeout: deadline of a call in seconds.
            offload: runs blocking work.
            python: the interpreter that shims run on.
        """
        self._state_dir = root_dir.absolute() / "process-runtime"
        self._timeout = request_timeout
        self._offload = offload
        self._launcher = Launcher(python, self._state_dir)
        own = own_identity()
        super().__init__(own.uid)
        self._is_root = own.uid == 0
        self._creator = ContainerCreator(
            root_dir.absolute(), own, allow_root, self._report_unapplied
        )
        self._reported: set[tuple[str, str]] = set()
        self._registry = Registry(self._state_dir, offload)
        self._starting: set[ContainerId] = set()
        self._updating = trio.Lock()

    def check_state(self) -> None:
        """Raise `StateVersionError` if the state is of a newer agent. Blocks; raises OSError."""
        store.check_versions(self._state_dir)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the shims' nursery until cancelled; without it no container starts."""
        log.info("process.notice", meaning=NOTICE)
        await self._launcher.run(task_status=task_status)

    # The service

    async def version(self) -> v1.VersionResponse:
        await trio.lowlevel.checkpoint()
        return v1.VersionResponse(
            version="0.1.0",  # the constant that containerd answers
            runtime_name="process",
            runtime_version=kubelet_trio.__version__,
            runtime_api_version="v1",
        )

    async def status(self) -> v1.StatusResponse:
        with self._call("Status"):
            await self._registry.load()
        problem = self._launcher.problem
        ready = v1.RuntimeCondition(type="RuntimeReady", status=not problem, message=problem)
        if problem:
            ready.reason = "NoShims"
        network = v1.RuntimeCondition(type="NetworkReady", status=True)
        # The shim sets exactly the groups we name, so Strict is obeyed; only root may set any.
        features = v1.RuntimeFeatures(supplemental_groups_policy=self._is_root)
        status = v1.RuntimeStatus(conditions=[ready, network])
        return v1.StatusResponse(status=status, features=features)

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        await trio.lowlevel.checkpoint()
        linux = v1.LinuxRuntimeConfiguration(cgroup_driver=v1.CgroupDriver.CGROUPFS)
        return v1.RuntimeConfigResponse(linux=linux)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Do nothing: processes have the host's addresses."""
        await trio.lowlevel.checkpoint()

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        call = "RunPodSandbox"
        with self._call(call):
            await self._registry.load()
            if runtime_handler:
                raise RuntimeCallError(call, f'no runtime for "{runtime_handler}" is configured')
            name = sandbox_name(config)
            for other in self._registry.sandboxes.values():
                if other.reserved_name == name:
                    raise RuntimeCallError(call, _reserved("sandbox", name, other.facts.id))
            with self._registry.reserve(call, "sandbox", name):
                facts = store.SandboxFacts(
                    id=SandboxId(store.new_id()),
                    created_at=time.time_ns(),
                    boot=self._registry.boot,
                )
                directory = self._state_dir / facts.id
                await self._offload(store.write_sandbox, directory, facts, config)
                self._registry.sandboxes[facts.id] = Sandbox(
                    directory, facts, config, self._registry.boot
                )
        return facts.id

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        with self._call("StopPodSandbox"):
            await self._registry.load()
            sandbox = self._registry.sandboxes.get(sandbox_id)
            if sandbox is not None:
                await self._stop_sandbox(sandbox)

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        with self._call("RemovePodSandbox"):
            await self._registry.load()
            sandbox = self._registry.sandboxes.get(sandbox_id)
            if sandbox is None:
                return
            await self._stop_sandbox(sandbox)
            for container in tuple(sandbox.containers.values()):
                await self._remove(container)
            await self._offload(store.remove, sandbox.directory)
            self._registry.sandboxes.pop(sandbox_id, None)

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        with self._call("PodSandboxStatus"):
            await self._registry.load()
            return self._registry.sandbox("PodSandboxStatus", sandbox_id).status()

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        with self._call("ListPodSandbox"):
            await self._registry.load()
            asked = (s for s in self._registry.sandboxes.values() if uid in (None, s.uid))
            return Listing({sandbox.facts.id: sandbox.entry for sandbox in asked})

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        """Do nothing: no sandbox was sized by its pod's resources."""
        with self._call("UpdatePodSandboxResources"):
            await self._registry.load()
            self._registry.sandbox("UpdatePodSandboxResources", sandbox_id)
        return True

    # Containers

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        call = "CreateContainer"
        with self._call(call):
            await self._registry.load()
            sandbox = self._registry.ready_sandbox(call, sandbox_id)
            metadata = config.metadata or v1.ContainerMetadata()
            name = container_name(metadata, sandbox)
            for other in sandbox.containers.values():
                if other.metadata == metadata:
                    raise RuntimeCallError(call, _reserved("container", name, other.id))
            with self._registry.reserve(call, "container", f"{sandbox_id}/{name}"):
                try:
                    container = await self._offload(self._creator.create, sandbox, config)
                except RefusedError as exc:
                    message = f'container "{metadata.name}" cannot be made: {exc}'
                    raise RuntimeCallError(call, message) from exc
                self._registry.add(container)
        return container.id

    async def start_container(self, container_id: ContainerId) -> None:
        call = "StartContainer"
        with self._call(call):
            container = await self._registry.find(call, container_id)
            state = container.process.state
            if state != process_state.CREATED or container_id in self._starting:
                name = state.name if state != process_state.CREATED else "CONTAINER_STARTING"
                raise RuntimeCallError(call, f"container is in {name} state")
            self._registry.ready_sandbox(call, container.sandbox.facts.id)
            self._starting.add(container_id)
            try:
                reply = await self._launcher.start(container.directory)
            finally:
                self._starting.discard(container_id)
            await self._registry.observe([container])
        if reply.error:
            raise RuntimeCallError(call, reply.error)

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        """Send the stop signal to the main process; kill everything after `grace_period` s."""
        with self._call("StopContainer", max(grace_period, 0)):
            await self._registry.load()
            container = self._registry.containers.get(container_id)
            if container is not None:
                await self._stop(container, grace_period)

    async def remove_container(self, container_id: ContainerId) -> None:
        with self._call("RemoveContainer"):
            await self._registry.load()
            container = self._registry.containers.get(container_id)
            if container is not None:
                await self._remove(container)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        with self._call("ContainerStatus"):
            container = await self._registry.find("ContainerStatus", container_id)
            return container.status(), container.process.pid if verbose else 0

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        with self._call("ListContainers"):
            return Listing({c.id: c.entry for c in await self._registry.of_pod(uid)})

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command with the container's user, environment and limits.

        After `timeout_seconds` the command and its descendants are killed. Processes that a
        command leaves running when it ends by itself stay part of the container.
        """
        output = {"stdout": bytearray(), "stderr": bytearray()}
        with trio.move_on_after(timeout_seconds or float("inf")):
            async with self._open_exec("ExecSync", container_id, command) as process:
                async for stream, content in process:
                    room = _MAX_EXEC_OUTPUT - len(output[stream])
                    output[stream] += content[:room]
                code = process.exit_code
            assert code is not None
            return ExecResult(bytes(output["stdout"]), bytes(output["stderr"]), code)
        quoted = " ".join(command)
        message = f'command timed out: "{quoted}" timed out after {timeout_seconds}s'
        raise RuntimeTimeoutError("ExecSync", message)

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[v1.ContainerEventResponse]]:
        """Open nothing: exits are seen through pidfds."""
        yield _no_events()

    # Streams

    @property
    def local_streams(self) -> LocalStreams:
        return self

    def open_exec(
        self,
        container_id: ContainerId,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
    ) -> AbstractAsyncContextManager[ProcessStreams]:
        """Run a command in a container; leaving the context kills it.

        Raises `RuntimeCallError` if it cannot be started.
        """
        return self._open_exec("Exec", container_id, command, tty=tty, stdin=stdin)

    @asynccontextmanager
    async def open_attach(self, container_id: ContainerId) -> AsyncIterator[ProcessStreams]:
        """Attach to the input and output of a running container, from now on."""
        container = await self._registry.find_running("Attach", container_id)
        async with control.attach(container.directory, "Attach") as streams:
            yield streams

    async def open_port(self, sandbox_id: SandboxId, port: int) -> trio.SocketStream:
        """Connect to a port on this host's loopback. Raises OSError and `RuntimeCallError`."""
        await self._registry.load()
        self._registry.ready_sandbox("PortForward", sandbox_id)
        # A server may listen on only one of the two.
        try:
            return await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            return await trio.open_tcp_stream("::1", port)

    # Logs and stats

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        """Continue a container's log in a new file, after the old one was renamed."""
        call = "ReopenContainerLog"
        with self._call(call):
            container = await self._registry.find_running(call, container_id)
            async with control.connect(container.directory, call) as shim:
                await shim.request(call, "reopen")

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        """Change a container's resources, and its cgroup if it has one.

        As in containerd, one that has exited is changed on record only.
        """
        with self._call("UpdateContainerResources"):
            async with self._updating:  # each change is merged into the last one
                container = await self._registry.find("UpdateContainerResources", container_id)
                container.config = await self._offload(
                    change_resources,
                    container.directory,
                    container.live_cgroups,
                    container.config,
                    resources,
                )

    async def container_stats(self, container_id: ContainerId) -> v1.ContainerStats:
        """Return the CPU and memory usage of a running container."""
        call = "ContainerStats"
        with self._call(call):
            container = await self._registry.find_running(call, container_id)
            found = await self._offload(stats.container_stats, [container])
        return found[0]

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        """Return the usage of all running containers, or of one pod's."""
        with self._call("ListContainerStats"):
            asked = await self._registry.of_pod(uid)
            return await self._offload(stats.container_stats, asked)

    # Internals

    @contextmanager
    def _call(self, call: str, extra_time: float = 0.0) -> Iterator[None]:
        """Give a call its deadline, and translate OSError into a `RuntimeCallError`."""
        try:
            with trio.fail_after(self._timeout + extra_time):
                yield
        except trio.TooSlowError as exc:
            raise RuntimeTimeoutError(call, "deadline exceeded") from exc
        except OSError as exc:
            raise RuntimeCallError(call, str(exc)) from exc

    def _report_unapplied(self, what: str, why: str) -> None:
        """Log once that a setting is not applied."""
        if (what, why) not in self._reported:
            self._reported.add((what, why))
            log.warning("process.not_applied", what=what, reason=why)

    @asynccontextmanager
    async def _open_exec(
        self,
        call: str,
        container_id: ContainerId,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
    ) -> AsyncIterator[ProcessStreams]:
        container = await self._registry.find_running(call, container_id)
        async with control.run_command(
            container.directory, command, call=call, tty=tty, stdin=stdin
        ) as streams:
            yield streams

    async def _stop_sandbox(self, sandbox: Sandbox) -> None:
        async with trio.open_nursery() as stops:
            for container in tuple(sandbox.containers.values()):
                stops.start_soon(self._stop, container, 0)
        if not sandbox.facts.stopped:
            facts = msgspec.structs.replace(sandbox.facts, stopped=True)
            await self._offload(store.update_sandbox, sandbox.directory, facts)
            sandbox.update(facts)

    async def _stop(self, container: Container, grace_period: float) -> None:
        """Stop a container and wait until it has exited; do nothing if it was never started."""
        call = "StopContainer"
        await self._registry.observe([container])
        if container.process.state == process_state.RUNNING:
            # A shim that is gone has written `exit.json`, or died: `observe` finds out below.
            with suppress(control.ShimGoneError):
                async with control.connect(container.directory, call) as shim:
                    await self._end(shim, container, grace_period)
        stopped_at = trio.current_time()
        await self._registry.observe([container])
        while container.process.state == process_state.RUNNING:
            if trio.current_time() > stopped_at + _SHIM_LIMIT:
                # The shim hangs. Killing it kills the container's main process as well.
                await self._offload(
                    process_state.kill_shim, container.directory, self._registry.boot
                )
            await trio.sleep(_POLL)
            await self._registry.observe([container])

    async def _end(
        self, shim: control.ShimConnection, container: Container, grace_period: float
    ) -> None:
        call = "StopContainer"
        if grace_period > 0:
            await shim.request(call, "signal", signal=stop_signal(container.config))
            with trio.move_on_after(grace_period) as waited:
                await shim.wait_exited()
            if not waited.cancelled_caught:
                return
        await shim.request(call, "kill")
        await shim.wait_exited()

    async def _remove(self, container: Container) -> None:
        await self._stop(container, 0)
        while container.process.state == process_state.CREATED:
            # A start may still be in progress although its caller gave up. Either its shim creates
            # `shim.json` first, and we stop that container, or we do, and the shim ends.
            if await self._offload(process_state.forbid_start, container.directory):
                break
            await trio.sleep(_POLL)
            await self._stop(container, 0)
        await self._offload(_remove_files, container)
        self._registry.drop(container)


async def _no_events() -> AsyncIterator[v1.ContainerEventResponse]:
    await trio.lowlevel.checkpoint()
    raise UnsupportedCallError("GetContainerEvents", "the process runtime sends no events")
    yield v1.ContainerEventResponse()  # makes this function a generator


def _reserved(kind: str, name: str, owner: str) -> str:
    return f'failed to reserve {kind} name "{name}": name is reserved for "{owner}"'


def _remove_files(container: Container) -> None:
    cgroup.remove_cgroup(map(Path, container.facts.cgroups))
    store.remove(container.directory)
