"""A small world that plans are carried out in: no runtime, no clock but a number.

It keeps CRI's rules by assertion (unique names, nothing started outside a ready sandbox,
at most one live instance), so a plan that breaks one fails the test that carried it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.model import (
    TERMINAL_PHASES,
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    RuntimePod,
    SandboxId,
    SandboxRecord,
    is_terminal,
    pod_containers,
)
from kubelet_trio.pods.plan import (
    BackOffTable,
    PlanInput,
    PodPlan,
    StartContainer,
    current_sandbox,
    is_restarting_all,
    plan_pod,
)
from kubelet_trio.pods.status import pod_status, reported_ends
from kubelet_trio.pods.types import PodStage, StatusInput
from tests.pods.make import UID

LIVE = (ContainerState.RUNNING, ContainerState.UNKNOWN)


@dataclass
class World:
    """One pod on a node. `starts_fail`: starts leave an instance that never runs."""

    pod: Pod
    now: float = 1000.0
    starts_fail: bool = False
    crash: BackOffTable = field(default_factory=BackOffTable)
    sandboxes: list[SandboxRecord] = field(default_factory=list)  # newest first
    containers: list[ContainerRecord] = field(default_factory=list)  # newest first
    status: PodStatus | None = None
    is_over: bool = False
    initialized: set[tuple[str, str]] = field(default_factory=set)  # sandbox, init container
    logged: dict[str, int] = field(default_factory=dict)  # restart counts that logs tell of

    def observed(self) -> RuntimePod:
        return RuntimePod(
            uid=UID,
            namespace="ns",
            name="p",
            sandboxes=tuple(self.sandboxes),
            containers=tuple(self.containers),
        )

    # A round of the worker

    def sync(self) -> PodPlan:
        """Plan, report, carry out: what a worker does in one round."""
        given = PlanInput(
            now=self.now,
            crash=self.crash,
            policy=self.crash.policy,
            ended=reported_ends(self.status),
            restarting_all=is_restarting_all(self.status),
        )
        plan = plan_pod(self.pod, self.observed(), given)
        self.report(plan)
        assert self.status is not None
        assert plan.finished or not is_terminal(self.status), "a pod that ended goes on"
        if plan.finished:
            self.tear_down()
        else:
            self.check(plan)
            self.carry_out(plan)
        self.now += 0.1
        return plan

    def settle(self, rounds: int = 100) -> None:
        """Sync until there is nothing left to do; time passes where a plan waits."""
        for _ in range(rounds):
            if self.is_over:
                return
            plan = self.sync()
            if plan.is_noop:
                if plan.retry_at is None:
                    return
                assert plan.retry_at > self.now - 1
                self.now = max(self.now, plan.retry_at)
        raise AssertionError("the plans of this world never end")

    def report(self, plan: PodPlan, stage: PodStage = PodStage.SYNC) -> None:
        before = self.status
        given = StatusInput(
            now=self.now, stage=stage, previous=before, waiting=plan.waiting, finished=plan.finished
        )
        self.status = pod_status(self.pod, self.observed(), given)
        assert self.status.phase in ("Pending", "Running", *TERMINAL_PHASES)
        if before is not None and before.phase in TERMINAL_PHASES:
            assert self.status.phase == before.phase
        if is_terminal(self.status) and not is_terminal(before):
            assert not any(self.observed().running())
        if before is not None:
            counts = {c.name: c.restartCount for c in before.containerStatuses or ()}
            for one in self.status.containerStatuses or ():
                assert one.restartCount >= counts[one.name]

    def tear_down(self) -> None:
        for container in list(self.containers):
            if container.state in LIVE:
                self.end(container.id, 137)
        self.sandboxes = [replace(s, ready=False, ips=()) for s in self.sandboxes]
        self.is_over = True
        self.report(PodPlan(finished=True), PodStage.TERMINATED)

    # Rules

    def check(self, plan: PodPlan) -> None:
        """What holds of every plan, whatever the state it was made in."""
        observed = self.observed()
        assert not (plan.create_sandbox and plan.sandbox_id)
        stopped = {s.id for s in plan.stop_containers}
        stopped |= {c.id for c in observed.containers if c.sandbox_id in plan.stop_sandboxes}
        starting = [s.container.spec.name for s in plan.start]
        assert len(starting) == len(set(starting))
        assert not set(starting) & set(plan.waiting)
        for container in observed.containers:
            if container.name in starting and container.state in LIVE:
                assert container.id in stopped, "started beside a live instance"
        kinds = {c.spec.name: c for c in pod_containers(self.pod)}
        ordinary = [
            name
            for name in starting
            if kinds[name].kind is ContainerKind.INIT and not kinds[name].is_sidecar
        ]
        assert len(ordinary) <= 1
        if any(kinds[name].kind is ContainerKind.MAIN for name in starting):
            assert not ordinary
            self.check_initialized(plan)

    def check_initialized(self, plan: PodPlan) -> None:
        """No main container starts before every init container had its turn."""
        observed = self.observed()
        inits = [c for c in pod_containers(self.pod) if c.kind is ContainerKind.INIT]
        if plan.create_sandbox:
            assert not inits
            return
        sandbox = current_sandbox(self.pod, observed)
        assert sandbox is not None
        for init in inits:
            assert (sandbox.id, init.spec.name) in self.initialized, "it has not had its turn"

    # Effects

    def carry_out(self, plan: PodPlan) -> None:
        for stop in plan.stop_containers:
            self.end(stop.id, 137)
        for old in plan.stop_sandboxes:
            self.sandbox_dies(old)
        gone = set(plan.remove_containers)
        for back_off in plan.back_offs:
            self.crash.put(*back_off)
            self.initialized.clear()
        self.containers = [c for c in self.containers if c.id not in gone]
        home = self.create_sandbox(plan.sandbox_attempt) if plan.create_sandbox else plan.sandbox_id
        for start in plan.start:
            assert home is not None
            self.start(start, home)

    def create_sandbox(self, attempt: int) -> SandboxId:
        assert attempt not in {s.attempt for s in self.sandboxes}
        assert not any(s.ready for s in self.sandboxes)
        assert not any(self.observed().running()), "a sandbox was replaced under a container"
        made = SandboxRecord(
            SandboxId(f"s{attempt}"), True, attempt, self.now, False, ("10.0.0.1",)
        )
        self.sandboxes.insert(0, made)
        return made.id

    def start(self, start: StartContainer, sandbox_id: SandboxId) -> None:
        name = start.container.spec.name
        assert any(s.id == sandbox_id and s.ready for s in self.sandboxes)
        taken = {(c.name, c.attempt) for c in self.containers}
        attempt = max(start.attempt, self.logged.get(name, 0) if start.unrecorded else 0)
        assert (name, attempt) not in taken, "the name is taken"
        assert not any(c.name == name and c.state in LIVE for c in self.containers)
        self.logged[name] = attempt + 1
        if start.container.is_sidecar and not self.starts_fail:
            self.initialized.add((sandbox_id, name))
        if start.back_off is not None:
            self.crash.put(*start.back_off)
        self.now += 0.01
        state = ContainerState.CREATED if self.starts_fail else ContainerState.RUNNING
        self.containers.insert(
            0,
            ContainerRecord(
                id=ContainerId(f"{name}-{attempt}-{self.now:.2f}"),
                name=name,
                sandbox_id=sandbox_id,
                state=state,
                attempt=attempt,
                created_at=self.now,
                started_at=0.0 if self.starts_fail else self.now,
            ),
        )

    # What happens to it

    def end(self, id_: ContainerId, code: int) -> None:
        ended = next(c for c in self.containers if c.id == id_)
        if code == 0:
            self.initialized.add((ended.sandbox_id, ended.name))
        self.change(id_, state=ContainerState.EXITED, exit_code=code, finished_at=self.now)

    def change(self, id_: ContainerId, **fields: object) -> None:
        self.containers = [
            replace(c, **fields) if c.id == id_ and c.state is not ContainerState.EXITED else c  # type: ignore[arg-type]
            for c in self.containers
        ]

    def sandbox_dies(self, id_: SandboxId) -> None:
        for container in self.containers:
            if container.sandbox_id == id_ and container.state in LIVE:
                self.end(container.id, 137)
        self.pause_dies(id_)

    def pause_dies(self, id_: SandboxId) -> None:
        """The sandbox alone: its containers run on."""
        self.sandboxes = [
            replace(s, ready=False, ips=()) if s.id == id_ else s for s in self.sandboxes
        ]
