"""What a pod's next sync does: a pure function of the pod and what the runtime says of it.

`plan_pod` follows the Go kubelet's computePodActions and doBackOff (1.36). In order:

0. A container that ended as a rule of its says has all containers removed (`restart_all`).
1. A pod without a usable sandbox gets a new one, everything in the old ones is stopped and
   initialization starts over; unless its containers have all run and none may run again.
2. Ephemeral containers start once.
3. Init containers run one after the other, sidecars stay (`plan_init`).
4. Main containers start, and start again as their policies say, after their back-off.

Differences, each because the runtime's answer may lag, a reply may get lost, or a record may
be removed by somebody else:

- A container is where its record says: one that runs outside the pod's sandbox is stopped
  and replaced, and so is any but the newest instance of a name.
- An instance that was created but does not run is removed before the next one is made: if
  its start is still under way, removing it ends it, so two never run.
- What is known to have run counts even if its record is gone (`ended`), and one in unknown
  state counts as killed: with restart policy Never nothing runs twice.
- The back-off of a container of which nothing is remembered is told from its restart count.
- A pod whose remaining containers cannot run (restart policy Never, sandbox lost) is
  finished, where the Go kubelet leaves it Pending for ever.

The plan says nothing about a pod that is being ended: that is the teardown's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    SandboxRecord,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.backoff import BackOffPolicy
from kubelet_trio.pods.plan.grace import restart_grace
from kubelet_trio.pods.plan.plan_init import InitPlan, plan_init
from kubelet_trio.pods.plan.replace import has_lost_init, mains_for_new_sandbox
from kubelet_trio.pods.plan.restart import restarts_when_killed, should_start
from kubelet_trio.pods.plan.restart_all import RestartBackOffs, plan_restart_all
from kubelet_trio.pods.plan.sandbox import current_sandbox, next_attempt
from kubelet_trio.pods.plan.starts import Starts
from kubelet_trio.pods.types import (
    BackOffEntry,
    BackOffKey,
    Hold,
    PodPlan,
    StartContainer,
    StopContainer,
    WaitingReason,
)


def plan_pod(
    pod: Pod,
    observed: RuntimePod,
    *,
    now: float,
    crash: Mapping[BackOffKey, BackOffEntry] | None = None,
    policy: BackOffPolicy | None = None,
    hashes: Mapping[str, int] | None = None,
    started: Mapping[ContainerId, bool] | None = None,
    unhealthy: Mapping[ContainerId, str] | None = None,
    pull: Mapping[str, Hold] | None = None,
    min_attempts: Mapping[str, int] | None = None,
    ended: Mapping[str, int] | None = None,
    keep_dead: int | None = 1,
    restarting_all: bool = False,
) -> PodPlan:
    """Return what to do next for a pod that is wanted.

    Args:
        pod: the pod, defaulted and validated.
        observed: what the runtime holds of it.
        now: Unix seconds.
        crash: crash back-offs by `crash_key`; a `BackOff` brings its policy along.
        policy: how back-offs grow, if `crash` is a plain mapping.
        hashes: `container_hash` by container name; one that is missing never differs.
        started: whether a running sidecar is far enough for the next container (startup probe,
            postStart); one that is missing is.
        unhealthy: running instances to be restarted, and why: `failed liveness probe`.
        pull: containers whose image pull is held back.
        min_attempts: the least restart count by name, from logs on disk, for containers that
            the runtime has no record of any more.
        ended: exit codes by name of containers that are known to have run, for those that the
            runtime has no record of any more (`reported_ends`).
        keep_dead: how many dead instances of a container to keep; None: all.
        restarting_all: whether it was said that all containers are being restarted.

    Returns:
        The plan. `finished`: every main container has ended and none will start again.
    """
    given = policy or getattr(crash, "policy", None) or BackOffPolicy()
    back_offs = RestartBackOffs({} if crash is None else crash, given)
    anew = plan_restart_all(pod, observed, marked=restarting_all, crash=back_offs, now=now)
    if anew is not None:
        return anew
    planner = _Planner(
        pod,
        observed,
        current_sandbox(pod, observed),
        Starts(
            pod,
            observed,
            now,
            {} if crash is None else crash,
            given,
            hashes or {},
            pull or {},
            min_attempts or {},
        ),
        started or {},
        unhealthy or {},
        ended or {},
        keep_dead,
    )
    return planner.plan()


@dataclass(slots=True)
class _Planner:
    """One planning: the inputs, and the actions as they are decided."""

    pod: Pod
    observed: RuntimePod
    sandbox: SandboxRecord | None
    starts: Starts
    started: Mapping[ContainerId, bool]
    unhealthy: Mapping[ContainerId, str]
    ended: Mapping[str, int]
    keep_dead: int | None
    stop: dict[ContainerId, StopContainer] = field(default_factory=dict)
    start: list[StartContainer] = field(default_factory=list)
    remove: dict[ContainerId, None] = field(default_factory=dict)
    waiting: dict[str, WaitingReason] = field(default_factory=dict)
    retry_at: float | None = None

    def plan(self) -> PodPlan:
        if self.sandbox is None:
            return self._plan_new_sandbox()
        observed = self.observed
        for container in pod_containers(self.pod):
            if container.kind is ContainerKind.EPHEMERAL:
                self._plan_ephemeral(container)
        init = plan_init(
            self.pod,
            observed,
            self.sandbox.id,
            hashes=self.starts.hashes,
            started=self.started,
            unhealthy=self.unhealthy,
        )
        if init.is_done:
            kept = [self._plan_main(c) for c in self._mains()]
        else:
            kept = [not (init.has_failed or has_lost_init(self.pod, observed, self.ended))]
        if not any(kept):
            return PodPlan(sandbox_id=self.sandbox.id, finished=True)
        self._take(init)
        return self._finish_plan(self.sandbox)

    # The sandbox

    def _plan_new_sandbox(self) -> PodPlan:
        """Everything goes down with the old sandboxes, and starts over in a new one."""
        observed = self.observed
        mains = mains_for_new_sandbox(self.pod, observed, self.ended)
        if not mains:
            return PodPlan(finished=True)
        inits = [c for c in pod_containers(self.pod) if c.kind is ContainerKind.INIT]
        for container in inits[:1] or mains:
            self._start(container)
        self._prune()
        # What the Go kubelet does too: were old records of init containers kept, it would, if
        # it took the node over just now, believe that the new sandbox was initialized.
        init_names = {c.spec.name for c in inits}
        self.remove |= {c.id: None for c in observed.containers if c.name in init_names}
        known = {s.id for s in observed.sandboxes}
        for record in observed.running():
            if record.sandbox_id not in known:
                self._stop(record, f"Stopping container {record.name}")
        return PodPlan(
            stop_containers=tuple(self.stop.values()),
            stop_sandboxes=tuple(s.id for s in observed.sandboxes),
            remove_containers=tuple(self.remove),
            create_sandbox=True,
            sandbox_attempt=next_attempt(observed),
            start=tuple(self.start),
            waiting=self.waiting,
            retry_at=self.retry_at,
        )

    # Containers

    def _mains(self) -> list[PodContainer]:
        return [c for c in pod_containers(self.pod) if c.kind is ContainerKind.MAIN]

    def _take(self, init: InitPlan) -> None:
        for stop in init.stop:
            self.stop[stop.id] = stop
        # Sidecars and init containers come before what is decided on main containers.
        mains, self.start = self.start, []
        for container in init.start:
            self._start(container)
        self.start += mains

    def _plan_ephemeral(self, container: PodContainer) -> None:
        """Start it once: what has run, or is known to have, is not started again."""
        latest = self.observed.latest(container.spec.name)
        if latest is None:
            is_due = container.spec.name not in self.ended
        else:
            is_due = latest.state is ContainerState.CREATED
        if is_due:
            self._start(container)

    def _plan_main(self, container: PodContainer) -> bool:
        """Decide on one main container; return whether it keeps the pod going."""
        latest = self.observed.latest(container.spec.name)
        if latest is None or latest.state is not ContainerState.RUNNING:
            wanted = should_start(self.pod, container.spec, self.observed, self.ended)
            if latest is not None and latest.state is ContainerState.UNKNOWN:
                self._stop(latest, 'Container is in "unknown" state, try killing it before restart')
            if wanted:
                self._start(container)
            return wanted
        return self._plan_running(container, latest)

    def _plan_running(self, container: PodContainer, latest: ContainerRecord) -> bool:
        name = container.spec.name
        restart = restarts_when_killed(container.spec, spec(self.pod))
        if self.starts.has_changed(latest):
            why, restart = "definition changed", True
        elif latest.id in self.unhealthy:
            why = self.unhealthy[latest.id]
        elif self.sandbox is not None and latest.sandbox_id != self.sandbox.id:
            why = "runs outside of the pod's sandbox"
        else:
            return True
        message = f"Container {name} {why}"
        grace = restart_grace(container.spec, why)
        self._stop(latest, f"{message}, will be restarted" if restart else message, grace)
        if restart:
            self._start(container)
        # Killed for good it still holds the pod until it has ended: a finished pod is one
        # of which nothing runs, and its exit code is not known yet.
        return True

    # Actions

    def _stop(self, record: ContainerRecord, message: str, grace: int | None = None) -> None:
        self.stop[record.id] = StopContainer(record.id, record.name, message, grace)

    def _start(self, container: PodContainer) -> None:
        """Start the next instance, unless something holds it back."""
        hold = self.starts.hold(container, self.sandbox)
        if hold is not None:
            self.waiting[container.spec.name] = hold.waiting
            self.retry_at = min(self.retry_at or hold.until, hold.until)
            return
        latest = self.observed.latest(container.spec.name)
        if latest is not None and latest.state is ContainerState.CREATED:
            self.remove[latest.id] = None
        self.start.append(self.starts.start(container, self.sandbox))

    def _finish_plan(self, sandbox: SandboxRecord) -> PodPlan:
        self._stop_strays(sandbox)
        self._prune()
        return PodPlan(
            stop_containers=tuple(self.stop.values()),
            remove_containers=tuple(self.remove),
            sandbox_id=sandbox.id,
            start=tuple(self.start),
            waiting=self.waiting,
            retry_at=self.retry_at,
        )

    def _stop_strays(self, sandbox: SandboxRecord) -> None:
        """Stop what nobody wants: older instances, other sandboxes', names not in the spec."""
        names = {c.spec.name for c in pod_containers(self.pod)}
        for record in self.observed.running():
            is_newest = self.observed.latest(record.name) is record
            if not is_newest or record.name not in names or record.sandbox_id != sandbox.id:
                stop = StopContainer(record.id, record.name, f"Stopping container {record.name}")
                self.stop.setdefault(record.id, stop)

    def _prune(self) -> None:
        """Remove dead instances but the newest of each name, and all others made obsolete."""
        seen: Counter[str] = Counter()
        for record in self.observed.containers:
            is_newest = self.observed.latest(record.name) is record
            if record.state is ContainerState.EXITED:
                if self.keep_dead is not None and seen[record.name] >= self.keep_dead:
                    self.remove[record.id] = None
                seen[record.name] += 1
            elif record.state is not ContainerState.RUNNING and not is_newest:
                self.remove[record.id] = None
