"""The whole agent on a node whose pods claim devices of DRA drivers, under hypothesis.

Pods with claims of their own and of others come, go, end and come back under their names; drivers
fail, hang, lie, die and are updated; claims are dropped; disk and API server are away; the agent is
killed in the middle of it. What a driver may never see and a container may never lack is checked at
the moment of each call; what must be so once faults stop, in the end and whenever it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from kubelet_trio.grpc import Status
from kubelet_trio.model import PodUid
from kubelet_trio.testing.dra import DraFaultKind, calls
from tests.harness.claim_controller import is_ended
from tests.harness.pods import Json
from tests.simulation.claim_drivers import DEVICES, DraNode
from tests.simulation.claim_needs import KINDS, ClaimNeed
from tests.simulation.claim_world import NAMESPACE, ClaimWorld, asked_by, claim_names
from tests.simulation.stepper import Stepper
from tests.simulation.steps import step

NAMES = ("alpha", "beta", "gamma", "delta")
DRIVERS = tuple(DEVICES)
# The longest back-off of a pod (300 s), the longest call of a driver (45 s), the period after which
# claims of pods that are gone are given back (60 s), and some on top.
CALM = 430.0
QUIET = 70.0  # then nobody calls a driver
MOST_CALMS = 2  # each takes as long as all other steps together

needs = st.builds(
    ClaimNeed,
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True).map(tuple),
    mains=st.sampled_from((1, 1, 2)),
    ends=st.sampled_from((False, False, False, True)),
    bound=st.sampled_from((False, False, True)),
)


class ClaimMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Stepper().__enter__()
        self.calms = 0

    def teardown(self) -> None:
        try:
            self.calm()
            self.all_is_given_back()
            self.world.kill()
        finally:
            try:
                self.run.__exit__(None, None, None)
            finally:
                self.world.close()

    @initialize(plain=st.booleans(), need=needs, other=needs)
    def agent_starts(self, plain: bool, need: ClaimNeed, other: ClaimNeed) -> None:
        self.world = ClaimWorld(self.run, plain=plain)
        self.world.start()
        self.run.sleep(3)
        self.world.create("alpha", need)
        self.world.create("beta", other)

    @property
    def drivers(self) -> DraNode:
        assert self.world.drivers is not None
        return self.world.drivers

    # Pods

    @step(name=st.sampled_from(NAMES), need=needs, anew=st.booleans())
    def pod_comes(self, name: str, need: ClaimNeed, anew: bool) -> None:
        self.world.create(name, need, anew=anew)

    @step(name=st.sampled_from(NAMES))
    def pod_goes(self, name: str) -> None:
        self.world.delete(name)

    @step(
        name=st.sampled_from(NAMES),
        need=st.none() | needs,
        anew=st.booleans(),
        pause=st.sampled_from((0.0, 0.01, 0.4)),
    )
    def pod_is_force_deleted(
        self, name: str, need: ClaimNeed | None, anew: bool, pause: float
    ) -> None:
        """Another one of the name, with claims of the same names, may come at once."""
        self.world.delete(name, grace_period=0)
        self.run.sleep(pause)
        if need is not None:
            self.world.create(name, need, anew=anew)

    @step(pick=st.integers(0, 9), code=st.sampled_from((0, 137)))
    def container_dies(self, pick: int, code: int) -> None:
        if alive := self.world.runtime.alive():
            self.run.call(self.world.runtime.kill, alive[pick % len(alive)].id, code)

    @step(pick=st.integers(0, 9))
    def sandbox_dies(self, pick: int) -> None:
        """The pod's next sandbox has its claims prepared, which may be so already."""
        if alive := self.world.runtime.alive():
            self.run.call(self.world.runtime.kill_sandbox, alive[pick % len(alive)].sandbox.id)

    # The control plane

    @step(pick=st.integers(0, 9), how=st.sampled_from(("delete", "drop", "drop", "unreserve")))
    def claim_is_dropped(self, pick: int, how: str) -> None:
        """Drop a claim, or its reservations, behind the back of whoever uses it."""
        world = self.world
        drops = {
            "delete": world.delete_claim,
            "drop": world.drop_claim,
            "unreserve": world.drop_reservations,
        }
        if names := world.claims():
            drops[how](names[pick % len(names)])

    @step(allocates=st.booleans(), reserves=st.booleans())
    def scheduler_rests(self, allocates: bool, reserves: bool) -> None:
        """Claims stay as they are until the scheduler works again."""
        self.world.let_schedule(allocates=allocates, reserves=reserves)

    @step(how=st.sampled_from(("go_down", "hang", "mute", "cut", "come_back", "come_back")))
    def api_server_changes(self, how: str) -> None:
        self.run.call(getattr(self.world.kube, how))

    # The drivers

    @step(
        name=st.sampled_from(DRIVERS),
        kind=st.sampled_from(DraFaultKind),
        method=st.sampled_from((calls.PREPARE, calls.PREPARE, calls.UNPREPARE, calls.WATCH, "")),
        pick=st.integers(0, 9),
        times=st.sampled_from((1, 1, 2, 5, None)),
        delay=st.sampled_from((0.05, 3.0, 44.0, 60.0)),
        status=st.sampled_from([status for status in Status if status is not Status.OK]),
    )
    def driver_fails(
        self,
        name: str,
        kind: DraFaultKind,
        method: str,
        pick: int,
        times: int | None,
        delay: float,
        status: Status,
    ) -> None:
        """Some calls fail: of one claim, or of any."""
        uids = [*self.drivers.rules[name].prepared]
        claim = uids[pick % len(uids)] if uids and pick % 2 else ""
        add = self.drivers.faults[name].add
        self.run.call(lambda: add(kind, method, claim, times=times, delay=delay, status=status))

    @step(name=st.sampled_from(DRIVERS))
    def driver_is_well_again(self, name: str) -> None:
        self.run.call(self.drivers.faults[name].clear)

    @step(name=st.sampled_from(DRIVERS))
    def driver_dies(self, name: str) -> None:
        self.drivers.kill(name)

    @step(name=st.sampled_from(DRIVERS))
    def driver_comes(self, name: str) -> None:
        self.drivers.start(name)

    @step(name=st.sampled_from(DRIVERS))
    def driver_deregisters(self, name: str) -> None:
        self.drivers.deregister(name)

    @step(name=st.sampled_from(DRIVERS))
    def driver_is_updated(self, name: str) -> None:
        """A second instance comes beside the first, or the first one goes."""
        self.drivers.update(name)

    @step(
        name=st.sampled_from(DRIVERS),
        pick=st.integers(0, 9),
        status=st.sampled_from((calls.HEALTHY, calls.UNHEALTHY, calls.UNKNOWN)),
    )
    def health_changes(self, name: str, pick: int, status: str) -> None:
        devices = DEVICES[name]
        self.drivers.set_health(name, devices[pick % len(devices)], status)

    # The agent

    @step(pause=st.sampled_from((0.0, 0.0, 1.0, 40.0)))
    def agent_is_killed(self, pause: float) -> None:
        self.world.kill()
        self.run.sleep(pause)
        self.world.start()

    @step(is_full=st.booleans())
    def disk_changes(self, is_full: bool) -> None:
        """The disk refuses checkpoints, or takes them again."""
        self.world.is_disk_full = is_full

    @step(seconds=st.sampled_from((1.0, 12.0, 35.0, 65.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.run.sleep(seconds)

    @step()
    def quiet_agent_is_restarted(self) -> None:
        """What runs keeps its claims, and no driver is asked for anything."""
        self.calms += 1
        if self.calms > MOST_CALMS:
            return
        self.calm()
        before, asked = self.world.kept(), len(self.world.witness.times)
        self.world.kill()
        self.world.start()
        self.run.sleep(QUIET)
        assert self.world.kept() == before
        assert len(self.world.witness.times) == asked
        self.check_rest()

    # What must be so

    @invariant()
    def claims_are_prepared_while_they_are_used(self) -> None:
        if hasattr(self, "world"):
            self.world.witness.check(self.run.now())
            for rules in self.drivers.rules.values():
                rules.check()

    @invariant()
    def nothing_crashes(self) -> None:
        if hasattr(self, "world") and self.world.agent is not None:
            assert not self.world.crashes()
            assert not self.world.runtime.violations

    def mend(self) -> None:
        """End all faults."""
        self.run.call(self.world.kube.come_back)
        self.world.is_disk_full = False
        self.world.let_schedule(allocates=True, reserves=True)
        self.drivers.mend()

    def calm(self) -> None:
        """Let all faults end and time pass; see that everybody has what is theirs."""
        self.mend()
        self.run.sleep(CALM)
        self.see_rest()

    def see_rest(self) -> None:
        """See that nothing is left to do, and that it is done right."""
        asked = len(self.world.witness.times)
        self.run.sleep(QUIET)
        more = self.world.witness.times[asked:]
        assert not more, f"drivers are still asked: {more}"
        self.check_rest()

    def check_rest(self) -> None:
        self.claims_are_prepared_while_they_are_used()
        self.nothing_crashes()
        for pod in self.world.store.all("Pod", NAMESPACE):
            self.check_pod(pod)
        self.check_prepared()
        self.check_checkpoint()

    def check_pod(self, pod: Json) -> None:
        """See that a pod runs, if it may, with what the drivers say of its devices' health."""
        name, status = pod["metadata"]["name"], pod["status"]
        assert "deletionTimestamp" not in pod["metadata"], f"{name} does not go"
        alive = {c.name for c in self.world.runtime.alive(PodUid(pod["metadata"]["uid"]))}
        if is_ended(pod):
            assert not alive, name
            return
        # A pod that runs goes on, whatever has become of its claims.
        if alive or self.world.is_served(pod):
            assert alive == {c["name"] for c in pod["spec"]["containers"]}, f"{name}: {status}"
            assert status["phase"] == "Running", status
            self.check_health(pod)

    def check_health(self, pod: Json) -> None:
        told = {
            (each["name"], claim["name"], entry["resourceID"]): entry["health"]
            for each in pod["status"]["containerStatuses"]
            for claim in each.get("allocatedResourcesStatus") or ()
            for entry in claim["resources"]
        }
        assert told == dict(self.healths(pod))

    def healths(self, pod: Json) -> Iterator[tuple[tuple[str, str, str], str]]:
        """Yield the health of each device of each container of a pod, by names, as it is."""
        witness, uid = self.world.witness, PodUid(pod["metadata"]["uid"])
        own_names = {claim: own for own, claim in claim_names(pod)}
        for container in pod["spec"]["containers"]:
            for claim, request in asked_by(pod, container["name"]):
                if not own_names[claim]:
                    continue  # of extended resources nothing is told
                entry = f"claim:{own_names[claim]}" + (f"/{request}" if request else "")
                for driver, device in witness.devices(witness.uses[uid][claim], request):
                    health = self.drivers.healths[driver][device.name]
                    for cdi_id in device.cdi_ids or ():
                        yield (container["name"], entry, cdi_id), health

    def check_prepared(self) -> None:
        """See that what is prepared is what pods use that are there, and known to be theirs."""
        living = self.world.living()
        known = {claim.ref.uid: claim for claim in self.world.table.values()}
        for claim in known.values():
            assert claim.pods <= living.keys(), f"kept for pods that are gone: {claim}"
            assert claim.pods, f"kept for nobody: {claim}"
        running = {c.uid for c in self.world.runtime.alive()}
        used = {uid for pod in running for uid in self.world.witness.uses[pod].values()}
        prepared = {uid for rules in self.drivers.rules.values() for uid in rules.prepared}
        assert used <= known.keys()
        assert prepared <= known.keys(), "prepared for no pod"

    def check_checkpoint(self) -> None:
        stored: dict[Any, Any] = {
            key: (claim.ref, claim.pods, claim.drivers) for key, claim in self.world.table.items()
        }
        kept = {key: (c.ref, c.pods, c.drivers) for key, c in self.world.kept().items()}
        assert kept == stored

    def all_is_given_back(self) -> None:
        for name in NAMES:
            self.world.delete(name)
        self.run.sleep(30.0)
        self.see_rest()
        assert not self.world.store.all("Pod", NAMESPACE)
        assert not self.world.table
        assert not any(rules.prepared for rules in self.drivers.rules.values())
        assert not self.world.leftovers(set())
