"""The volumes of pods, with a driver that keeps the rules and fails in every way.

Pods come and go, agent and driver are killed and started in the middle of calls. No rule of the
specification is broken at any moment; when faults end, every pod has its volumes, and nothing is
left of pods that are gone.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from tests.simulation.csi_faults import VOLUME_METHODS, DriverFault, driver_faults
from tests.simulation.stepper import Stepper
from tests.simulation.steps import step
from tests.simulation.volume_world import INLINE, ONE_POD, SCRATCH, SHARED, VolumeWorld

VOLUMES = (*SHARED, *SHARED, ONE_POD, INLINE, SCRATCH)
METHODS = (*VOLUME_METHODS, calls.GET_INFO, "")
KINDS = (
    CsiFaultKind.REFUSE,
    CsiFaultKind.ERROR,
    CsiFaultKind.HANG,
    CsiFaultKind.SLOW,
    *(CsiFaultKind.GOES_ON, CsiFaultKind.LOST_REPLY) * 3,
)
MOST_PODS = 5
# The longest back-off of a volume (122 s), a mount that began before (123 s), and two cleanings.
CALM = 420.0


class VolumeMachine(RuleBasedStateMachine):
    """See the module."""

    make_world: type[VolumeWorld] = VolumeWorld

    def __init__(self) -> None:
        super().__init__()
        self.run = Stepper().__enter__()

    @initialize(stages=st.sampled_from((True, True, False)), republishes=st.booleans())
    def agent_and_driver_start(self, stages: bool, republishes: bool) -> None:
        self.world = self.make_world(self.run, stages=stages, republishes=republishes)
        self.world.start_driver()
        self.world.start_agent()

    def teardown(self) -> None:
        try:
            self.calm()
            self.everything_goes()
            self.world.kill_agent()
        finally:
            try:
                self.run.__exit__(None, None, None)
            finally:
                self.world.close()

    # What happens

    @step(volumes=st.frozensets(st.sampled_from(VOLUMES), min_size=1, max_size=3))
    def pod_comes(self, volumes: frozenset[str]) -> None:
        if len(self.world.pods) < MOST_PODS:
            self.world.create(volumes)

    @step(
        volume=st.sampled_from(VOLUMES),
        life=st.sampled_from((0.005, 0.015, 0.03, 0.05, 0.07, 0.1, 1.0)),
    )
    def pod_comes_and_goes(self, volume: str, life: float) -> None:
        """Let a pod go while its volume is being mounted, or just after."""
        if len(self.world.pods) < MOST_PODS:
            uid = self.world.create(frozenset({volume}))
            self.run.sleep(life)
            self.world.remove(uid)

    @step(volume=st.sampled_from((*SHARED, INLINE)), method=st.sampled_from(VOLUME_METHODS))
    def pod_goes_while_a_call_is_late(self, volume: str, method: str) -> None:
        """Let a pod go after the deadline of a call that takes effect still later."""
        if len(self.world.pods) < MOST_PODS:
            self.all_is_well()
            self.run.sleep(3)  # registered
            faults = self.world.driver.faults
            faults.add(CsiFaultKind.GOES_ON, method, delay=200.0)
            uid = self.world.create(frozenset({volume}))
            self.run.sleep(125)
            self.world.remove(uid)

    @step(pick=st.integers(0, MOST_PODS))
    def pod_goes(self, pick: int) -> None:
        if wanted := self.wanted():
            self.world.remove(wanted[pick % len(wanted)])

    @step(fault=driver_faults(KINDS, METHODS, SHARED))
    def driver_fails(self, fault: DriverFault) -> None:
        fault.add_to(self.world.driver)

    @step()
    def driver_is_well_again(self) -> None:
        self.run.call(self.world.driver.faults.clear)

    @step()
    def driver_dies(self) -> None:
        self.world.kill_driver()

    @step()
    def driver_starts(self) -> None:
        self.world.start_driver()

    @step()
    def driver_registers_again(self) -> None:
        self.world.register_again()

    @step()
    def agent_dies(self) -> None:
        self.world.kill_agent()

    @step()
    def agent_starts(self) -> None:
        self.world.start_agent()

    @step(seconds=st.sampled_from((10.0, 125.0, 300.0)))
    def time_passes(self, seconds: float) -> None:
        self.run.sleep(seconds)

    # What must be so

    @invariant()
    def no_rule_is_broken(self) -> None:
        if hasattr(self, "world"):
            self.world.rules.check()
            destroyed = self.world.storage.destroyed
            assert not destroyed, f"data removed through its mount: {destroyed}"

    @invariant()
    def a_running_pod_keeps_its_volumes(self) -> None:
        if hasattr(self, "world"):
            mounted = self.world.mounted()
            for live in self.world.pods.values():
                if live.is_running and not live.removed.is_set():
                    lost = set(self.world.targets(live)) - mounted
                    assert not lost, f"lost by {live.uid}: {lost}"

    @invariant()
    def nothing_is_left_of_a_pod_that_is_gone(self) -> None:
        if hasattr(self, "world"):
            paths = self.world.mounted() | self.world.published()
            left = [path for path in paths if any(f"/{uid}/" in path for uid in self.world.gone)]
            assert not left, f"left behind: {left}"

    def all_is_well(self) -> None:
        """End all faults; start what does not run."""
        self.run.call(self.world.driver.faults.clear)
        self.world.start_driver()
        self.world.start_agent()

    def calm(self) -> None:
        """End all faults, and give what is tried again the time for it."""
        self.all_is_well()
        self.run.sleep(CALM)
        self.no_rule_is_broken()
        self.a_running_pod_keeps_its_volumes()
        self.nothing_is_left_of_a_pod_that_is_gone()
        self.every_pod_that_can_run_does()
        self.only_what_runs_is_mounted()

    def every_pod_that_can_run_does(self) -> None:
        waiting = [live for live in self.world.pods.values() if not live.is_running]
        assert not any(live.removed.is_set() for live in waiting), "a pod does not end"
        assert all(ONE_POD in live.volumes for live in waiting), f"not started: {waiting}"
        users = [live for live in self.world.pods.values() if ONE_POD in live.volumes]
        assert sum(live.is_running for live in users) == bool(users), "not one user of its volume"

    def only_what_runs_is_mounted(self) -> None:
        world = self.world
        running = [live for live in world.pods.values() if live.is_running]
        wanted = {target for live in running for target in world.targets(live)}
        assert wanted <= world.published()
        # A pod that waits for one of its volumes has the others.
        for path in world.published() - wanted:
            assert any(f"/{live.uid}/" in path for live in world.pods.values()), path
        used = {name for live in world.pods.values() for name in live.volumes}
        assert set(world.rules.staged()) <= used, "staged for no pod"

    def everything_goes(self) -> None:
        """Remove all pods, and see that nothing is left."""
        world = self.world
        for uid in self.wanted():
            world.remove(uid)
        self.run.sleep(CALM)
        assert not world.pods, f"not gone: {list(world.pods)}"
        assert not world.rules.staged()
        assert not world.rules.published()
        assert not world.mounted()
        left = [p for p in (world.root / "plugins").rglob("*") if not p.is_dir()]
        assert not left, f"left on disk: {left}"
        world.rules.check()

    def wanted(self) -> list[PodUid]:
        return [uid for uid, live in self.world.pods.items() if not live.removed.is_set()]
