"""The whole agent, on a node where anything may happen in any order.

Manifests come, change, ask for other amounts of CPU and memory, and go, containers die, the
runtime fails in every way it can, and the agent is killed and started in the middle of it. What
must always be so is checked after every step; what must be so once faults stop is checked in the
end, and whenever `calm_down` is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import TERMINAL_PHASES, PodUid, metadata, pod_uid
from kubelet_trio.testing import FakeContainer, FakeSandbox, FaultKind
from tests.simulation.manifests import INIT, NAMES, SIDECAR, Fate, Wish, fate, resizes, wishes
from tests.simulation.recorded import Recorded
from tests.simulation.resizes import wanted_pod, was_rejected
from tests.simulation.sizes import ALIKE, CPU, LARGE, MEMORY, MI
from tests.simulation.stepper import Stepper
from tests.simulation.steps import step
from tests.simulation.volume_steps import VolumeSteps
from tests.simulation.world import NODE, WitnessRuntime, World

CALLS = (
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ContainerStatus",
    "PodSandboxStatus",
    "ListContainers",
    "ListPodSandbox",
    "PullImage",
    "ImageStatus",
    "Status",
    *("UpdateContainerResources",) * 3,
    "UpdatePodSandboxResources",
    "",
)
# What was tried for the last time just before the faults stopped is tried again by then
# (300 s is the longest back-off), and has come to its end.
CALM = 340.0
Sizes = dict[str, tuple[int, int]]
PLAIN = Wish(("run",), sidecar=True, asks=ALIKE)
LONGEST_BACK_OFF = 320.0
Machine = TypeVar("Machine", bound="AgentMachine")


class AgentMachine(VolumeSteps):
    """See the module."""

    make_runtime: Callable[..., WitnessRuntime] = WitnessRuntime

    def __init__(self) -> None:
        super().__init__()
        self.run = Stepper().__enter__()
        self.world = self.make_world()
        self.recorded = Recorded(self.world)
        self.wanted: dict[str, Wish] = {}
        # UIDs, as far as they are a pod's own: an edit makes another pod.
        self.written: set[str] = set()
        self.returned: set[str] = set()  # written, gone or edited, and written again
        self.disturbed: set[str] = set()  # others have interfered with their containers
        self.lost_sandbox: set[str] = set()
        self.forgotten: set[str] = set()  # the runtime has lost one of their records
        self.broken: set[str] = set()  # names of manifests that do not parse

    def make_world(self) -> World:
        return World(self.run, type(self).make_runtime)

    def teardown(self) -> None:
        try:
            self.calm()
            self.world.kill()
        finally:
            try:
                self.run.__exit__(None, None, None)
            finally:
                self.recorded.save()
                self.world.close()

    @initialize(
        wish=wishes(),
        other=wishes(),
        driver=st.sampled_from(("", "", "stages", "stages", "publishes", "republishes")),
    )
    def agent_starts_with_pods(self, wish: Wish, other: Wish, driver: str) -> None:
        if driver:
            stages = driver != "publishes"
            self.world.add_driver(stages=stages, republishes=driver == "republishes")
        self.world.start()
        for name, first in zip(NAMES, (wish, other), strict=False):
            self.write_wish(name, first)

    # Manifests

    @step(name=st.sampled_from(NAMES), wish=wishes(), nudge=st.sampled_from((True, True, False)))
    def write_manifest(self, name: str, wish: Wish, nudge: bool) -> None:
        """Add a pod, or edit one; both are the same to whoever writes files."""
        self.write_wish(name, wish, nudge=nudge)

    @step(name=st.sampled_from(NAMES), wish=wishes(), pause=st.sampled_from((0.1, 0.4, 1.5)))
    def edit_twice(self, name: str, wish: Wish, pause: float) -> None:
        """The first edit is still being carried out when the second comes, or the way back."""
        before = self.wanted.get(name)
        self.write_wish(name, wish)
        self.run.sleep(pause)
        self.write_wish(name, replace(wish, note=wish.note + 1) if before is None else before)

    def write_wish(self, name: str, wish: Wish, *, nudge: bool = True) -> None:
        if self.world.csi is None:
            wish = replace(wish, claims=())
        before = self.wanted.get(name)
        is_other = before is None or before.uid(name) != wish.uid(name)
        # A pod that has ended runs again when its amounts change, as when it is written again.
        may_have_ended = before != wish and wish.phase() in TERMINAL_PHASES
        if wish.uid(name) in self.written and (is_other or may_have_ended):
            self.returned.add(wish.uid(name))
        self.broken.discard(name)
        self.written.add(wish.uid(name))
        self.wanted[name] = wish
        self.world.write(name, wish, nudge=nudge)

    @step(name=st.sampled_from(NAMES))
    def break_manifest(self, name: str) -> None:
        """A file that does not parse keeps the pod that it described before."""
        if name in self.wanted and self.world.agent is not None and self.keeps_records():
            self.run.sleep(21)  # the good edit before is seen, even if nobody told of it
            self.world.write(name, None)
            self.broken.add(name)

    def keeps_records(self) -> bool:
        """Whether what the agent has seen is on disk: all that tells of a pod but its manifest."""
        return True

    @step(name=st.sampled_from(NAMES), nudge=st.sampled_from((True, True, False)))
    def remove_manifest(self, name: str, nudge: bool) -> None:
        if name in self.wanted:
            del self.wanted[name]
            self.world.remove(name, nudge=nudge)

    @step(name=st.sampled_from(NAMES), pause=st.sampled_from((0.0, 0.05, 0.5, 3.0, 40.0)))
    def remove_and_add_again(self, name: str, pause: float) -> None:
        """The same content is the same UID: it comes back when the old one is gone."""
        if name in self.wanted:
            self.returned.add(self.wanted[name].uid(name))
            self.broken.discard(name)
            self.world.remove(name)
            self.run.sleep(pause)
            self.world.write(name, self.wanted[name])

    # Resizes

    @step(name=st.sampled_from(NAMES), sizes=resizes(), nudge=st.sampled_from((True, True, False)))
    def pod_is_resized(self, name: str, sizes: Sizes, nudge: bool) -> None:
        if name in self.wanted:
            self.write_wish(name, self.wanted[name].resized(sizes), nudge=nudge)

    @step(
        name=st.sampled_from(NAMES),
        sizes=resizes(),
        pause=st.sampled_from((0.02, 0.1, 0.4, 1.5, 15.0)),
        again=st.one_of(st.none(), resizes()),
    )
    def pod_is_resized_twice(
        self, name: str, sizes: Sizes, pause: float, again: Sizes | None
    ) -> None:
        """The first resize is in progress when the second comes, or (None) the way back."""
        if name in self.wanted:
            before = self.wanted[name]
            self.write_wish(name, before.resized(sizes))
            self.run.sleep(pause)
            self.write_wish(name, before if again is None else before.resized(again))

    @step(
        name=st.sampled_from(NAMES),
        sizes=resizes(),
        after=st.sampled_from((0.003, 0.011, 0.02, 0.03, 0.05, 0.08, 0.15, 0.4)),
        kills=st.sampled_from((1, 1, 3)),
    )
    def agent_is_killed_in_a_resize(
        self, name: str, sizes: Sizes, after: float, kills: int
    ) -> None:
        if name in self.wanted and self.world.agent is not None:
            self.write_wish(name, self.wanted[name].resized(sizes))
            for _ in range(kills):
                self.run.sleep(after)
                self.world.kill()
                self.world.start()

    @step(
        names=st.permutations(NAMES),
        containers=st.sampled_from((("m0",), ("m0", SIDECAR))),
        pause=st.sampled_from((0.1, 2.0, 30.0)),
        ends=st.sampled_from(("shrinks", "goes", "stays", "calm")),
    )
    def pods_compete(
        self, names: list[str], containers: tuple[str, ...], pause: float, ends: str
    ) -> None:
        """Two pods want to be large, for which there is no room, until one gives way."""
        for name in names[:2]:
            if name not in self.wanted:
                self.write_wish(name, PLAIN)
                self.run.sleep(1)  # it is admitted while it is small
            large = dict.fromkeys(containers, (CPU[LARGE], MEMORY[LARGE]))
            self.write_wish(name, self.wanted[name].resized(large))
            self.run.sleep(pause)
        if ends == "shrinks":
            small = dict.fromkeys(containers, (CPU[0], MEMORY[0]))
            self.write_wish(names[0], self.wanted[names[0]].resized(small))
        elif ends == "goes":
            del self.wanted[names[0]]
            self.world.remove(names[0])
        elif ends == "calm":
            self.calm()

    @step(name=st.sampled_from(NAMES), sizes=resizes(), after=st.sampled_from((0.0, 0.03, 0.1)))
    def pod_is_removed_in_a_resize(self, name: str, sizes: Sizes, after: float) -> None:
        if name in self.wanted:
            self.write_wish(name, self.wanted[name].resized(sizes))
            self.run.sleep(after)
            del self.wanted[name]
            self.world.remove(name)

    @step(pick=st.integers(0, 9), mebibytes=st.sampled_from((1, 40, 150, 500)))
    def container_uses_memory(self, pick: int, mebibytes: int) -> None:
        if container := self.pick(self.world.runtime.alive(), pick):
            self.world.runtime.wants[container.id] = mebibytes * MI

    @step(
        below_usage=st.sampled_from(("refused", "reclaimed")),
        resizes_sandboxes=st.booleans(),
        refusals=st.sampled_from((0, 0, 1, 3)),
    )
    def resizes_are_taken_otherwise(
        self, below_usage: Any, resizes_sandboxes: bool, refusals: int
    ) -> None:
        """By the kernel, the runtime, or the file system of cgroups."""
        self.world.runtime.below_usage = below_usage
        self.world.runtime.resizes_sandboxes = resizes_sandboxes
        self.world.cgroups.refusals = refusals

    # Containers

    @step(pick=st.integers(0, 9), code=st.sampled_from((0, 1, 137)))
    def container_dies(self, pick: int, code: int) -> None:
        if container := self.pick(self.world.runtime.alive(), pick):
            self.disturb(container)
            self.run.call(self.world.runtime.kill, container.id, code)

    @step(pick=st.integers(0, 9))
    def sandbox_dies(self, pick: int) -> None:
        sandboxes = [s for s in self.world.runtime.sandboxes.values() if s.ready]
        if sandboxes:
            sandbox = sandboxes[pick % len(sandboxes)]
            self.lost_sandbox.add(sandbox.uid)
            self.disturbed.add(sandbox.uid)
            self.run.call(self.world.runtime.kill_sandbox, sandbox.id)

    @step(pick=st.integers(0, 9))
    def container_is_forgotten(self, pick: int) -> None:
        if container := self.pick(list(self.world.runtime.containers.values()), pick):
            self.disturb(container)
            self.forgotten.add(container.uid)
            self.run.call(self.world.runtime.forget, container.id)

    # The runtime

    @step(
        kind=st.sampled_from(FaultKind),
        call=st.sampled_from(CALLS),
        times=st.sampled_from((1, 1, 2, 5, None)),
        delay=st.sampled_from((0.0, 0.05, 3.0)),
    )
    def calls_fail(self, kind: FaultKind, call: str, times: int | None, delay: float) -> None:
        faults = self.world.runtime.faults
        self.run.call(lambda: faults.add(kind, call, times=times, delay=delay))

    @step(seconds=st.sampled_from((0.02, 0.5, 4.0, 25.0, None)))
    def runtime_goes_down(self, seconds: float | None) -> None:
        """None: until something mends it."""
        self.run.call(self.world.runtime.go_down)
        if seconds is not None:
            self.run.sleep(seconds)
            self.run.call(self.world.runtime.restart)

    @step()
    def all_is_mended(self) -> None:
        self.mend()

    @step(lag=st.sampled_from((0.0, 0.06, 0.5)), deaf=st.sampled_from((False, False, True)))
    def exits_are_told_otherwise(self, lag: float, deaf: bool) -> None:
        self.world.runtime.status_lag = lag
        self.world.runtime.exit_waiter.deaf = deaf

    # The agent

    @step(
        killed=st.sampled_from((True, True, False)),
        pause=st.sampled_from((0.0, 0.0, 1.0, 40.0, None)),
    )
    def agent_is_restarted(self, killed: bool, pause: float | None) -> None:
        """None: it stays away until it is started by a later step."""
        if self.world.agent is not None:
            if killed:
                self.world.kill()
            else:
                self.world.stop()
            if pause is None:
                return
            self.run.sleep(pause)
        self.world.start()

    @step(name=st.sampled_from(NAMES), wish=wishes(), after=st.sampled_from((0.05, 0.2, 0.6, 2.0)))
    def agent_is_killed_at_work(self, name: str, wish: Wish, after: float) -> None:
        self.write_wish(name, wish)
        self.run.sleep(after)
        self.world.kill()
        self.world.start()

    # Time

    @step(seconds=st.sampled_from((1.0, 12.0, 35.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.run.sleep(seconds)

    @step(seconds=st.sampled_from((-3600.0, -5.0, 5.0, 3600.0)))
    def wall_clock_is_set(self, seconds: float) -> None:
        self.world.clock.step(seconds)

    @step()
    def calm_down(self) -> None:
        self.calm()

    # What must be so

    @invariant()
    def contract_with_the_runtime_is_kept(self) -> None:
        """Containers stop before their sandbox, one live instance, no start doubled, ..."""
        assert not self.world.runtime.violations, self.world.runtime.violations

    @invariant()
    def no_restart_count_is_used_twice(self) -> None:
        for path in self.world.runtime.shared_logs:
            assert any(uid in path for uid in self.forgotten), path

    @invariant()
    def sidecars_outlive_main_containers(self) -> None:
        """Exceptions: without its sandbox all of a pod goes down at once; a resize restarts one."""
        resized = {uid for uid, name in self.world.resizes.restarts if name == SIDECAR}
        assert self.world.runtime.sidecars_stopped_early <= self.lost_sandbox | resized

    @invariant()
    def no_container_is_limited_above_its_pod(self) -> None:
        self.world.cgroups.check()
        assert not self.world.cgroups.exceeded, self.world.cgroups.exceeded

    @invariant()
    def resources_are_told_as_they_are(self) -> None:
        """Never a value that a container has not had, and never another QoS class."""
        agent = self.world.agent
        pods = agent.pods.value.values() if agent is not None else ()
        self.world.resizes.look([pod for pod in pods if self.is_recorded(pod_uid(pod))])
        assert not self.world.resizes.broken, self.world.resizes.broken

    @invariant()
    def no_more_is_allocated_than_there_is(self) -> None:
        self.world.resizes.check_sum(self.uids())

    def uids(self) -> set[str]:
        """Return the pods that are wanted, were never given up, and whose records are not lost."""
        wanted = {wish.uid(name) for name, wish in self.wanted.items()} - self.returned
        return {uid for uid in wanted if self.is_recorded(PodUid(uid))}

    def is_recorded(self, uid: PodUid) -> bool:
        """Whether the agent knows what a pod is to be."""
        return True

    @invariant()
    def nothing_crashes(self) -> None:
        assert not self.world.crashes()

    def calm(self) -> None:
        """Let all faults end and time pass; see that everything is as it was wished."""
        self.mend()
        # An agent that was killed while a call hung had to give the call up in the end.
        self.disturbed |= {name for cut in self.world.runtime.cuts for name in cut.names}
        if self.world.agent is None:
            self.world.start()
        self.run.sleep(CALM)
        pods = self.world.pods()
        assert pods.keys() == self.names()
        left = self.world.leftovers({pod_uid(pod) for pod in pods.values()})
        assert not left
        for name, wish in self.wanted.items():
            self.check_pod(name, wish, pods[name])
        self.check_volumes()
        self.check_progress()
        self.contract_with_the_runtime_is_kept()
        self.nothing_crashes()

    def names(self) -> set[str]:
        """Return the names of the pods that are wanted."""
        return set(self.wanted)

    def mend(self) -> None:
        def mend() -> None:
            self.world.runtime.faults.clear()
            self.world.runtime.restart()
            self.world.runtime.exit_waiter.deaf = False
            self.world.runtime.wants.clear()
            self.world.cgroups.refusals = 0

        self.run.call(mend)
        if self.world.csi is not None:
            self.world.csi.mend()

    def check_pod(self, name: str, wish: Wish, pod: Pod) -> None:
        """The pod of a manifest is what its policy makes of it."""
        assert (metadata(pod).labels or {}).get("note") == str(wish.note)
        if was_rejected(pod):
            assert not self.alive(pod)
            return
        alive = {container.name for container in self.alive(pod)}
        phase = pod.status.phase if pod.status else None
        if phase in ("Succeeded", "Failed"):
            assert wish.policy != "Always"
            assert not alive
            assert not any(s.ready for s in self.sandboxes(pod))
        if wish.uid(name) in self.disturbed and wish.policy != "Always":
            return
        assert phase == wish.phase(), f"{name}: {phase}, should be {wish.phase()}"
        if wish.uid(name) not in self.disturbed | self.returned:
            self.check_nothing_started_again(wish, pod)
        if phase in ("Succeeded", "Failed"):
            return
        self.check_resources(name, wish, pod)
        assert [s.ready for s in self.sandboxes(pod)].count(True) == 1
        if wish.init is None or fate(wish.init) is Fate.SUCCEEDS:
            runs = {f"m{n}" for n, image in enumerate(wish.mains) if fate(image) is Fate.RUNS}
            runs |= {SIDECAR} if wish.sidecar else set()
            assert alive >= runs, f"{name}: {sorted(alive)} run, {sorted(runs)} should"
        else:
            assert not any(container.startswith("m") for container in alive)

    def check_resources(self, name: str, wish: Wish, pod: Pod) -> None:
        """A resize that was feasible is done, and any other is said to wait."""
        world, uid = self.world, pod_uid(pod)
        world.resizes.check_done(pod, world.node, world.cgroups.of_pod(uid))
        if name not in self.broken:
            others = {wish.uid(n) for n, wish in self.wanted.items()} - {uid}
            world.resizes.check_decision(pod, wanted_pod(name, wish, NODE), others)

    def check_nothing_started_again(self, wish: Wish, pod: Pod) -> None:
        """What runs, or has run to its end, was started once, whatever went on around it."""
        containers = {f"m{number}": image for number, image in enumerate(wish.mains)}
        once = {name for name, image in containers.items() if not wish.may_restart(image)}
        once |= {SIDECAR} if wish.sidecar else set()
        if wish.init is not None and fate(wish.init) is Fate.SUCCEEDS:
            once.add(INIT)
        for name in once:
            starts = self.world.runtime.starts.get((pod_uid(pod), name), 0)
            resizes = self.world.resizes.restarts[pod_uid(pod), name]
            assert starts <= 1 + resizes, f"{name} was started {starts} times, {resizes} resizes"

    def check_progress(self) -> None:
        """What is to be tried again is tried again within the longest back-off."""
        before = {key: self.tries(*key) for key in self.to_be_retried()}
        if not before:
            return
        self.run.sleep(LONGEST_BACK_OFF)
        for (name, container, image), tries in before.items():
            assert self.tries(name, container, image) > tries, f"{name}/{container} is given up"

    def to_be_retried(self) -> list[tuple[str, str, str]]:
        """Return pod, container and image of what fails for ever."""
        found = []
        for name, wish in self.wanted.items():
            if wish.uid(name) in self.disturbed or was_rejected(self.world.pods()[name]):
                continue
            if wish.init is not None and fate(wish.init) is not Fate.SUCCEEDS:
                if fate(wish.init) is Fate.BLOCKED or wish.policy != "Never":
                    found.append((name, INIT, wish.init))
                continue
            for number, image in enumerate(wish.mains):
                if fate(image) is Fate.BLOCKED or wish.may_restart(image):
                    found.append((name, f"m{number}", image))
        return found

    def tries(self, name: str, container: str, image: str) -> int:
        """Count how often a container was pulled or made for its pod."""
        if image == "missing":
            return len(self.world.runtime.calls_of("PullImage", target=image))
        if image == "no-create":
            return len(self.world.runtime.calls_of("CreateContainer"))
        instances = self.world.runtime.instances(f"{name}-{NODE}", container)
        return max((c.metadata.attempt for c in instances), default=-1)

    def alive(self, pod: Pod) -> list[FakeContainer]:
        return self.world.runtime.alive(pod_uid(pod))

    def sandboxes(self, pod: Pod) -> list[FakeSandbox]:
        sandboxes = self.world.runtime.sandboxes.values()
        return [sandbox for sandbox in sandboxes if sandbox.uid == pod_uid(pod)]

    def pick(self, containers: list[FakeContainer], pick: int) -> FakeContainer | None:
        return containers[pick % len(containers)] if containers else None

    def disturb(self, container: FakeContainer) -> None:
        self.disturbed.add(container.uid)


@contextmanager
def started(machine: Machine) -> Iterator[Machine]:
    """Run a machine's node inside the block, for tests that take the steps themselves."""
    machine.world.start()
    try:
        yield machine
    finally:
        machine.world.kill()
        machine.run.__exit__(None, None, None)
        machine.world.close()
