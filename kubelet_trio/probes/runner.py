"""The task of one probe of one container.

As upstream, it ticks every period from its start on, whatever the container does. Each tick looks
at the worker's last view of the pod (`PodView`) and runs the probe if it is due. A readiness probe
of a container that is not ready also runs whenever the worker updates the view, for instance when
the container has started, and ticks from then on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import trio
from lightkube.models.core_v1 import Pod, Probe
from structlog.contextvars import bind_contextvars

from kubelet_trio.cri import Runtime
from kubelet_trio.model import (
    Bell,
    ContainerId,
    ContainerRecord,
    EventSink,
    Meter,
    PodContainer,
    PodUid,
    RuntimePod,
    WallClock,
    get_logger,
    pod_containers,
    pod_key,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.probes.checks import Target, check
from kubelet_trio.probes.exec import ProbeCommands, open_commands
from kubelet_trio.probes.orphans import ExecOrphans
from kubelet_trio.probes.state import Finding, ProbeError, ProbeKind, ProbeState, is_due
from kubelet_trio.tracing import CONTAINER, Span, pod_attributes, tentative_span

if TYPE_CHECKING:
    from kubelet_trio.probes.scripted import ContainerScript

log = get_logger()

_SPANS = {kind: f"{kind.value.lower()}Probe" for kind in ProbeKind}


def _no_note(
    _pod: PodUid, _name: str, _id: ContainerId, _kind: str, _found: str, _text: str
) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class ProbeServices:
    """What all probes of the node share."""

    runtime: Runtime
    events: EventSink
    clock: WallClock
    started_at: float = 0.0  # Unix seconds at which the agent started
    orphans: ExecOrphans | None = None  # None: containers' processes cannot be seen
    meter: Meter = field(default_factory=Meter)
    # Called with each finding: pod, container, its id, kind, `success`, `failure` or `unknown`, and
    # a text.
    note: Callable[[PodUid, str, ContainerId, str, str, str], None] = _no_note
    script: ContainerScript | None = None  # of a replay: what the probes find; None: they run


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as its worker last saw it."""

    pod: Pod
    observed: RuntimePod
    pod_ip: str = ""

    def container(self, name: str) -> PodContainer | None:
        return next((c for c in pod_containers(self.pod) if c.spec.name == name), None)


@dataclass(slots=True, eq=False)
class ProbeRunner:
    """The task of one probe, and its state, which survives a crash of the task."""

    services: ProbeServices
    kind: ProbeKind
    container: str
    view: Callable[[], PodView]
    begin: Callable[[ContainerRecord], ProbeState]  # returns the state of a new container
    is_started: Callable[[ContainerRecord], bool]
    changed: Callable[[], None]  # called when the result has changed
    state: ProbeState | None = None
    said: str = ""  # what the last run that counted has found
    said_at: float = 0.0  # Unix seconds
    _kicked: Bell = field(default_factory=Bell, init=False)

    def kick(self) -> None:
        """Look at the container now instead of at the next tick."""
        self._kicked.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Probe until cancelled."""
        task_status.started()
        # This task's own: every line that is logged for the probe names its container.
        bind_contextvars(containerName=self.container, probe=self.kind.value.lower())
        if self.services.script is not None:
            await self._follow(self.services.script)
        period = self._period()
        since_start = self.services.clock.time() - self.services.started_at
        # As upstream: right after the agent's start spread the first tick over a period. Otherwise
        # all probes of the node would run at the same moment, then and at every later tick.
        if 0 <= since_start < period:
            await trio.sleep(random.uniform(0, period))
        tick, is_kicked = trio.current_time(), False
        async with open_commands(self.services.runtime, self.services.orphans) as commands:
            while True:
                self._kicked.clear()
                # As upstream's worker, which resets its ticker when it is triggered.
                tick = (trio.current_time() if is_kicked else tick) + self._period()
                await self._look(commands)
                # Ticks that were missed during a slow run become one.
                tick = max(tick, trio.current_time())
                with trio.move_on_at(tick) as waited:
                    await self._kicked.wait_ring()
                is_kicked = not waited.cancelled_caught

    async def _follow(self, script: ContainerScript) -> NoReturn:
        """Count findings that are known, until cancelled."""
        from kubelet_trio.probes.scripted import ScriptReader  # only a replay has a script

        findings = script.findings(pod_uid(self.view().pod), self.container, self.kind)
        reader, is_kicked = ScriptReader(findings, trio.current_time()), False
        while True:
            self._kicked.clear()
            scripted = reader.take(trio.current_time(), self._period(), is_kicked=is_kicked)
            due = self._due()
            if due is not None and scripted is not None and scripted.finding is not None:
                found, _, record = due
                if scripted.instance == record.id:
                    self._count(found, scripted.finding)
            with trio.move_on_at(reader.next_at) as waited:
                await self._kicked.wait_ring()
            is_kicked = not waited.cancelled_caught

    def _period(self) -> float:
        found = self.view().container(self.container)
        probe = self.kind.of(found.spec) if found is not None else None
        return float((probe.periodSeconds if probe is not None else None) or 10)

    async def _look(self, commands: ProbeCommands) -> None:
        """Run the probe if it is due, and count its finding."""
        due = self._due()
        if due is None:
            return
        found, probe, record = due
        view = self.view()
        if probe.exec is not None and commands.is_busy:
            return  # as upstream, whose worker still waits for the runtime's answer
        target = Target(found.spec, record.id, view.pod_ip)
        with tentative_span(_SPANS[self.kind], view.pod, pod_attributes) as opened:
            opened.set(CONTAINER, self.container)
            finding = await self._check(view.pod, found, probe, target, commands, opened)
        if finding is not None:
            self._count(found, finding)

    async def _check(
        self,
        pod: Pod,
        container: PodContainer,
        probe: Probe,
        target: Target,
        commands: ProbeCommands,
        opened: Span,
    ) -> Finding | None:
        """Run the probe, and measure it; return None if it found nothing.

        Only the span of a failure is kept.
        """
        began = trio.current_time()
        try:
            finding = await check(probe, target, commands)
        except ProbeError as exc:
            # It is not counted: doProbe of upstream's worker.go throws it away.
            self._note(target.container_id, "unknown", str(exc))
            text = f"{self.kind.value} probe errored and resulted in {exc.state} state: {exc}"
            self._event("Unhealthy", container, text)
            opened.fail(text)
            opened.keep()
            return None
        self._measure(pod, began, is_success=finding.is_success)
        # A body, and what a command prints, may hold anything.
        is_shown = not finding.is_success and probe.exec is None
        result = "success" if finding.is_success else "failure"
        self._note(target.container_id, result, finding.output if is_shown else "")
        if not finding.is_success:
            opened.fail(f"{self.kind.value} probe failed: {finding.output}")
            opened.keep()
        return finding

    def _due(self) -> tuple[PodContainer, Probe, ContainerRecord] | None:
        """Return what the probe runs on, if it is due."""
        view = self.view()
        found, record = view.container(self.container), view.observed.latest(self.container)
        probe = self.kind.of(found.spec) if found is not None else None
        if found is None or probe is None or record is None:
            return None
        if self.state is None or self.state.container_id != record.id:
            self.state = self.begin(record)
        now, started = self.services.clock.time(), self.is_started(record)
        if not is_due(self.state, probe, record, is_started=started, now=now):
            return None
        return found, probe, record

    def _note(self, instance: ContainerId, result: str, text: str) -> None:
        uid, kind = pod_uid(self.view().pod), self.kind.value.lower()
        self.services.note(uid, self.container, instance, kind, result, text)

    def _measure(self, pod: Pod, began: float, *, is_success: bool) -> None:
        meter, key = self.services.meter, pod_key(pod)
        labels = (pod_uid(pod), key.namespace, key.name, self.container, self.kind.value)
        meter.count("prober_probe_total", (*labels, "successful" if is_success else "failed"))
        if is_success:
            took = trio.current_time() - began
            meter.observe("prober_probe_duration_seconds", took, labels)

    def _count(self, container: PodContainer, finding: Finding) -> None:
        latest = self.view().observed.latest(self.container)
        if self.state is None or latest is None or latest.id != self.state.container_id:
            return  # the container was restarted meanwhile: either instance may have answered
        kind = self.kind.value
        if not finding.is_success:
            self._event("Unhealthy", container, f"{kind} probe failed: {finding.output}")
        elif finding.is_warning:
            self._event("ProbeWarning", container, f"{kind} probe warning: {finding.output}")
        probe = self.kind.of(container.spec)
        assert probe is not None
        self.said, self.said_at = finding.output, self.services.clock.time()
        before, self.state = self.state, self.state.after(probe, is_success=finding.is_success)
        if self.state.result is not before.result:
            log.info(
                "probe.result",
                containerName=self.container,
                probe=kind.lower(),
                result=self.state.result.value,
            )
            self.changed()

    def _event(self, reason: str, container: PodContainer, message: str) -> None:
        ref = pod_object_ref(self.view().pod, container.field_path)
        self.services.events.emit(ref, "Warning", reason, message)
