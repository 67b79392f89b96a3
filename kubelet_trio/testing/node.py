"""The node behind a fake runtime: processes that start and exit, and CRI's rules.

Nothing here awaits. Exits are not tasks: each container has the time of its exit, and
`settle` applies all that are due. So time passes for containers while the runtime is down or
no agent runs, and the node can be inspected outside a trio run.

`violations` collects calls that a correct agent never makes. As in a real runtime they take
effect; tests assert at their end that the list is empty.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import trio

from kubelet_trio.containers import TERMINATION_MESSAGE_PATH
from kubelet_trio.cri import RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.model import INSTANCE, ContainerId, PodUid, SandboxId, WallClock
from kubelet_trio.testing.behaviour import SIGKILL_EXIT, Behave
from kubelet_trio.testing.holdings import Holdings
from kubelet_trio.testing.objects import FakeContainer, FakeSandbox, ns

CREATED = v1.ContainerState.CONTAINER_CREATED
RUNNING = v1.ContainerState.CONTAINER_RUNNING
EXITED = v1.ContainerState.CONTAINER_EXITED

FIRST_PID = 1000

Event = v1.ContainerEventResponse
EventKind = v1.ContainerEventType


class FakeNode:
    """Sandboxes, containers and processes, in the order of their creation."""

    def __init__(
        self, *, now: Callable[[], float], clock: WallClock, behave: Behave, write_logs: bool
    ) -> None:
        self.now = now
        self.clock = clock
        self.behave = behave
        self.write_logs = write_logs
        self.status_lag = 0.0
        self.half_filled_events = False
        self.reports_resources = True
        self._held = Holdings()
        self.sandboxes: Mapping[SandboxId, FakeSandbox] = self._held.sandboxes
        self.containers: Mapping[ContainerId, FakeContainer] = self._held.containers
        self.violations: list[str] = []
        self.shared_logs: list[str] = []  # logs with more than one instance
        self.starts: Counter[tuple[PodUid, str]] = Counter()  # by pod and container name
        self.subscribers: list[deque[Event]] = []
        self.activity = trio.Event()
        self._made = 0
        self._pids = FIRST_PID

    # Time

    def settle(self) -> None:
        """Apply everything that is due: first exits, each at its time, then their statuses."""
        now = self.now()
        # Exits first: each sets the time of its status.
        for container in self._held.deaths.take(now):
            self._die(container, container.dies_at, *container.dies_with)
        for container in self._held.tellings.take(now):
            self.tell(container)

    def next_change(self) -> float:
        """Return the time when `settle` will next have something to do, inf if never."""
        return min(self._held.deaths.next(), self._held.tellings.next())

    def wake(self) -> None:
        """Wake the tasks that wait for any change."""
        self.activity.set()
        self.activity = trio.Event()

    # Sandboxes

    def sandbox(self, call: str, sandbox_id: SandboxId) -> FakeSandbox:
        """Return a sandbox or raise `RuntimeObjectNotFoundError`."""
        if sandbox_id not in self.sandboxes:
            raise RuntimeObjectNotFoundError(call, f'sandbox "{sandbox_id}": not found')
        return self.sandboxes[sandbox_id]

    def run_sandbox(self, config: v1.PodSandboxConfig, runtime_handler: str) -> FakeSandbox:
        """Create a READY sandbox."""
        self._made += 1
        sandbox = FakeSandbox(
            id=SandboxId(f"sandbox{self._made}"),
            config=config,
            created_at=self.clock.time(),
            ip=f"10.88.{self._made // 250}.{self._made % 250 + 2}",
            runtime_handler=runtime_handler,
        )
        # As in containerd: a name is reserved until the sandbox is removed, not only while it runs.
        other = self._held.holder(sandbox.reserved_name)
        if other is not None:
            name = "_".join(str(part) for part in sandbox.reserved_name)
            message = f'failed to reserve sandbox name "{name}": reserved for "{other.id}"'
            raise RuntimeCallError("RunPodSandbox", message)
        self._check_new_sandbox(sandbox)
        self._held.add_sandbox(sandbox)
        self._emit(EventKind.CONTAINER_CREATED_EVENT, sandbox)
        self._emit(EventKind.CONTAINER_STARTED_EVENT, sandbox)
        return sandbox

    def stop_sandbox(self, sandbox: FakeSandbox) -> None:
        """Kill its running containers, and make it NOTREADY."""
        # CRI: running containers in the sandbox are forcibly terminated. A correct agent has given
        # each its grace period before.
        for container in self.in_sandbox(sandbox):
            if container.alive:
                self._violated(f"sandbox {sandbox.id} stopped while {_said(container)} runs")
                self.kill(container, SIGKILL_EXIT)
            self.tell(container)
        self.lose_sandbox(sandbox)

    def lose_sandbox(self, sandbox: FakeSandbox) -> None:
        """Make it NOTREADY, as if its pause process had exited: its containers keep running."""
        if sandbox.ready:
            sandbox.ready = False
            self._emit(EventKind.CONTAINER_STOPPED_EVENT, sandbox)

    def remove_sandbox(self, sandbox: FakeSandbox) -> None:
        """Remove it with its containers."""
        self.stop_sandbox(sandbox)
        for container in self.in_sandbox(sandbox):
            self.remove_container(container)
        self._held.drop_sandbox(sandbox)
        self._emit(EventKind.CONTAINER_DELETED_EVENT, sandbox)

    def in_sandbox(self, sandbox: FakeSandbox) -> list[FakeContainer]:
        return self._held.inside(sandbox)

    def sandboxes_of(self, uid: PodUid | None) -> Iterable[FakeSandbox]:
        """Return the sandboxes of one pod; None: all."""
        return self._held.sandboxes_of(uid)

    def containers_of(self, uid: PodUid | None) -> Iterable[FakeContainer]:
        """Return the containers of one pod; None: all."""
        return self._held.containers_of(uid)

    def by_pid(self, pid: int) -> FakeContainer | None:
        """Return the container that has or had this process."""
        return self._held.by_pid(pid)

    # Containers

    def container(self, call: str, container_id: ContainerId) -> FakeContainer:
        """Return a container or raise `RuntimeObjectNotFoundError`."""
        if container_id not in self.containers:
            raise RuntimeObjectNotFoundError(call, f'container "{container_id}": not found')
        return self.containers[container_id]

    def create_container(
        self, sandbox: FakeSandbox, config: v1.ContainerConfig, image_id: str
    ) -> FakeContainer:
        """Create a container in a READY sandbox."""
        call = "CreateContainer"
        if not sandbox.ready:
            raise RuntimeCallError(call, f"sandbox container {sandbox.id} is not running")
        self._made += 1
        container = FakeContainer(
            id=ContainerId(f"container{self._made}"),
            sandbox=sandbox,
            config=config,
            behaviour=self.behave(config),
            image_id=image_id,
            created_at=self.clock.time(),
        )
        # containerd reserves container names as well: an attempt is used once.
        for other in self.in_sandbox(sandbox):
            if other.metadata == container.metadata:
                name = f"{container.name}_{container.metadata.attempt}"
                message = f'failed to reserve container name "{name}": reserved for "{other.id}"'
                raise RuntimeCallError(call, message)
        if container.behaviour.create_error:
            raise RuntimeCallError(call, container.behaviour.create_error)
        self._held.add_container(container)
        self._emit(EventKind.CONTAINER_CREATED_EVENT, container)
        return container

    def start_container(self, container: FakeContainer) -> None:
        """Start a CREATED container in a READY sandbox."""
        call = "StartContainer"
        if container.state != CREATED:
            self._violated(f"{_said(container)} started twice")
            raise RuntimeCallError(call, f"container is in {container.state.name} state")
        if not container.sandbox.ready:
            raise RuntimeCallError(call, f"sandbox {container.sandbox.id} is not running")
        self._check_single(container)
        error = container.behaviour.start_error or self._open_log(container)
        if error:
            self.fail_start(container, error)
            raise RuntimeCallError(call, error)
        self._pids += 1
        container.pid, container.alive, container.state = self._pids, True, RUNNING
        container.started_at = self.clock.time()
        self._held.started(container)
        self.starts[container.uid, container.name] += 1
        self._emit(EventKind.CONTAINER_STARTED_EVENT, container)
        after = container.behaviour.exits_after
        if after is not None:
            self.die_at(container, self.now() + after, container.behaviour.exit_code)
        self.settle()

    def fail_start(self, container: FakeContainer, error: str) -> None:
        """Make a container that was never started EXITED, with a failed start."""
        # containerd's errorStartExitCode and errorStartReason.
        if container.state == CREATED:
            container.state, container.exit_code = EXITED, 128
            container.reason, container.message = "StartError", error
            container.finished_at = self.clock.time()

    def die_at(self, container: FakeContainer, when: float, code: int, reason: str = "") -> None:
        """Schedule the exit of a running container, unless it exits earlier."""
        if container.alive and when < container.dies_at:
            container.dies_at, container.dies_with = when, (code, reason)
            self._held.deaths.note(container)
            container.notify()
            self.wake()

    def kill(self, container: FakeContainer, code: int, reason: str = "") -> None:
        """Kill a running container now."""
        self.settle()
        if container.alive:
            self._die(container, self.now(), code, reason)

    def tell(self, container: FakeContainer) -> None:
        """Show a container's exit in its status from now on."""
        if container.state == RUNNING and not container.alive:
            container.state, container.told_at = EXITED, math.inf
            self._emit(EventKind.CONTAINER_STOPPED_EVENT, container)

    def remove_container(self, container: FakeContainer) -> None:
        """Remove a container, by force if it runs."""
        if container.alive:
            self._violated(f"{_said(container)} removed while it runs")
            self.kill(container, SIGKILL_EXIT)
        self.forget(container)

    def forget(self, container: FakeContainer) -> None:
        """Drop a container, process and record."""
        container.alive = False
        container.told_at = math.inf
        self._held.drop_container(container)
        container.notify()
        self._emit(EventKind.CONTAINER_DELETED_EVENT, container)

    def _die(self, container: FakeContainer, when: float, code: int, reason: str) -> None:
        container.alive = False
        container.dies_at = math.inf
        container.exit_code = code
        container.reason = (
            reason or container.behaviour.reason or ("Error" if code else "Completed")
        )
        # In the past, if nothing called `settle` since: no agent ran, or the runtime was down.
        container.finished_at = self.clock.time() - (self.now() - when)
        container.told_at = when + self.status_lag
        self._held.tellings.note(container)
        if container.behaviour.termination_message:
            _leave_message(container)
        container.notify()
        self.wake()
        if container.told_at <= self.now():
            self.tell(container)

    def reopen_log(self, container: FakeContainer) -> None:
        """Continue in the file at the log's path; create it if it is missing."""
        if not container.alive:
            raise RuntimeCallError("ReopenContainerLog", f"container {container.id} is not running")
        if self.write_logs and container.log_path:
            Path(container.log_path).touch()

    def _open_log(self, container: FakeContainer) -> str:
        """Write the first lines of the log; return an error's message, or ""."""
        if not self.write_logs or not container.log_path:
            return ""
        # The file's name is the restart count: an existing file means that the agent used it twice.
        if Path(container.log_path).exists():
            self.shared_logs.append(container.log_path)
        stamp = "2026-01-01T00:00:00.000000000Z stdout F"
        lines = container.behaviour.output.splitlines()
        try:
            with Path(container.log_path).open("a") as log:
                log.writelines(f"{stamp} {line}\n" for line in lines)
        except OSError as exc:
            return f"failed to open log file: {exc}"
        return ""

    # The agent's contract

    def _violated(self, what: str) -> None:
        self.violations.append(f"t={self.now():g}: {what}")

    def _check_single(self, starting: FakeContainer) -> None:
        # By pod, not by sandbox: one from a previous sandbox may still run.
        for other in self._held.containers_of(starting.uid):
            if other.alive and other.name == starting.name:
                self._violated(f"{_said(starting)} started while {_said(other)} is alive")

    def _check_new_sandbox(self, new: FakeSandbox) -> None:
        for other in self._held.rivals(new):
            if not self._is_live(other):
                continue
            if other.uid == new.uid:
                self._violated(f"second sandbox for {_pod(new)} beside {other.id}")
            # A StatefulSet's guarantee: the predecessor of the same name must have ended.
            elif _pod_name(other) == _pod_name(new) and _owner(other) == _owner(new):
                self._violated(f"sandbox for {_pod(new)} while {_pod(other)} still runs")

    def _is_live(self, sandbox: FakeSandbox) -> bool:
        return sandbox.ready or any(c.alive for c in self.in_sandbox(sandbox))

    # Events

    def _emit(self, kind: EventKind, subject: FakeContainer | FakeSandbox) -> None:
        self.wake()
        if not self.subscribers:
            return
        event = Event(
            container_id=subject.id,
            container_event_type=kind,
            created_at=ns(self.clock.time()),
        )
        sandbox = subject.sandbox if isinstance(subject, FakeContainer) else subject
        if not self.half_filled_events:
            event.pod_sandbox_status = sandbox.status()
            inside = self.in_sandbox(sandbox)
            event.containers_statuses = [self.container_status(c) for c in inside]
        # A bounded deque: a subscriber that does not read loses its oldest events.
        for inbox in self.subscribers:
            inbox.append(event)

    # Questions

    def container_status(self, container: FakeContainer) -> v1.ContainerStatus:
        """Return a container's status as ContainerStatus and events report it."""
        return container.status(has_resources=self.reports_resources)

    def sandbox_names(self, sandbox_id: SandboxId) -> frozenset[str]:
        """Return the targets of faults that match a sandbox."""
        if sandbox := self.sandboxes.get(sandbox_id):
            return frozenset({sandbox_id, sandbox.uid, sandbox.metadata.name})
        return frozenset({sandbox_id})

    def container_names(self, container_id: ContainerId) -> frozenset[str]:
        """Return the targets of faults that match a container."""
        if container := self.containers.get(container_id):
            return self.sandbox_names(container.sandbox.id) | {container_id, container.name}
        return frozenset({container_id})

    def alive(self, uid: PodUid | None = None, name: str | None = None) -> list[FakeContainer]:
        """Return the containers with a running process."""
        return [
            container
            for container in self._held.containers_of(uid)
            if container.alive and name in (None, container.name)
        ]


def _said(container: FakeContainer) -> str:
    return f"{container.id} ({container.name} of {_pod(container.sandbox)})"


def _pod(sandbox: FakeSandbox) -> str:
    return f"{sandbox.metadata.namespace}/{sandbox.metadata.name}@{sandbox.uid}"


def _pod_name(sandbox: FakeSandbox) -> tuple[str, str]:
    return sandbox.metadata.namespace, sandbox.metadata.name


def _owner(sandbox: FakeSandbox) -> str:
    """Return the agent of a sandbox: two agents on one runtime may use the same pod names."""
    return sandbox.config.annotations.get(INSTANCE, "")


def _leave_message(container: FakeContainer) -> None:
    """Write the termination message, if a message file is mounted."""
    path = container.config.annotations.get(TERMINATION_MESSAGE_PATH)
    for mount in container.config.mounts:
        if path and mount.container_path == path:
            Path(mount.host_path).write_text(container.behaviour.termination_message)
