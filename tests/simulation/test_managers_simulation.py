"""The whole agent on a node that gives CPUs, memory and devices away, under hypothesis.

Pods with shares come and go, their containers die, the runtime refuses updates, the device plugin
comes, goes, hangs and lies, and the agent is killed in the middle of it. What must always be so is
checked after every step; what must be so once faults stop, in the end and whenever it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from lightkube.models.core_v1 import Pod

from kubelet_trio.managers.cpus import cpu_ids
from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.testing import FakeContainer, FaultKind
from kubelet_trio.testing.devices import DeviceFaultKind, calls
from tests.simulation.managed_world import CPUS, DEVICES, GPU, RESERVED, ManagedWorld, Need
from tests.simulation.profile import EXAMPLES, run_machine
from tests.simulation.stepper import Stepper
from tests.simulation.steps import step

NAMES = ("alpha", "beta", "gamma", "delta")
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
FAULTS = st.sampled_from(DeviceFaultKind)
CALLS = st.sampled_from((calls.ALLOCATE, calls.ALLOCATE, calls.OPTIONS, calls.WATCH))
# The longest call of a plugin (120 s), the longest back-off of a pod (300 s), and some on top.
CALM = 430.0
UNDISTURBED = 60.0
REJECTIONS = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOfcpu", "OutOfmemory")

needs = st.builds(
    Need,
    mains=st.sampled_from((1, 1, 2)),
    cpus=st.sampled_from((0, 0, 1, 2, 3, 6)),
    gib=st.sampled_from((1, 1, 3)),
    devices=st.sampled_from((0, 0, 1, 2)),
).flatmap(
    lambda need: st.sampled_from((0, 0, 1, 2)).map(
        lambda cpus: Need(need.mains, need.cpus, need.gib, need.devices, cpus * bool(need.cpus))
    )
)


class ManagedMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Stepper().__enter__()
        self.wanted: dict[str, tuple[str, Need]] = {}  # UID and need by name
        self.numbers = 0

    def teardown(self) -> None:
        try:
            self.calm()
            self.all_is_given_back()
            self.process.kill()
            self.world.kill()
        finally:
            try:
                self.run.__exit__(None, None, None)
            finally:
                self.world.close()

    @initialize(policy=st.sampled_from(POLICIES), with_memory=st.booleans(), need=needs)
    def agent_starts(self, policy: str, with_memory: bool, need: Need) -> None:
        self.world = ManagedWorld(self.run, policy, with_memory=with_memory)
        assert self.world.process is not None
        self.process = self.world.process
        self.world.start()
        self.process.start()
        self.run.sleep(3)
        self.pod_is_wanted("alpha", need)

    # Pods

    @step(name=st.sampled_from(NAMES), need=needs)
    def pod_comes(self, name: str, need: Need) -> None:
        self.pod_is_wanted(name, need)

    def pod_is_wanted(self, name: str, need: Need) -> None:
        """Want a pod, in the place of another of that name if there is one."""
        self.numbers += 1
        self.wanted[name] = f"{name}-{self.numbers}", need
        self.world.put(name, need, self.wanted[name][0])

    @step(name=st.sampled_from(NAMES))
    def pod_goes(self, name: str) -> None:
        if name in self.wanted:
            self.pod_is_unwanted(name)

    def pod_is_unwanted(self, name: str) -> None:
        del self.wanted[name]
        self.world.remove(name)

    @step(pick=st.integers(0, 9), code=st.sampled_from((0, 137)))
    def container_dies(self, pick: int, code: int) -> None:
        if alive := self.world.runtime.alive():
            self.run.call(self.world.runtime.kill, alive[pick % len(alive)].id, code)

    # The node

    @step(
        kind=st.sampled_from(FaultKind),
        times=st.sampled_from((1, 2, 5, None)),
    )
    def updates_fail(self, kind: FaultKind, times: int | None) -> None:
        add, call = self.world.runtime.faults.add, "UpdateContainerResources"
        self.run.call(lambda: add(kind, call, times=times, delay=3.0))

    @step(pause=st.sampled_from((0.0, 0.0, 1.0, 40.0)))
    def agent_is_killed(self, pause: float) -> None:
        """A new one has the same answers: what was on disk before any container began."""
        self.world.kill()
        self.run.sleep(pause)
        self.world.start()

    @step(seconds=st.sampled_from((1.0, 12.0, 35.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.run.sleep(seconds)

    @step()
    def calm_down(self) -> None:
        self.calm()

    @step()
    def quiet_agent_is_restarted(self) -> None:
        self.calm()
        # A new agent knows of no rejection: it tries the manifest again, and may have room by now.
        pods = self.world.pods()
        for name in [name for name in self.wanted if self.was_rejected(pods[name])]:
            self.pod_is_unwanted(name)
        self.calm()
        before = self.states()
        started = sum(self.world.runtime.starts.values())
        self.world.kill()
        self.world.start()
        self.run.sleep(30)
        assert self.states() == before
        assert sum(self.world.runtime.starts.values()) == started
        self.containers_have_what_the_managers_say()

    # The plugin

    @step(kind=FAULTS, method=CALLS, times=st.sampled_from((1, 1, 3, None)))
    def plugin_fails(self, kind: DeviceFaultKind, method: str, times: int | None) -> None:
        add = self.process.plugin.faults.add
        self.run.call(lambda: add(kind, method, times=times, delay=7.0))

    @step()
    def plugin_goes(self) -> None:
        self.process.kill()

    @step()
    def plugin_comes(self) -> None:
        self.process.start()

    @step(device=st.sampled_from(("gpu-0", "gpu-1", "gpu-3")), healthy=st.booleans())
    def health_changes(self, device: str, healthy: bool) -> None:
        plugin = self.process.plugin
        self.run.call(lambda: plugin.set_health(device, is_healthy=healthy))

    @step(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES), cpus=st.sampled_from((0, 1)))
    def plugin_hangs_beside_a_pod_without_devices(self, name: str, other: str, cpus: int) -> None:
        if name == other:
            return
        self.mend()
        self.run.sleep(5)
        add = self.process.plugin.faults.add
        self.run.call(lambda: add(DeviceFaultKind.HANG, calls.ALLOCATE, times=None))
        self.pod_is_wanted(name, Need(devices=1))
        self.pod_is_wanted(other, Need(cpus=cpus))
        self.run.sleep(UNDISTURBED)
        uid = PodUid(self.wanted[other][0])
        assert self.world.runtime.alive(uid) or self.was_rejected(self.world.pods()[other])

    # What must be so

    @invariant()
    def nothing_has_two_owners(self) -> None:
        if self.agent_is_away():
            return
        given = [cpus for _, cpus in self.own_cpus()]
        assert_disjoint(given)
        assert not RESERVED & frozenset().union(*given)
        held: dict[PodUid, set[str]] = {}
        for uid, _, _, share in self.world.held.devices.each():
            held.setdefault(uid, set()).update(share.ids)
        assert_disjoint(held.values())

    @invariant()
    def the_plugin_sees_no_rule_broken(self) -> None:
        if hasattr(self, "process"):
            self.process.plugin.rules.check()

    @invariant()
    def nothing_crashes(self) -> None:
        if not self.agent_is_away():
            assert not self.world.crashes()
            assert not self.world.runtime.violations

    def agent_is_away(self) -> bool:
        return not hasattr(self, "world") or self.world.agent is None

    def own_cpus(self) -> Iterator[tuple[PodUid, frozenset[int]]]:
        """Yield each pod with all CPUs that are its own; its containers may lend them."""
        for uid in self.world.held.state("cpu").exclusive:
            yield uid, cpu_ids(self.world.held.state("cpu").given_to(uid))

    def states(self) -> tuple[object, ...]:
        """Return what a restarted agent has to find again: the checkpoints."""
        held = self.world.held
        providers = {name: held.provider(name) for name in ("devices", "cpu", "memory")}
        return tuple(p.encode(held.state(name)) for name, p in providers.items() if p is not None)

    def mend(self) -> None:
        def mend() -> None:
            self.world.runtime.faults.clear()
            self.process.plugin.faults.clear()
            # All of it: a list that a fault made too long for the agent would stay so.
            self.process.plugin.set_devices(DEVICES)

        self.run.call(mend)
        self.process.start()

    def calm(self) -> None:
        """Let all faults end and time pass; see that everybody has what is theirs."""
        self.mend()
        self.run.sleep(CALM)
        pods = self.world.pods()
        assert pods.keys() == self.wanted.keys()
        for name, (uid, need) in self.wanted.items():
            alive = {c.name for c in self.world.runtime.alive(PodUid(uid))}
            if self.was_rejected(pods[name]):
                assert not alive
                assert not self.world.held.holds(PodUid(uid))
            else:
                assert len(alive) == need.mains, f"{name}: {pods[name].status}"
                self.check_share(PodUid(uid), need)
        there = {pod_uid(pod) for pod in pods.values()}
        assert all(uid in there for uid, _ in self.own_cpus())
        assert {uid for uid, _, _, _ in self.world.held.devices.each()} <= there
        self.containers_have_what_the_managers_say()
        self.nothing_has_two_owners()

    def was_rejected(self, pod: Pod) -> bool:
        status = pod.status
        if status is None or status.phase != "Failed":
            return False
        assert status.reason in REJECTIONS, status.reason
        return True

    def check_share(self, uid: PodUid, need: Need) -> None:
        held = self.world.held
        for container in self.world.runtime.alive(uid):
            own = held.state("cpu").own(uid, container.name)
            assert (own.bit_count() if own else 0) == (need.cpus if self.is_pinned(need) else 0)
            shares = held.devices.shares(uid, container.name)
            if need.devices:
                assert len(shares[GPU].ids) == need.devices
                env = {e.key: e.value for e in container.config.envs}
                assert env["FAKE_DEVICES"] == ",".join(sorted(shares[GPU].ids)).encode()

    @staticmethod
    def is_pinned(need: Need) -> bool:
        return need.cpus > 0

    def containers_have_what_the_managers_say(self) -> None:
        alive: list[FakeContainer] = self.world.runtime.alive()
        for container in alive:
            share = self.world.held.share(PodUid(container.uid), container.name)
            assert share.cpuset_cpus
            assert container.resources.cpuset_cpus == share.cpuset_cpus, container.name

    def all_is_given_back(self) -> None:
        for name in list(self.wanted):
            self.pod_is_unwanted(name)
        self.calm()
        assert not list(self.own_cpus())
        assert cpu_ids(self.world.held.state("cpu").shared) == frozenset(range(CPUS))
        assert self.world.held.state("memory") is None or not self.world.held.state("memory").blocks


def assert_disjoint(sets: Iterable[Iterable[object]]) -> None:
    everything = [each for one in sets for each in one]
    assert len(everything) == len(set(everything)), f"two owners: {everything}"


def test_everybody_has_what_the_managers_say_whatever_happens() -> None:
    run_machine(ManagedMachine, examples=max(1, EXAMPLES // 20))
