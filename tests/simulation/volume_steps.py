"""What happens to the CSI volumes of a machine's pods, and what must be so of them.

A part of `AgentMachine`. Its steps do nothing on a node without a driver.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from tests.simulation.csi_faults import VOLUME_METHODS, DriverFault, driver_faults
from tests.simulation.csi_node import LIES
from tests.simulation.csi_volumes import CLAIMED, INLINE
from tests.simulation.manifests import NAMES, Wish
from tests.simulation.stepper import Stepper
from tests.simulation.steps import step
from tests.simulation.world import World

METHODS = (
    *VOLUME_METHODS * 2,
    calls.GET_INFO,
    calls.GET_CAPABILITIES,
    "",
)
KINDS = (
    CsiFaultKind.REFUSE,
    CsiFaultKind.ERROR,
    CsiFaultKind.HANG,
    CsiFaultKind.SLOW,
    CsiFaultKind.DIE_BEFORE,
    CsiFaultKind.DIE_AFTER,
    *(CsiFaultKind.GOES_ON, CsiFaultKind.LOST_REPLY) * 2,
)
# A pod beside one whose volume hangs starts by then: what takes time is the mended runtime.
UNDISTURBED = 60.0


class VolumeSteps(RuleBasedStateMachine):
    """See the module."""

    run: Stepper
    world: World
    wanted: dict[str, Wish]

    def write_wish(self, name: str, wish: Wish, *, nudge: bool = True) -> None:
        raise NotImplementedError

    def mend(self) -> None:
        raise NotImplementedError

    @step(fault=driver_faults(KINDS, METHODS, CLAIMED))
    def driver_fails(self, fault: DriverFault) -> None:
        if self.world.csi is not None:
            fault.add_to(self.world.csi.driver)

    @step(pause=st.sampled_from((0.0, 0.5, 10.0, 130.0, None)))
    def driver_restarts(self, pause: float | None) -> None:
        """None: it stays away until it is started by a later step."""
        csi = self.world.csi
        if csi is None:
            return
        csi.kill()
        if pause is not None:
            self.run.sleep(pause)
            csi.start()

    @step(how=st.sampled_from(("again", "beside", "away", "deaf", *LIES)))
    def driver_registers_otherwise(self, how: str) -> None:
        csi = self.world.csi
        if csi is None:
            return
        if how == "away":
            csi.deregister()
        elif how in LIES:
            csi.lie(how)
        else:
            csi.is_deaf = how == "deaf"
            csi.register(beside=how == "beside")

    @step(
        name=st.sampled_from(NAMES),
        volume=st.sampled_from(CLAIMED),
        method=st.sampled_from(VOLUME_METHODS),
        after=st.sampled_from((0.0, 0.2, 3.0)),
        beside=st.sampled_from(((), (INLINE,))),
    )
    def a_volume_hangs(
        self, name: str, volume: str, method: str, after: float, beside: tuple[str, ...]
    ) -> None:
        """While a volume hangs, pods without it start as ever."""
        csi = self.world.csi
        if csi is None or self.is_ending():
            return
        self.mend()
        if self.world.agent is None:
            self.world.start()
        self.run.sleep(5)  # registered
        csi.driver.faults.add(CsiFaultKind.HANG, method, volume, times=None)
        self.write_wish(name, Wish(("run",), claims=(volume,)))
        self.run.sleep(after)
        self.check_bystander(Wish(("run",), claims=beside))

    def check_bystander(self, wish: Wish) -> None:
        """See that a pod starts now, and let it go."""
        name = "bystander"
        wish = Wish(wish.mains, claims=wish.claims, note=100 + len(self.world.runtime.starts))
        self.write_wish(name, wish)
        self.run.sleep(UNDISTURBED)
        assert self.world.runtime.alive(PodUid(wish.uid(name))), "a hanging volume disturbs others"
        del self.wanted[name]
        self.world.remove(name)

    def is_ending(self) -> bool:
        """Whether no pod may start now."""
        return False

    @invariant()
    def volumes_are_where_they_are_used(self) -> None:
        """Rules of CSI are kept, records are there, what runs has its volumes."""
        if self.world.csi is not None:
            self.world.csi.check(self.world.runtime.alive())

    def check_volumes(self) -> None:
        """See that pods that run have their volumes, and that nobody else has any."""
        csi = self.world.csi
        if csi is None:
            return
        users: dict[PodUid, tuple[str, ...]] = {}
        for name, wish in self.wanted.items():
            pod = self.world.pods()[name]
            if pod.status is not None and pod.status.phase in ("Running", "Pending"):
                users[PodUid(wish.uid(name))] = wish.claims
                if pod.status.phase == "Running":
                    csi.check_published(PodUid(wish.uid(name)), wish.claims)
        csi.check_calm(users)
