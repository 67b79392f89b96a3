"""A handle on one pod: what it is doing, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from lightkube.models.core_v1 import Pod, PodStatus
from trio_util import AsyncValue

from kubelet_trio.containers import LogOptions
from kubelet_trio.cri import ExecResult
from kubelet_trio.embed._errors import ContainerUnavailableError, PodEndedError, PodNotReadyError
from kubelet_trio.embed.client_models import to_client_pod
from kubelet_trio.embed.core import Core
from kubelet_trio.embed.logs import LogLines
from kubelet_trio.model import (
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodUid,
    is_terminal,
    metadata,
    pod_annotations,
    pod_containers,
    pod_key,
    pod_uid,
    spec,
)

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_PENDING = PodStatus(phase="Pending")
# Reasons to wait that only somebody's doing ends, and the seconds that they must have stood for.
_STUCK = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
)
_STUCK_FOR = 10.0


@dataclass(frozen=True, slots=True)
class _Sight:
    """The pod as last seen, and whether it has left the node since."""

    pod: Pod
    gone: bool = False


class RunningPod:
    """A pod of an embedded kubelet. Made by `Kubelet.run_pod`, `apply` and `get`.

    Attributes:
        status: the pod's status as the kubelet reports it (core/v1 PodStatus). It keeps its
            last value once the pod is gone.
    """

    def __init__(self, core: Core, pod: Pod) -> None:
        """Not for programs: `Kubelet.get` gives a handle."""
        self._core = core
        self._sight: AsyncValue[_Sight] = AsyncValue(_Sight(pod))
        self._has_appeared = False
        self.status: AsyncValue[PodStatus] = AsyncValue(pod.status or _PENDING)

    def __repr__(self) -> str:
        return f"<RunningPod {pod_key(self.pod)} {self.status.value.phase}>"

    @property
    def pod(self) -> Pod:
        """The pod with its newest status. Treat it as frozen."""
        pod: Pod = self._sight.value.pod
        return pod

    @property
    def name(self) -> str:
        return pod_key(self.pod).name

    @property
    def namespace(self) -> str:
        return pod_key(self.pod).namespace

    @property
    def uid(self) -> PodUid:
        return pod_uid(self.pod)

    @property
    def is_gone(self) -> bool:
        """Whether the pod has been removed and nothing is left of it."""
        gone: bool = self._sight.value.gone
        return gone

    # Waiting

    async def wait_ready(self) -> None:
        """Wait until the pod is Ready.

        There is no time limit: put `trio.fail_after` around it, and look at `why_not_ready` when
        it has passed.

        Raises:
            PodNotReadyError: for 10 s a container could not be made, for a reason that the kubelet
                cannot mend: an image name that is none, a missing config map, an account that
                may not be used. The kubelet goes on trying, and it may be waited for again.
            PodEndedError: it has ended, or was removed, without that.
            KubeletClosedError: the kubelet has ended.
        """
        sight = await self._wait(lambda s: _is_decided(s) or bool(_waiting(s.pod, _STUCK)))
        while not _is_decided(sight):
            with trio.move_on_after(_STUCK_FOR) as patience:
                sight = await self._wait(lambda s: _is_decided(s) or not _waiting(s.pod, _STUCK))
            if patience.cancelled_caught:
                why = _waiting(self.pod, _STUCK)
                raise PodNotReadyError(f"pod {pod_key(self.pod)} cannot start: {why}")
            sight = await self._wait(lambda s: _is_decided(s) or bool(_waiting(s.pod, _STUCK)))
        if sight.gone or not is_ready(sight.pod):
            raise PodEndedError(f"pod {pod_key(sight.pod)} {_ending(sight)} without being ready")

    @property
    def why_not_ready(self) -> str:
        """What its containers wait for, such as `main: ImagePullBackOff: ...`; "" for nothing."""
        return "" if is_ready(self.pod) else _waiting(self.pod)

    async def wait_ended(self) -> PodStatus:
        """Wait until all containers have ended for good and return the pod's status.

        For pods whose restartPolicy lets them end: the phase is then Succeeded or Failed.

        Raises:
            PodEndedError: it was removed before that.
            KubeletClosedError: the kubelet has ended.
        """
        sight = await self._wait(lambda s: s.gone or has_ended(s.pod))
        if not has_ended(sight.pod):
            raise PodEndedError(f"pod {pod_key(sight.pod)} {_ending(sight)} before it ended")
        assert sight.pod.status is not None
        return sight.pod.status

    async def wait_gone(self) -> None:
        """Wait until the pod has been removed by somebody and nothing is left of it.

        Raises `KubeletClosedError` when the kubelet ends first.
        """
        await self._wait(lambda sight: sight.gone)

    async def _wait(self, wanted: Callable[[_Sight], bool]) -> _Sight:
        sight = self._sight
        came = await self._core.until_ended(lambda: sight.wait_value(wanted))
        if not came and not wanted(sight.value):
            raise self._core.closed_error()
        seen: _Sight = sight.value
        return seen

    # Acting

    async def exec(self, command: Sequence[str], *, container: str = "") -> ExecResult:
        """Run a command in a container to its end, and return its output and exit code.

        There is no time limit: put `trio.fail_after` around it. Cancelled, the command is
        killed. Output is bytes, as much of it as the runtime keeps (16 MiB as a rule).

        Args:
            command: program and arguments; no shell is involved.
            container: by default the pod's default container (annotation
                `kubectl.kubernetes.io/default-container`, or the first one).

        Raises:
            TypeError: the command is one string: it has to be a list of words.
            ValueError: the command is empty.
            ContainerUnavailableError: there is no such container, or it does not run now.
            RuntimeCallError: the runtime could not run it.
        """
        _check_command(command)
        self._core.check_open()
        record = self._instance(container)
        if record is None or record.state is not ContainerState.RUNNING:
            name = self._container_name(container)
            raise ContainerUnavailableError(
                f'container "{name}" of pod {pod_key(self.pod)} does not run now'
            )
        # Not the guarded one: a program's own command ends with whoever asked for it.
        return await self._core.agent.bare_runtime.exec_sync(record.id, list(command), 0)

    def logs(
        self,
        container: str = "",
        *,
        follow: bool = False,
        previous: bool = False,
        tail: int | None = None,
        since: float | None = None,
        timestamps: bool = False,
    ) -> LogLines:
        """Return an async iterator over the lines that a container wrote, oldest first.

        The loop may be left at any time. Of a container that has not started yet there is
        nothing, unless `follow` waits for it.

        Args:
            container: as in `exec`; init containers and sidecars have logs too.
            follow: go on with what is written next, across restarts of the container,
                until it will not run again.
            previous: of the instance before the newest one.
            tail: only the last so many lines, counted when the loop begins.
            since: only what was written then or later, in Unix seconds.
            timestamps: begin each line with its time (RFC 3339, nanoseconds).

        Raises:
            ContainerUnavailableError: the pod has no such container.
        """
        name = self._container_name(container)

        def current() -> tuple[Path | None, bool]:
            record = self._instance(name, previous=previous)
            path = Path(record.log_path) if record is not None and record.log_path else None
            return path, not previous and self._may_write(name)

        return LogLines(
            current,
            LogOptions(tail=tail, since=since, timestamps=timestamps),
            follow=follow,
            offload=self._core.world.offload,
            open_watch=self._core.world.log_watch,
        )

    async def delete(self, *, grace_period: int | None = None) -> None:
        """End the pod in order, and wait until nothing is left of it.

        Cancelled, it stops waiting; the pod goes on ending.

        Args:
            grace_period: seconds instead of the pod's own, if that is longer.

        Raises:
            KubeletClosedError: the kubelet has ended.
        """
        if self.is_gone:
            return
        self._core.check_open()
        core = self._core
        is_gone = await core.remove(self.pod, grace_period)
        if not is_gone or not await core.until_ended(
            lambda: core.source.wait_saved(core.source.version)
        ):
            raise core.closed_error()

    def as_v1pod(self) -> Any:
        """Return the pod, with its status, as a `kubernetes_asyncio` V1Pod (extra `kubernetes`)."""
        return to_client_pod(self.pod)

    # What the core tells

    def see(self, pod: Pod | None) -> None:
        """Not for programs: take the newest state, None where the node knows no such pod."""
        if pod is not None:
            self._has_appeared = True
            if pod is not self.pod:
                self._sight.value = _Sight(pod)
                self.status.value = pod.status or _PENDING
        elif self._has_appeared:
            self.note_gone()

    def note_gone(self) -> None:
        """Not for programs: the pod has left the node."""
        self._sight.value = _Sight(self.pod, gone=True)

    # Containers

    def _container_name(self, name: str) -> str:
        known = [c.spec.name for c in pod_containers(self.pod)]
        if not name:
            mains = [c.name for c in spec(self.pod).containers or ()]
            name = pod_annotations(self.pod).get(_DEFAULT_CONTAINER) or mains[0]
        if name not in known:
            raise ContainerUnavailableError(
                f'pod {pod_key(self.pod)} has no container "{name}" (it has: {", ".join(known)})'
            )
        return name

    def _instance(self, container: str, *, previous: bool = False) -> ContainerRecord | None:
        instances = self._core.agent.observed(self.uid).of(self._container_name(container))
        place = 1 if previous else 0
        return instances[place] if len(instances) > place else None

    def _may_write(self, name: str) -> bool:
        """Whether a container writes to its log now, or may start (again) and do so."""
        if self.is_gone or self._core.ended.value:
            return False
        record = self._instance(name)
        if record is not None and record.state is ContainerState.RUNNING:
            return True
        if has_ended(self.pod) or metadata(self.pod).deletionTimestamp is not None:
            return False
        if record is None or record.state is not ContainerState.EXITED:
            return True
        container = next(c for c in pod_containers(self.pod) if c.spec.name == name)
        if container.kind is ContainerKind.INIT and not container.is_sidecar:
            return record.exit_code != 0
        from kubelet_trio.pods import restarts_after  # loaded: a kubelet runs

        return restarts_after(container.spec, spec(self.pod), record.exit_code)


def _is_decided(sight: _Sight) -> bool:
    return sight.gone or is_ready(sight.pod) or has_ended(sight.pod)


def _waiting(pod: Pod, reasons: Collection[str] = ()) -> str:
    """Say what containers wait for: all of it, or what is among the reasons."""
    status = pod.status or PodStatus()
    found = [
        ": ".join(part for part in (c.name, waiting.reason, waiting.message) if part)
        for c in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
        if c.state is not None and (waiting := c.state.waiting) is not None
        if not reasons or waiting.reason in reasons
    ]
    return "; ".join(found)


def _check_command(command: Sequence[str]) -> None:
    # A str is a Sequence[str] to a type checker: its letters would be the words.
    if isinstance(command, str | bytes):
        raise TypeError(
            f"exec: expected a list of words, such as {command.split()!r}, not {command!r}"
        )
    if not command:
        raise ValueError("exec: the command is empty: expected a program and its arguments")


def is_ready(pod: Pod) -> bool:
    """Whether the pod's Ready condition is true."""
    conditions = (pod.status.conditions if pod.status is not None else None) or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def has_ended(pod: Pod) -> bool:
    """Whether the pod's phase is a final one."""
    return is_terminal(pod.status)


def _ending(sight: _Sight) -> str:
    if sight.gone:
        return "was removed"
    status = sight.pod.status or PodStatus()
    why = status.message or status.reason or _exit_codes(status)
    return f"ended ({status.phase}{f': {why}' if why else ''})"


def _exit_codes(status: PodStatus) -> str:
    ended = [
        f"{c.name} exited with {c.state.terminated.exitCode}"
        for c in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
        if c.state is not None and c.state.terminated is not None
    ]
    return ", ".join(ended)
