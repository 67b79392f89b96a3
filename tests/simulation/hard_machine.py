"""The whole agent on a node where moreover everything runs short.

Beside all that `AgentMachine` does: memory and disk come under pressure and pods are evicted,
images are collected, the disk is full or read-only, records are damaged while the agent is
down, the runtime talks nonsense, and the machine's shutdown begins and is called off.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import invariant
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, pod_uid
from tests.simulation.agent_machine import CALM, AgentMachine
from tests.simulation.hard_world import ENOUGH, SHORT, Garble, HardRuntime, HardWorld, fed_pod
from tests.simulation.manifests import Wish
from tests.simulation.steps import step

FED = ("one", "two")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda old: old[: len(old) // 2],
    "garbage": lambda _old: b"\xff\x00{",
}
# As long as conditions are told after their thresholds are met no more, and a look on top.
TRANSITION = 320.0


class HardMachine(AgentMachine):
    """See the module."""

    make_runtime: type[HardRuntime] = HardRuntime

    def __init__(self) -> None:
        self.evicted: dict[PodUid, int] = {}  # starts by then
        self.refused: set[PodUid] = set()  # they came under pressure, which lasts
        self.excused: set[PodUid] = set()  # their records were damaged, or the node went down
        self.is_going_down = False
        self.numbers = 0
        super().__init__()

    def make_world(self) -> HardWorld:
        self.hard = HardWorld(self.run, type(self).make_runtime)
        return self.hard

    # Pods that may be evicted

    @step(name=st.sampled_from(FED), use=st.sampled_from((10, 200)))
    def pod_is_fed(self, name: str, use: int) -> None:
        """Want another pod in the place of this one."""
        self.numbers += 1
        pod = fed_pod(name, use, f"{name}-{self.numbers}")
        if self.hard.agent is not None and self.hard.agent.pressure.value.memory:
            self.refused.add(pod_uid(pod))
        self.hard.feed({**self.hard.fed, name: pod})

    @step(name=st.sampled_from(FED))
    def fed_pod_goes(self, name: str) -> None:
        self.hard.feed({n: pod for n, pod in self.hard.fed.items() if n != name})

    # The node runs short

    @step(memory=st.sampled_from((SHORT, SHORT, ENOUGH)))
    def memory_changes(self, memory: int) -> None:
        self.hard.machine.memory = memory

    @step(disk=st.sampled_from((SHORT, ENOUGH)))
    def disk_space_changes(self, disk: int) -> None:
        self.hard.machine.disk = disk

    @step(percent=st.sampled_from((50, 95)))
    def images_fill_their_disk(self, percent: int) -> None:
        self.hard.machine.images = percent

    @step(error=st.sampled_from((errno.ENOSPC, errno.EROFS, 0)))
    def disk_refuses(self, error: int) -> None:
        self.hard.disk.error = error

    @step(
        damage=st.sampled_from(sorted(DAMAGES)),
        pick=st.integers(0, 9),
        pause=st.sampled_from((0.0, 1.0, 40.0)),
    )
    def record_is_damaged_while_the_agent_is_away(
        self, damage: str, pick: int, pause: float
    ) -> None:
        self.hard.kill()
        records = sorted((self.hard.node.root_dir / "pods").glob("*/kubelet-trio.json"))
        if records:
            path = records[pick % len(records)]
            uid = PodUid(path.parent.name)
            if uid not in self.of_broken_manifests():
                path.write_bytes(DAMAGES[damage](path.read_bytes()))
                self.disturbed.add(uid)
                self.excused.add(uid)
                # If nobody wants it any more, nothing tells which container is its sidecar.
                self.lost_sandbox.add(uid)
        self.run.sleep(pause)
        self.hard.start()

    @step(kind=st.sampled_from(("", *Garble.KINDS)))
    def runtime_talks_nonsense(self, kind: str) -> None:
        self.hard.hard_runtime.garble = kind

    # The machine goes down

    @step(called_off=st.sampled_from((None, 0.0, 5.0, 40.0)))
    def shutdown_begins(self, called_off: float | None) -> None:
        """None: something else calls it off."""
        if self.hard.agent is None:
            return
        self.is_going_down = True
        self.run.call(self.hard.logind.announce, True)
        if called_off is not None:
            self.run.sleep(called_off)
            self.run.call(self.hard.logind.announce, False)

    # What must be so

    @invariant()
    def evicted_pods_stay_evicted(self) -> None:
        pods = self.hard.agent.pods.value if self.hard.agent is not None else {}
        for uid, pod in pods.items():
            if pod.status is not None and pod.status.reason == "Evicted":
                self.evicted.setdefault(uid, self.starts(uid))
        for uid, starts in self.evicted.items():
            assert uid in self.excused or self.starts(uid) <= starts, f"{uid} is back"

    @invariant()
    def nobody_comes_under_pressure(self) -> None:
        agent = self.hard.agent
        if agent is None or not agent.pressure.value.memory:
            self.refused.clear()  # an agent that has not looked yet takes them
        for uid in self.refused:
            assert not self.starts(uid), f"{uid} was admitted under pressure"

    def starts(self, uid: PodUid) -> int:
        return sum(n for (of, _), n in self.hard.runtime.starts.items() if of == uid)

    def of_broken_manifests(self) -> set[PodUid]:
        """Return pods that only their records tell of, for their manifests are broken now."""
        found: set[PodUid] = set()
        for name, wish in self.wanted.items():
            text = (self.hard.manifests / f"{name}.yaml").read_text()
            if not text.startswith("{"):
                found.add(PodUid(wish.uid(name)))
        return found

    def mend(self) -> None:
        self.hard.machine.memory = self.hard.machine.disk = ENOUGH
        self.hard.machine.images, self.hard.disk.error = 50, 0
        self.hard.hard_runtime.garble = ""
        super().mend()

    def calm(self) -> None:
        self.mend()
        if self.is_going_down:
            self.come_up_again()
        if self.hard.agent is not None:
            self.run.sleep(TRANSITION)
        super().calm()
        self.evicted_pods_stay_evicted()  # notes those that were turned away meanwhile
        for name, pod in self.hard.fed.items():
            self.check_fed(name, pod)

    def come_up_again(self) -> None:
        """As after a shutdown: what ended with the node is ended, static pods come back."""
        self.run.call(self.hard.logind.announce, False)
        if self.hard.agent is not None:
            self.run.sleep(CALM)
            self.hard.kill()
        self.hard.start()
        everybody = {wish.uid(name) for name, wish in self.wanted.items()}
        self.disturbed |= everybody
        self.excused |= {PodUid(uid) for uid in everybody}
        self.excused |= {pod_uid(pod) for pod in self.hard.fed.values()}
        self.is_going_down = False

    def is_ending(self) -> bool:
        return self.is_going_down

    def keeps_records(self) -> bool:
        return not self.hard.disk.error

    def names(self) -> set[str]:
        return super().names() | self.hard.fed.keys()

    def check_fed(self, name: str, pod: Pod) -> None:
        uid = pod_uid(pod)
        status = self.hard.pods()[name].status
        assert status is not None
        alive = self.hard.runtime.alive(uid)
        if status.phase == "Failed":
            assert not alive
            assert status.reason in ("Evicted", "Terminated", "NodeShutdown"), status.reason
            assert uid in self.evicted or uid in self.excused
        else:
            assert status.phase == "Running"
            assert len(alive) == 1

    def check_pod(self, name: str, wish: Wish, pod: Pod) -> None:
        if PodUid(wish.uid(name)) in self.excused and wish.policy != "Always":
            return
        super().check_pod(name, wish, pod)

    def is_recorded(self, uid: PodUid) -> bool:
        """Without a record only the runtime knows of a pod, and not its memory requests."""
        return uid not in self.excused
