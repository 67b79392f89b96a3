"""The handle on one pod: its state, and the operations on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import trio
from lightkube.models.core_v1 import Pod, PodStatus
from trio_util import AsyncValue

from kubelet_trio.containers import LogOptions
from kubelet_trio.cri import ExecResult
from kubelet_trio.embed.client_models import to_client_pod
from kubelet_trio.embed.core import Core
from kubelet_trio.embed.errors import (
    CommandFailedError,
    ContainerUnavailableError,
    PodEndedError,
    PodNotReadyError,
    PodResizeError,
)
from kubelet_trio.embed.logs import LogLines
from kubelet_trio.embed.observed import (
    Observed,
    has_ended,
    how_it_ended,
    is_decided,
    is_ready,
    waiting_reasons,
)
from kubelet_trio.embed.resize import (
    ResourcesLike,
    is_replaced,
    is_resized,
    resized_pod,
    why_infeasible,
    why_not_resized,
    with_spec_of,
)
from kubelet_trio.model import (
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodUid,
    metadata,
    pod_annotations,
    pod_containers,
    pod_key,
    pod_uid,
    spec,
)

if TYPE_CHECKING:
    from kubelet_trio.pods import PodWhy

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_PENDING = PodStatus(phase="Pending")
# Waiting reasons that only a change from outside ends, and the seconds until we report them.
_STUCK = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
)
# Not at once: the kubelet retries, and what is missing may be created meanwhile.
_STUCK_FOR = 10.0


class RunningPod:
    """A pod of an embedded kubelet; `Kubelet.run_pod`, `apply` and `get` return it.

    Attributes:
        status: the pod's status as the kubelet reports it (core/v1 PodStatus). It keeps its
            last value once the pod is gone.
    """

    def __init__(self, core: Core[RunningPod], pod: Pod) -> None:
        """Internal: programs call `Kubelet.get`."""
        self._core = core
        self._observed: AsyncValue[Observed] = AsyncValue(Observed(pod))
        self._has_appeared = False
        self.status: AsyncValue[PodStatus] = AsyncValue(pod.status or _PENDING)

    def __repr__(self) -> str:
        return f"<RunningPod {pod_key(self.pod)} {self.status.value.phase}>"

    @property
    def pod(self) -> Pod:
        """The pod with its newest status. Treat it as frozen."""
        pod: Pod = self._observed.value.pod
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
        """Whether the pod has been completely removed."""
        gone: bool = self._observed.value.gone
        return gone

    # Waiting

    async def wait_ready(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # its error says what the pod waits for
    ) -> None:
        """Wait until the pod is Ready.

        Args:
            timeout: seconds; by default there is no limit.

        Raises:
            PodNotReadyError: the time is over; the message says what the containers wait for.
                Or a container could not be created for 10 s, for a reason that the kubelet
                cannot fix: an invalid image name, a missing config map, an account that may not
                be used. The kubelet keeps trying, and the program may wait again.
            PodEndedError: it has ended, or was removed, without becoming ready.
            KubeletClosedError: the kubelet has ended.
        """
        with trio.move_on_after(inf if timeout is None else timeout):
            await self._wait_ready()
            return
        why = self.why_not_ready or "a readiness probe or gate has not passed"
        raise PodNotReadyError(f"pod {pod_key(self.pod)} is not ready after {timeout} s: {why}")

    async def _wait_ready(self) -> None:
        observed = await self._wait(lambda s: is_decided(s) or bool(waiting_reasons(s.pod, _STUCK)))
        while not is_decided(observed):
            with trio.move_on_after(_STUCK_FOR) as patience:
                observed = await self._wait(
                    lambda s: is_decided(s) or not waiting_reasons(s.pod, _STUCK)
                )
            if patience.cancelled_caught:
                why = waiting_reasons(self.pod, _STUCK)
                raise PodNotReadyError(f"pod {pod_key(self.pod)} cannot start: {why}")
            observed = await self._wait(
                lambda s: is_decided(s) or bool(waiting_reasons(s.pod, _STUCK))
            )
        if observed.gone or not is_ready(observed.pod):
            raise PodEndedError(
                f"pod {pod_key(observed.pod)} {how_it_ended(observed)} without being ready"
            )

    @property
    def why_not_ready(self) -> str:
        """What its containers wait for, such as `main: ImagePullBackOff: ...`, or ""."""
        return "" if is_ready(self.pod) else waiting_reasons(self.pod)

    async def wait_resized(self) -> None:
        """Wait until the pod has the resources that the program wants for it.

        There is no time limit: put `trio.fail_after` around it, and read `why_not_resized` when
        it has expired. The resize is deferred while the node has no room for it, and is granted
        when another pod ends or shrinks.

        Raises:
            PodResizeError: the node can never grant them; the message says why.
            PodEndedError: the pod has ended, or was removed.
            KubeletClosedError: the kubelet has ended.
        """
        own = self._core.source.wanted.get(pod_key(self.pod))
        # A pod of another source: what it shows is all that is known here.
        wanted = own.pod if own is not None and own.uid == self.uid else self.pod
        observed = await self._wait(
            lambda s: (
                s.gone
                or has_ended(s.pod)
                or is_resized(s.pod, wanted)
                or is_replaced(s.pod, wanted)
                or bool(why_infeasible(s.pod, wanted))
            )
        )
        pod = observed.pod
        if observed.gone or has_ended(pod):
            raise PodEndedError(
                f"pod {pod_key(pod)} {how_it_ended(observed)} before it was resized"
            )
        if is_replaced(pod, wanted):
            raise PodResizeError(f"pod {pod_key(pod)}: a later resize has replaced this one")
        if why := why_infeasible(pod, wanted):
            raise PodResizeError(f"pod {pod_key(pod)} cannot be resized: {why}")

    @property
    def why_not_resized(self) -> str:
        """What a resize waits for, such as `Deferred: Node didn't have enough ...`, or ""."""
        return why_not_resized(self.pod)

    def why(self) -> PodWhy | None:
        """Return why the pod is as it is, from what its worker knows and has decided.

        `summary` is one sentence. The rest is what is wanted, what is, the `reasons` between them,
        the newest first, and what happens `next`, with times in Unix seconds. It asks nothing of
        the runtime and disturbs nothing, so it may be called at any time. None once the pod has
        left the node.

        Raises:
            KubeletClosedError: the kubelet has ended.
        """
        self._core.check_open()
        return self._core.agent.why(self.uid)

    async def wait_ended(self) -> PodStatus:
        """Wait until all containers have ended for good; return the pod's status.

        For pods whose restartPolicy lets them end: the phase is then Succeeded or Failed.

        Raises:
            PodEndedError: it was removed before it ended.
            KubeletClosedError: the kubelet has ended.
        """
        observed = await self._wait(lambda s: s.gone or has_ended(s.pod))
        if not has_ended(observed.pod):
            raise PodEndedError(
                f"pod {pod_key(observed.pod)} {how_it_ended(observed)} before it ended"
            )
        assert observed.pod.status is not None
        return observed.pod.status

    async def wait_gone(self) -> None:
        """Wait until the pod has been completely removed.

        Raises:
            KubeletClosedError: the kubelet ended first.
        """
        await self._wait(lambda observed: observed.gone)

    async def _wait(self, wanted: Callable[[Observed], bool]) -> Observed:
        observed = self._observed
        is_true = await self._core.until_ended(lambda: observed.wait_value(wanted))
        if not is_true and not wanted(observed.value):
            raise self._core.closed_error()
        latest: Observed = observed.value
        return latest

    # Operations

    async def exec(
        self,
        command: list[str] | tuple[str, ...],
        *,
        container: str = "",
        timeout: float | None = None,  # noqa: ASYNC109  # also what the error names
        check: bool = False,
    ) -> ExecResult:
        """Run a command in a container to its end, and return its output and exit code.

        A cancellation kills the command, and so does `timeout`. Output is bytes, limited by the
        runtime (usually to 16 MiB).

        Args:
            command: program and arguments, no string; no shell is involved.
            timeout: seconds; by default there is no limit.
            check: whether an exit code other than 0 raises.
            container: by default the pod's default container (annotation
                `kubectl.kubernetes.io/default-container`, or the first one).

        Raises:
            TypeError: the command is one string; it has to be a list of words.
            ValueError: the command is empty.
            ContainerUnavailableError: there is no such container, or it does not run now.
            KubeletClosedError: the kubelet has ended.
            RuntimeCallError: the runtime could not run it.
            trio.TooSlowError: it did not end within `timeout`.
            CommandFailedError: it exited with another code than 0, and `check` is set.
        """
        _check_command(command)
        self._core.check_open()
        record = self._instance(container)
        if record is None or record.state is not ContainerState.RUNNING:
            name = self._container_name(container)
            raise ContainerUnavailableError(
                f'container "{name}" of pod {pod_key(self.pod)} does not run now'
            )
        # Not the guarded runtime: its calls outlive a cancellation; this command must not.
        with trio.fail_after(inf if timeout is None else timeout):
            call = self._core.agent.seams.runtime.exec_sync
            result = await call(record.id, list(command), 0)
        if check and result.exit_code:
            raise CommandFailedError(command, result)
        return result

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
        """Return an async iterator over the lines of a container's log, oldest first.

        The loop may be left at any time. A container that has not started yet has no lines,
        unless `follow` waits for it.

        Args:
            container: as in `exec`; init containers and sidecars have logs too.
            follow: wait for further lines, across restarts of the container, until it
                will not run again.
            previous: read the log of the instance before the newest one.
            tail: only this number of last lines, counted when the loop begins.
            since: only lines written at this time or later, in Unix seconds.
            timestamps: begin each line with its time (RFC 3339, nanoseconds).

        Raises:
            ContainerUnavailableError: the pod has no such container.
        """
        # Called at each read: a restart of the container continues in another file.
        name = self._container_name(container)

        def current() -> tuple[Path | None, bool]:
            record = self._instance(name, previous=previous)
            path = Path(record.log_path) if record is not None and record.log_path else None
            return path, not previous and self._may_write(name)

        return LogLines(
            current,
            LogOptions(
                tail=tail, most=None if follow else tail, since=since, timestamps=timestamps
            ),
            follow=follow,
            offload=self._core.world.offload,
            open_watch=self._core.world.log_watch,
        )

    async def resize(
        self,
        containers: Mapping[str, ResourcesLike] = MappingProxyType({}),
        *,
        pod: ResourcesLike | None = None,
    ) -> None:
        """Change CPU and memory while the pod runs, and wait until it has them.

            await running.resize({"main": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}})

        Amounts that are not given stay; an amount may be added, not removed. The change is
        checked at once. Then it waits as `wait_resized` does. A cancellation stops the wait, not
        the resize: `wait_resized` continues it. A container whose `resizePolicy` asks for that
        is restarted. The pod keeps its UID and its address.

        Args:
            containers: requests and limits by the name of a container or init container.
            pod: for `spec.resources`, if the pod has them.

        Raises:
            ManifestError: the change is invalid; each error has the container and the field.
            TypeError: a value is of a type that no resources can be read from.
            PodResizeError: the node can never grant it, and the pod keeps its resources; or a
                later call has replaced it; or the pod comes from a manifest of the directory
                `manifests`: edit the file.
            PodEndedError: the pod has ended, or was removed.
            KubeletClosedError: the kubelet has ended.
        """
        core, key = self._core, pod_key(self.pod)
        core.check_open()
        before = core.source.wanted.get(key)
        if self.is_gone or has_ended(self.pod):
            raise PodEndedError(f"pod {key} {how_it_ended(self._observed.value)}")
        if before is None or before.uid != self.uid:
            raise PodResizeError(f"pod {key} is not a pod of this program: edit its manifest")
        wanted = replace(before, pod=resized_pod(before.pod, containers, pod))
        version = core.source.put([wanted])
        try:
            await self.wait_resized()
        except PodResizeError:
            # Otherwise the next resize would ask for these amounts again.
            if core.source.wanted.get(key) is wanted:
                core.source.put([replace(before, pod=with_spec_of(wanted.pod, before.pod))])
            raise
        if not await core.until_ended(lambda: core.source.wait_saved(version)):
            raise core.closed_error()

    async def delete(self, *, grace_period: int | None = None) -> None:
        """End the pod in order, and wait until it is completely removed.

        A cancellation stops the wait; the pod still ends.

        Args:
            grace_period: seconds, used if they are shorter than the pod's own grace period.

        Raises:
            KubeletClosedError: the kubelet has ended.
        """
        if self.is_gone:
            return
        self._core.check_open()
        core = self._core
        is_gone = await core.remove(self.pod, grace_period)
        # Until the file of kept pods is written, too: a crash must not bring the pod back.
        if not is_gone or not await core.until_ended(
            lambda: core.source.wait_saved(core.source.version)
        ):
            raise core.closed_error()

    def as_v1pod(self) -> Any:
        """Return the pod, with its status, as a `kubernetes_asyncio` V1Pod (extra `kubernetes`)."""
        return to_client_pod(self.pod)

    # Called by the core

    def update(self, pod: Pod | None) -> None:
        """Internal: take the newest state; None if the node has no such pod."""
        if pod is not None:
            self._has_appeared = True
            if pod is not self.pod:
                self._observed.value = Observed(pod)
                self.status.value = pod.status or _PENDING
        # Before it has appeared once, the agent may just not have started it yet.
        elif self._has_appeared:
            self.mark_gone()

    def mark_gone(self) -> None:
        """Internal: note that the pod has left the node."""
        self._observed.value = Observed(self.pod, gone=True)

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
        """Return whether a container writes to its log, or may start (again) and do so."""
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
        # An ordinary init container runs again only if it failed.
        if container.kind is ContainerKind.INIT and not container.is_sidecar:
            return record.exit_code != 0
        # Not at the top: `import kubelet_trio` must not load pods/. By now it is loaded.
        from kubelet_trio.pods import restarts_after

        return restarts_after(container.spec, spec(self.pod), record.exit_code)


def _check_command(command: Sequence[str]) -> None:
    # A str is a Sequence[str], so type checkers accept it; each letter would be a word.
    if isinstance(command, str | bytes):
        raise TypeError(
            f"exec: expected a list of words, such as {command.split()!r}, not {command!r}"
        )
    if not command:
        raise ValueError("exec: the command is empty: expected a program and its arguments")
