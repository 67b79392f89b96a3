"""A node of a cluster whose records, containers and agent come and go at random.

Every status that leaves is held against the runtime at that moment: nobody is told a wrong
thing. And what is dead of earlier pods, removable or not, keeps no pod from running.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod, PodStatus
from trio.testing import MockClock

from kubelet_trio.cri import Runtime
from kubelet_trio.model import RuntimePod, metadata, pod_uid
from kubelet_trio.pods import PodStage, PodWorker, Remains
from kubelet_trio.pods.steps import teardown
from kubelet_trio.pods.worker.reporter import PodReporter
from kubelet_trio.testing import FakeContainer, FaultKind
from tests.agent.test_taken_over import TakenOver, leave_remains
from tests.simulation.profile import EXAMPLES, SEED

# Seconds after which what has happened is to have been told, and a pod to run again.
_SETTLED, _RUNS = 15.0, 330.0
_NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["bind", "delete", "kill", "remains", "lose record"]), _NAMES),
    st.tuples(st.sampled_from(["restart", "lose records", "stuck", "slow"]), st.just("")),
    st.tuples(st.just("wait"), st.sampled_from(["1", "30", "120"])),
)


class Story:
    """One node's, told step by step."""

    def __init__(self, base: Path) -> None:
        self.world = TakenOver(base)
        self.count = 0
        self.seen = 0  # how many of the statuses that have left were looked at

    async def tell(self, steps: list[tuple[str, str]]) -> None:
        """Take all steps, then wait and look."""
        left = [*steps, ("wait", str(_RUNS))]
        while left:
            async with self.world.running(), trio.open_nursery() as nursery:
                nursery.start_soon(self.watch)
                while left:
                    verb, what = left.pop(0)
                    if verb == "restart":
                        break
                    await self.step(verb, what)
                else:
                    self.check_end()
                nursery.cancel_scope.cancel()
            assert self.world.host.runtime.violations == []

    async def step(self, verb: str, what: str) -> None:
        kube, runtime = self.world.kube, self.world.host.runtime
        found = kube.find(Pod, what) if what in "abc" and what else None
        if verb == "wait":
            await trio.sleep(float(what))
        elif verb == "bind" and found is None:
            self.world.bind(what)
        elif verb == "delete" and found is not None:
            kube.remove(Pod, what, grace_period=0)
        elif verb == "kill" and found is not None:
            for container in runtime.alive(pod_uid(found)):
                runtime.kill(container.id, 3)
        elif verb == "remains":
            self.count += 1
            await leave_remains(runtime, what, f"before-{self.count}")
        elif verb == "stuck":
            runtime.faults.add(FaultKind.ERROR, "RemovePodSandbox", times=None)
        elif verb == "slow":
            runtime.faults.add(FaultKind.SLOW, "ListContainers", times=3, delay=5.0)
        elif verb.startswith("lose record"):
            self.lose(None if found is None else pod_uid(found), everyone=verb.endswith("s"))

    def lose(self, uid: str | None, *, everyone: bool) -> None:
        for record in (self.world.host.base / "root" / "pods").glob("*/kubelet-trio.json"):
            if everyone or record.parent.name == uid:
                record.unlink()

    async def watch(self) -> None:
        """Hold every status that leaves against the runtime as it is then."""
        while True:
            new, self.seen = self.world.watched.told[self.seen :], len(self.world.watched.told)
            for name, status in new:
                wrong = list(self.wrong(name, status))
                assert not wrong, f"{name}: {wrong}"
            await self.world.kube.server.store.wait_change()

    def wrong(self, name: str, status: PodStatus) -> Iterator[str]:
        """Yield what a status says that is not so of what has run for a while."""
        found = self.world.kube.find(Pod, name)
        if found is None or metadata(found).deletionTimestamp is not None:
            return
        for container in self.world.host.runtime.alive(pod_uid(found)):
            if self.age(container) < _SETTLED:
                continue
            for told in status.containerStatuses or ():
                if told.state is None or told.state.running is None:
                    yield f"{container.name} is said not to run: {told.state}"
                if told.restartCount != container.metadata.attempt:
                    yield f"{container.name} is said to have begun {told.restartCount} times"
                last = told.lastState.terminated if told.lastState is not None else None
                if last is not None and last.reason == "ContainerStatusUnknown":
                    yield f"{container.name} is said to have been lost"

    def age(self, container: FakeContainer) -> float:
        return self.world.host.runtime.node.clock.time() - container.started_at

    def check_end(self) -> None:
        bound = sorted(pod_uid(pod) for pod in self.world.kube.all(Pod))
        assert sorted(c.uid for c in self.world.host.runtime.alive()) == bound
        for pod in self.world.kube.all(Pod):
            assert self.world.is_ready(metadata(pod).name or "")


@hypothesis.seed(SEED)
@settings(
    max_examples=max(EXAMPLES // 20, 1),
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a story is short as it is, and takes a second
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(STEPS, max_size=12))
def test_nobody_is_told_a_wrong_thing(steps: list[tuple[str, str]]) -> None:
    live(steps)


def live(steps: list[tuple[str, str]]) -> None:
    async def tell(base: Path) -> None:
        await Story(base).tell(steps)

    with tempfile.TemporaryDirectory() as base:
        trio.run(tell, Path(base), clock=MockClock(autojump_threshold=0))


RESTARTED = [("bind", "a"), ("wait", "30"), ("kill", "a"), ("wait", "120")]
TAKEN_OVER = [*RESTARTED, ("lose records", ""), ("restart", "")]
STUCK = [("bind", "a"), ("wait", "30"), ("stuck", ""), ("delete", "a"), ("bind", "a")]


def test_a_takeover_is_told_as_it_is() -> None:
    live(TAKEN_OVER)


def test_a_status_from_an_empty_view_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def announce(self: PodReporter, pod: Pod) -> None:
        nothing = RuntimePod(pod_uid(pod))
        await self.publish(pod, nothing, stage=PodStage.SYNC, request=None)

    monkeypatch.setattr(PodReporter, "announce", announce)
    with pytest.raises(ExceptionGroup):
        live(TAKEN_OVER)


def test_remains_that_stay_hold_up_nobody() -> None:
    live([*STUCK, ("restart", ""), ("remains", "b"), ("bind", "b")])


def test_a_pod_that_waits_for_remains_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodWorker, "_at_rest", lambda _worker: None)
    monkeypatch.setattr(Remains, "leave", lambda *_: None)
    monkeypatch.setattr(teardown, "remove_dead", _remove_until_done)
    with pytest.raises(ExceptionGroup):
        live(STUCK)


async def _remove_until_done(runtime: Runtime, observed: RuntimePod, **_more: object) -> str:
    for sandbox in observed.sandboxes:
        await runtime.remove_pod_sandbox(sandbox.id)
    return ""
