"""Whatever order pods start, end, are cancelled and the agent dies in: claims come out right."""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.managers.claims import ClaimError
from kubelet_trio.managers.claims.types import ClaimKey
from kubelet_trio.model import PodUid
from tests.managers.claims.node import Driver, Node
from tests.managers.claims.objects import GPUS, NICS, claim_object, pod_using

# Which claims each pod uses; each claim's drivers.
PODS = {"p1": ("one",), "p2": ("one", "two"), "p3": ("two", "three"), "p4": ("three",)}
CLAIMS = {"one": (GPUS,), "two": (GPUS, NICS), "three": (NICS,)}

STEPS = st.one_of(
    st.tuples(st.sampled_from(["start", "end"]), st.sampled_from(sorted(PODS))),
    st.tuples(st.just("cancel"), st.sampled_from(sorted(PODS))),
    st.tuples(st.sampled_from(["leave", "break", "heal"]), st.sampled_from([GPUS, NICS])),
    st.tuples(st.just("crash"), st.just("")),
)
STORIES = st.lists(st.tuples(STEPS, st.sampled_from([0.0, 0.05, 0.1, 0.6, 3.0])), max_size=25)


class Story:
    """Pods' workers as far as claims see them: prepare until it works, unprepare until it works."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root)
        self.drivers: dict[str, Driver] = {GPUS: self.node.gpus, NICS: self.node.nics}
        for claim, drivers in CLAIMS.items():
            self.node.add(claim_object(claim, *drivers, users=PODS))
        self.wanted: set[str] = set()
        self.ending: set[str] = set()
        self.running: set[str] = set()  # a sandbox runs, and outlives the agent
        self.syncs: dict[str, trio.CancelScope] = {}

    async def tell(self, story: list[tuple[tuple[str, str], float]]) -> None:
        path = self.node.root / "dra_manager_state"
        while True:
            crashed = False
            async with trio.open_nursery() as self.agent:
                await self.agent.start(self.node.run)
                for uid in sorted(self.wanted - self.running - self.ending):
                    self.agent.start_soon(self.sync, uid)
                for uid in sorted(self.ending):
                    self.agent.start_soon(self.tear_down, uid)
                while story and not crashed:
                    (step, subject), wait = story.pop(0)
                    crashed = step == "crash"
                    self.take(step, subject)
                    await trio.sleep(wait)
                if not crashed:
                    await self.settle()
                left = path.read_bytes() if path.exists() else None
                self.agent.cancel_scope.cancel()
            if not crashed:
                return
            # Killed: what the agent did at its end it never did. The drivers went on.
            path.unlink(missing_ok=True)
            if left is not None:
                path.write_bytes(left)
            self.syncs.clear()
            self.node.reboot()

    def take(self, step: str, subject: str) -> None:
        if step == "start" and subject not in self.wanted | self.ending:
            self.wanted.add(subject)
            self.agent.start_soon(self.sync, subject)
        elif step == "end" and subject in self.wanted:
            self.wanted.discard(subject)
            self.ending.add(subject)
            if subject in self.syncs:
                self.syncs[subject].cancel()
            self.agent.start_soon(self.tear_down, subject)
        elif step == "cancel" and subject in self.syncs:  # the worker starts another round
            self.syncs[subject].cancel()
            self.agent.start_soon(self.sync, subject)
        elif step == "leave":
            self.node.registered.pop(subject, None)
        elif step == "break":
            self.drivers[subject].broken = "broken"
        elif step == "heal":
            self.heal(subject)
        self.node.known = {PodUid(uid) for uid in self.wanted | self.ending}

    def heal(self, name: str) -> None:
        self.node.registered[name] = self.drivers[name]
        self.drivers[name].broken = ""

    async def sync(self, uid: str) -> None:
        pod = pod_using(*(f"{name}={name}" for name in PODS[uid]), uid=uid)
        with trio.CancelScope() as self.syncs[uid]:
            while uid in self.wanted:
                try:
                    await self.node.claims.prepare(pod)
                except ClaimError:
                    await trio.sleep(0.7)
                else:
                    self.running.add(uid)
                    assert self.is_prepared(uid)
                    return

    async def tear_down(self, uid: str) -> None:
        while True:
            try:
                await self.node.claims.unprepare(PodUid(uid))
            except ClaimError:
                await trio.sleep(0.7)
            else:
                self.ending.discard(uid)
                self.running.discard(uid)
                self.node.known = {PodUid(uid) for uid in self.wanted | self.ending}
                return

    def is_prepared(self, uid: str) -> bool:
        return all(
            f"uid-{claim}" in self.drivers[driver].prepared
            for claim in PODS[uid]
            for driver in CLAIMS[claim]
        )

    async def settle(self) -> None:
        """Let all drivers be well, and see that what is prepared is what running pods use."""
        for name in self.drivers:
            self.heal(name)
        await trio.sleep(200)
        assert not self.ending
        assert self.running == self.wanted
        used = {claim for uid in self.running for claim in PODS[uid]}
        for name, driver in self.drivers.items():
            assert driver.prepared == {f"uid-{c}" for c in used if name in CLAIMS[c]}
        for claim in CLAIMS:
            known = self.node.claims.table.get(ClaimKey("ns", claim))
            users = {uid for uid in self.running if claim in PODS[uid]}
            assert (set(known.pods) if known is not None else set()) == users


@settings(max_examples=60)
@given(STORIES)
def test_claims_come_out_right(story: list[tuple[tuple[str, str], float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        told = Story(Path(directory))
        trio.run(told.tell, list(story), clock=MockClock(autojump_threshold=0))
