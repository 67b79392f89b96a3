"""A node with `--offline-pods` whose server, agent and machine come and go at random.

Whatever happens, in the end it runs what is bound to it, no container of a boot is started twice,
and a machine that comes up cut off runs what was bound to it when it was last in touch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import PodUid, pod_uid
from tests.agent.test_cluster import World
from tests.agent.test_offline import add_pod, furnish, reboot
from tests.simulation.profile import EXAMPLES, SEED

# Seconds after which a change is on disk, a node that is in touch has begun, and one that was not
# in touch is again: a watch that hangs is given up after 150 s.
_SETTLED, _BACK = 20.0, 400.0
_FALLEN_BACK = 90.0

_NAMES = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("bind"), _NAMES),
    st.tuples(st.just("delete"), _NAMES),
    st.tuples(st.sampled_from(["down", "hang", "back", "restart", "reboot"]), st.just("")),
    st.tuples(st.just("wait"), st.sampled_from(["1", "30", "500"])),
    st.tuples(st.just("outage"), st.sampled_from(["down", "hang"])),
)


class Story:
    """One node's, told step by step."""

    def __init__(self, base: Path) -> None:
        self.world = World(base)
        furnish(self.world)
        self.is_cut = False
        self.settles_at = 0.0
        self.known: set[PodUid] | None = set()  # what is on disk; None: nobody can tell

    async def tell(self, steps: list[tuple[str, str]]) -> None:
        """Take all steps, then bring the server back and look."""
        left = [*steps, ("back", ""), ("wait", "500")]
        while left:
            async with self.world.running():
                self.look_again(_SETTLED)
                while left:
                    verb, what = left.pop(0)
                    if verb == "outage":  # of the server and the machine, in a quiet hour
                        left[:0] = [("wait", "500"), (what, ""), ("reboot", "")]
                        continue
                    if verb in ("restart", "reboot"):
                        break
                    await self.step(verb, what)
                else:
                    self.check_end()
                    return
            assert self.world.host.runtime.violations == []
            if verb == "reboot":
                reboot(self.world)
                await self.come_up()

    async def step(self, verb: str, what: str) -> None:
        kube = self.world.kube
        if verb == "wait":
            await trio.sleep(float(what))
        elif verb == "back":
            kube.come_back()
            if self.is_cut:
                self.look_again(_BACK)
            self.is_cut = False
        elif verb in ("down", "hang"):
            self.note()
            (kube.go_down if verb == "down" else kube.hang)()
            self.is_cut = True
        elif verb == "bind" and kube.find(Pod, what) is None:
            add_pod(self.world, what)
            self.changed()
        elif verb == "delete" and kube.find(Pod, what) is not None:
            kube.remove(Pod, what, grace_period=0)
            self.changed()
        self.note()

    def look_again(self, seconds: float) -> None:
        self.settles_at = max(self.settles_at, trio.current_time() + seconds)

    def changed(self) -> None:
        if not self.is_cut:
            self.known = None
            self.look_again(_SETTLED)

    def bound(self) -> set[PodUid]:
        return {pod_uid(pod) for pod in self.world.kube.all(Pod)}

    def note(self) -> None:
        """Note what is on disk by now, if that can be told."""
        if not self.is_cut and trio.current_time() >= self.settles_at:
            self.known = self.bound()
        elif not self.is_cut and self.known != self.bound():
            self.known = None

    def running(self) -> list[PodUid]:
        return sorted(container.uid for container in self.world.host.runtime.alive())

    async def come_up(self) -> None:
        """Boot; where the server is away the disk is all there is."""
        if not self.is_cut:
            return
        async with self.world.running():
            await trio.sleep(_FALLEN_BACK)
            assert self.known is None or self.running() == sorted(self.known)
            self.check_starts()

    def check_starts(self) -> None:
        assert all(count == 1 for count in self.world.host.runtime.starts.values())

    def check_end(self) -> None:
        assert self.running() == sorted(self.bound())
        self.check_starts()
        assert self.world.host.runtime.violations == []


@hypothesis.seed(SEED)
@settings(
    max_examples=max(EXAMPLES // 20, 1),
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a story is short as it is, and takes a second
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(STEPS, max_size=12))
def test_whatever_goes_the_node_runs_what_it_is_to_run(steps: list[tuple[str, str]]) -> None:
    async def tell(base: Path) -> None:
        await Story(base).tell(steps)

    with tempfile.TemporaryDirectory() as base:
        trio.run(tell, Path(base), clock=MockClock(autojump_threshold=0))
