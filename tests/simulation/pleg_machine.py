"""The PLEG alone, on a runtime where anything may happen at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from kubelet_trio.containers import container_state
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import ContainerId, ContainerState, PodUid, SandboxId
from kubelet_trio.pleg import Pleg
from kubelet_trio.testing import FakeRuntime, FakeSandbox, FaultKind
from kubelet_trio.testing.fixtures import container_config, sandbox_config
from tests.simulation.stepper import Stepper
from tests.simulation.steps import step

PODS = ("a", "b", "c")
IMAGES = ("run", "run", "stubborn", "exit-0-after-2", "exit-1")
CALLS = ("ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "")
TIMES = (0.0, 0.01, 0.1, 0.9, 3.0, 11.0, 130.0)

State = tuple[dict[SandboxId, bool], dict[ContainerId, ContainerState]]


class PlegMachine(RuleBasedStateMachine):
    """Things happen to pods; in the end the cache says what is so.

    Each pod has one worker, as in the agent: it makes things and asks for itself.
    """

    events = False

    def __init__(self) -> None:
        super().__init__()
        self.run = Stepper().__enter__()
        self.runtime = FakeRuntime(events=self.events, half_filled_events=True)
        self.runtime.status_lag = 0.06
        self.runtime.latency[""] = 0.02
        self.made = 0
        self.made_at: dict[str, float] = {}
        self.last_said: dict[str, dict[ContainerId, ContainerState]] = {}
        self.gone: set[ContainerId] = set()
        self.jobs: dict[str, trio.MemorySendChannel[Callable[[], Awaitable[None]]]] = {}
        self.pleg, self.started_at = Pleg(**self.seams()), 0.0
        start_soon = self.run.nursery.start_soon
        self.life = trio.CancelScope()
        self.run.call(start_soon, self.live)
        for name in PODS:
            self.jobs[name], jobs = trio.open_memory_channel[Callable[[], Awaitable[None]]](1000)
            self.run.call(start_soon, self.work, jobs)

    def seams(self) -> Any:
        return {
            "runtime": self.runtime,
            "wake": lambda _uid: None,
            "exit_waiter": self.runtime.exit_waiter,
        }

    async def live(self) -> None:
        with self.life:
            await self.pleg.run()

    def teardown(self) -> None:
        """Let faults end, and see whether the truth comes out."""
        try:
            self.quiesce()
            self.cache_tells_the_truth()
        finally:
            self.run.__exit__(None, None, None)
        assert self.runtime.exit_waiter.open_watches == 0

    # What the workers do: one task a pod, job by job

    def enqueue(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        self.run.call(self.jobs[name].send_nowait, job)

    async def work(self, jobs: trio.MemoryReceiveChannel[Callable[[], Awaitable[None]]]) -> None:
        async for job in jobs:
            await self.wait_synced()
            await job()
            await trio.sleep(0.01)

    async def wait_synced(self) -> None:
        """Wait as a worker does after each start of the agent; it may start again meanwhile."""
        while True:
            pleg = self.pleg
            with trio.move_on_after(1) as waiting:
                await pleg.wait_synced()
            if pleg is self.pleg and not waiting.cancelled_caught:
                return

    async def refresh(
        self,
        name: str,
        *,
        sandboxes: tuple[SandboxId, ...] = (),
        containers: tuple[ContainerId, ...] = (),
        removed: tuple[SandboxId, ...] = (),
        listing: bool = False,
    ) -> None:
        """Ask; a failure is what the PLEG has to make good."""
        with contextlib.suppress(RuntimeCallError), trio.move_on_after(50):
            await self.pleg.refresh(
                uid_of(name),
                sandboxes=sandboxes,
                containers=containers,
                removed=removed,
                listing=listing,
            )

    @step(name=st.sampled_from(PODS))
    def worker_runs_a_sandbox(self, name: str) -> None:
        async def job() -> None:
            self.made += 1
            config = sandbox_config(name, attempt=self.made)
            sandbox = self.runtime.node.run_sandbox(config, "")
            self.made_at[sandbox.id] = trio.current_time()
            await self.refresh(name, sandboxes=(sandbox.id,))

        self.enqueue(name, job)

    @step(
        name=st.sampled_from(PODS),
        image=st.sampled_from(IMAGES),
        started=st.booleans(),
        reply_lost=st.booleans(),
    )
    def worker_runs_a_container(
        self, name: str, image: str, started: bool, reply_lost: bool
    ) -> None:
        async def job() -> None:
            ready = [s for s in self.sandboxes(name) if s.ready]
            if not ready:
                return
            self.made += 1
            config = container_config(ready[-1].config, image=image, attempt=self.made)
            container = self.runtime.node.create_container(ready[-1], config, "sha256:x")
            self.made_at[container.id] = trio.current_time()
            if started:
                self.runtime.node.start_container(container)
            if reply_lost:
                await self.refresh(name, listing=True)
            else:
                await self.refresh(name, containers=(container.id,))

        self.enqueue(name, job)

    @step(name=st.sampled_from(PODS), known=st.booleans())
    def worker_removes_a_sandbox(self, name: str, known: bool) -> None:
        async def job() -> None:
            for sandbox in self.sandboxes(name)[:1]:
                self.runtime.node.remove_sandbox(sandbox)
                await self.refresh(name, removed=(sandbox.id,) if known else (), listing=not known)

        self.enqueue(name, job)

    @step(name=st.sampled_from(PODS), listing=st.booleans())
    def worker_looks(self, name: str, listing: bool) -> None:
        async def job() -> None:
            await self.refresh(name, listing=listing)

        self.enqueue(name, job)

    # What happens by itself

    @step(pick=st.integers(0, 9))
    def kill(self, pick: int) -> None:
        if alive := self.runtime.alive():
            self.run.call(self.runtime.kill, alive[pick % len(alive)].id)

    @step(pick=st.integers(0, 9))
    def forget(self, pick: int) -> None:
        if containers := list(self.runtime.containers):
            self.run.call(self.runtime.forget, containers[pick % len(containers)])

    @step(pick=st.integers(0, 9))
    def kill_sandbox(self, pick: int) -> None:
        if sandboxes := list(self.runtime.sandboxes):
            self.run.call(self.runtime.kill_sandbox, sandboxes[pick % len(sandboxes)])

    # What goes wrong

    @step(
        kind=st.sampled_from(FaultKind),
        call=st.sampled_from(CALLS),
        pod=st.sampled_from(("", *PODS)),
        times=st.sampled_from((1, 2, None)),
        delay=st.sampled_from((0.0, 0.3, 5.0)),
    )
    def break_calls(
        self, kind: FaultKind, call: str, pod: str, times: int | None, delay: float
    ) -> None:
        self.run.call(lambda: self.runtime.faults.add(kind, call, pod, times=times, delay=delay))

    @step()
    def mend_calls(self) -> None:
        self.run.call(self.runtime.faults.clear)

    @step()
    def runtime_goes_down(self) -> None:
        self.run.call(self.runtime.go_down)

    @step()
    def runtime_comes_back(self) -> None:
        self.run.call(self.runtime.restart)

    @step(
        call=st.sampled_from(("ListPodSandbox", "ListContainers", "ContainerStatus")),
        latency=st.sampled_from((0.02, 0.5, 4.0)),
    )
    def runtime_is_slow(self, call: str, latency: float) -> None:
        self.runtime.latency[call] = latency

    @step()
    def pleg_starts_afresh(self) -> None:
        async def start() -> None:
            self.life.cancel()
            await trio.testing.wait_all_tasks_blocked()
            self.pleg, self.started_at = Pleg(**self.seams()), trio.current_time()
            self.life, self.last_said, self.gone = trio.CancelScope(), {}, set()
            self.run.nursery.start_soon(self.live)

        self.run.take(start)

    @step(deaf=st.booleans())
    def exits_are_missed(self, deaf: bool) -> None:
        self.runtime.exit_waiter.deaf = deaf

    @step(lag=st.sampled_from((0.0, 0.06, 0.5, 4.0)))
    def status_lags(self, lag: float) -> None:
        self.runtime.status_lag = lag

    @step(seconds=st.sampled_from(TIMES))
    def time_passes(self, seconds: float) -> None:
        self.run.sleep(seconds)

    # What must be so

    @invariant()
    def nothing_alive_is_said_to_have_ended(self) -> None:
        alive = {container.id for container in self.runtime.alive()}
        for pod in self.pleg.cache.pods():
            for record in pod.containers:
                if record.state is ContainerState.EXITED:
                    assert record.id not in alive

    @invariant()
    def a_snapshot_holds_all_that_was_there_when_it_was_asked_for(self) -> None:
        for name in PODS:
            observed_at = self.pleg.cache.observed_at(uid_of(name))
            there = [
                object_id
                for truth in self.truth(uid_of(name))
                for object_id in truth
                if self.made_at[object_id] < observed_at
            ]
            said = {object_id for said in self.said(uid_of(name)) for object_id in said}
            assert said.issuperset(there)

    @invariant()
    def a_pod_found_at_the_start_is_shown_in_full_or_not_at_all(self) -> None:
        for pod in self.pleg.cache.pods():
            said = {object_id for said in self.said(pod.uid) for object_id in said}
            for truth in self.truth(pod.uid):
                for object_id in truth:
                    assert object_id in said or self.made_at[object_id] >= self.started_at

    @invariant()
    def what_ended_stays_ended_and_what_went_stays_away(self) -> None:
        for name in PODS:
            pod = self.pleg.cache.get(uid_of(name))
            said = {record.id: record.state for record in pod.containers}
            for container_id, state in self.last_said.get(name, {}).items():
                if state is ContainerState.EXITED and container_id in said:
                    assert said[container_id] is ContainerState.EXITED
                if container_id not in said:
                    self.gone.add(container_id)
            assert self.gone.isdisjoint(said)
            self.last_said[name] = said

    def quiesce(self) -> None:
        def mend() -> None:
            self.runtime.faults.clear()
            self.runtime.latency = {"": 0.02}
            self.runtime.restart()

        self.run.call(mend)
        # The workers may be busy for as long as their calls may take; then comes a relist.
        self.run.sleep(60)

    def cache_tells_the_truth(self) -> None:
        for name in PODS:
            uid = uid_of(name)
            assert self.said(uid) == self.truth(uid)
            assert self.pleg.cache.observed_at(uid) > self.run.now() - 12

    def said(self, uid: PodUid) -> State:
        pod = self.pleg.cache.get(uid)
        return {s.id: s.ready for s in pod.sandboxes}, {c.id: c.state for c in pod.containers}

    def truth(self, uid: PodUid) -> State:
        containers = self.runtime.containers.values()
        return (
            {s.id: s.ready for s in self.runtime.sandboxes.values() if s.uid == uid},
            {c.id: container_state(c.state) for c in containers if c.uid == uid},
        )

    def sandboxes(self, name: str) -> list[FakeSandbox]:
        return [s for s in self.runtime.sandboxes.values() if s.metadata.name == name]


def uid_of(name: str) -> PodUid:
    return PodUid(f"{name}-uid")


class EventedPlegMachine(PlegMachine):
    """The same on a runtime that sends events."""

    events = True
