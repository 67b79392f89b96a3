"""The node's cgroups as the agent keeps them, over a tree that remembers what it was told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import (
    Container,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_util import AsyncValue

from kubelet_trio.cgroups import (
    UNLIMITED,
    CgroupBusyError,
    CgroupError,
    CgroupLimits,
    CgroupName,
    CgroupsDeniedError,
    Written,
)
from kubelet_trio.containers import NodeSettings
from kubelet_trio.model import NANO, EventType, Meter, ObjectRef, PodUid, pod_uid
from kubelet_trio.pods import (
    CgroupPolicy,
    NodeCgroups,
    OrphanCgroups,
    PlainCgroups,
    ReservedCgroup,
)
from tests.agent.node import Node, ready
from tests.agent.node import make_pod as make_node_pod

KUBEPODS = ("kubepods",)
BURSTABLE = ("kubepods", "burstable")
BEST_EFFORT = ("kubepods", "besteffort")


def make_pod(uid: str, cpu: str = "", phase: str = "Running") -> Pod:
    resources = ResourceRequirements(requests={"cpu": cpu}) if cpu else None
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(containers=[Container(name="main", resources=resources)]),
        status=PodStatus(phase=phase),
    )


def over(before: CgroupLimits, limits: CgroupLimits) -> CgroupLimits:
    """Return the limits of a cgroup after a write: a limit that is None is not written."""
    given = {f.name: getattr(limits, f.name) for f in fields(limits)}
    given["unified"] = {**before.unified, **limits.unified}
    return replace(before, **{name: value for name, value in given.items() if value is not None})


@dataclass
class FakeTree:
    """Cgroups in memory; what it is told to refuse, it refuses."""

    there: dict[CgroupName, CgroupLimits] = field(default_factory=dict)
    writes: list[CgroupName] = field(default_factory=list)  # by `apply`
    reserved: set[str] = field(default_factory=set)
    refused: dict[CgroupName | str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    busy: set[PodUid] = field(default_factory=set)
    not_starved: CgroupError | None = None  # raised where a pod's own limits are changed
    usage: int = 0
    error: CgroupError | None = None

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        if name[:-1] and name[:-1] not in self.there:
            raise AssertionError(f"{name} is made before what it is in")
        self.writes.append(name)
        self.there[name] = over(self.there.get(name, CgroupLimits()), limits)
        return self._written(name, limits)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        await trio.lowlevel.checkpoint()
        name = tuple(path.strip("/").split("/"))
        if name not in self.there and path not in self.reserved:
            return Written(failures=(f"cgroup {path} is gone",))
        written = self._written(path, limits)
        if not written.failures:
            self.there[name] = over(self.there.get(name, CgroupLimits()), limits)
        return written

    def _written(self, name: CgroupName | str, limits: CgroupLimits) -> Written:
        failure = self.refused.get(name)
        if failure and limits.memory is not None and limits.memory >= self.usage > 0:
            failure = None
        return Written(self.missing, (failure,) if failure else ())

    async def exists(self, path: str) -> bool:
        await trio.lowlevel.checkpoint()
        return path in self.reserved or tuple(path.strip("/").split("/")) in self.there

    async def read(self, name: CgroupName) -> CgroupLimits | None:
        await trio.lowlevel.checkpoint()
        return self.there.get(name)

    async def memory_usage(self, name: CgroupName) -> int | None:
        await trio.lowlevel.checkpoint()
        return self.usage

    async def list_pods(self) -> frozenset[PodUid]:
        await trio.lowlevel.checkpoint()
        last = (name[-1] for name in self.there)
        return frozenset(PodUid(part[3:]) for part in last if part.startswith("pod"))

    async def remove(self, uid: PodUid) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.there = {n: limits for n, limits in self.there.items() if n[-1] != f"pod{uid}"}

    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None:
        await trio.lowlevel.checkpoint()
        if self.not_starved is not None:
            raise self.not_starved
        named = [name for name in self.there if name[-1] == f"pod{uid}"]
        self.there |= dict.fromkeys(named, limits)

    async def remove_empty(self, uid: PodUid) -> None:
        if uid in self.busy:
            raise CgroupBusyError(Path(f"pod{uid}"))
        await self.remove(uid)


@dataclass
class Events:
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        assert (involved.kind, involved.name) == ("Node", "node")
        self.seen.append((type_, reason, message))


class World:
    def __init__(
        self,
        policy: CgroupPolicy | None = None,
        version: int = 2,
        settled: frozenset[PodUid] = frozenset(),
        *,
        memory_qos: bool = False,
    ) -> None:
        self.tree, self.events, self.meter = FakeTree(), Events(), Meter()
        self.pods: AsyncValue[Mapping[PodUid, Pod]] = AsyncValue({})
        self.runtime = trio.Event()
        budget = {"cpu": 2 * NANO, "memory": 4096 * NANO, "pid": 900 * NANO}
        self.cgroups = NodeCgroups(
            policy or CgroupPolicy(budget, pids_limit=64),
            lambda _driver: self.tree,
            lambda: NodeSettings(
                *("node", "node"),
                cgroup_version=version,
                memory_qos=memory_qos,
                memory_reservation=memory_qos,
            ),
            self.events,
            self.pods,
            self.runtime.wait,
            settled,
            meter=self.meter,
        )

    def show(self, *pods: Pod) -> None:
        self.pods.value = {PodUid(pod.metadata.uid or ""): pod for pod in pods if pod.metadata}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.runtime.set()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.cgroups.run)
            await settle()
            yield
            nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.sleep(1)  # more than what it gathers, less than its period
    await wait_all_tasks_blocked()


def limited_pod(uid: str, cpu: str, memory: str) -> Pod:
    limits = {"cpu": cpu, "memory": memory}
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(
            containers=[
                Container(
                    name="main",
                    resources=ResourceRequirements(
                        requests={"cpu": "100m", "memory": "1"}, limits=limits
                    ),
                )
            ]
        ),
        status=PodStatus(phase="Running"),
    )


async def test_a_pods_cgroup_comes_after_those_it_is_in(autojump_clock: MockClock) -> None:
    world = World()
    await world.cgroups.ensure(make_pod("u1", "500m"))
    assert list(world.tree.there) == [KUBEPODS, BURSTABLE, BEST_EFFORT, (*BURSTABLE, "podu1")]
    unreserved = {"memory.min": "0", "memory.low": "0"}
    assert world.tree.there[KUBEPODS] == CgroupLimits(
        2048, memory=4096, pids=900, unified=unreserved
    )
    assert world.tree.there[*BURSTABLE, "podu1"] == CgroupLimits(512, pids=64)
    assert world.events.seen == [
        ("Normal", "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
    ]


async def test_classes_follow_the_pods_that_are_there(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        assert world.tree.there[BURSTABLE].cpu_shares == 2
        world.show(make_pod("u1", "1"), make_pod("u2", "1"), make_pod("over", "1", "Succeeded"))
        await settle()
        assert world.tree.there[BURSTABLE].cpu_shares == 2048
        world.show(make_pod("u2", "1"))
        await settle()
        assert world.tree.there[BURSTABLE].cpu_shares == 1024
        assert world.tree.there[BEST_EFFORT].cpu_shares == 2
        # Whoever else changed them: within a minute they are as they shall be.
        world.tree.there[BURSTABLE] = CgroupLimits(cpu_shares=7)
        await trio.sleep(61)
        assert world.tree.there[BURSTABLE].cpu_shares == 1024
    assert len(world.events.seen) == 1


async def test_memory_reserved_by_an_earlier_configuration_is_given_back_above_pods(
    autojump_clock: MockClock,
) -> None:
    pod = limited_pod("u1", "1", "4096")
    before, after = World(memory_qos=True), World()
    before.show(pod)
    async with before.running():
        await before.cgroups.ensure(pod)
        await settle()
    assert before.tree.there[KUBEPODS].unified["memory.min"] == "1"
    assert before.tree.there[BURSTABLE].unified["memory.low"] == "1"
    kept = before.tree.there[BURSTABLE]
    after.tree.there = before.tree.there
    after.show(pod)
    async with after.running():
        for name in (KUBEPODS, BURSTABLE):
            assert after.tree.there[name].unified == {"memory.min": "0", "memory.low": "0"}
        assert replace(after.tree.there[BURSTABLE], unified=kept.unified) == kept
        # Once: what an operator sets later stays.
        after.tree.there[KUBEPODS] = CgroupLimits(unified={"memory.min": "7"})
        await trio.sleep(200)
        assert after.tree.there[KUBEPODS].unified == {"memory.min": "7"}


async def test_figures_tell_how_much_memory_is_protected(autojump_clock: MockClock) -> None:
    world = World(memory_qos=True)

    def figures() -> list[float]:
        name = "kubelet_memory_qos_node_memory"
        return [v for end in ("min", "low") for _, v in world.meter.gauges(f"{name}_{end}_bytes")]

    async with world.running():
        assert figures() == [0, 0]
        world.show(limited_pod("u1", "1", "4096"), limited_pod("u2", "100m", "1"))
        await settle()
        assert figures() == [1, 1]
        world.show(limited_pod("u1", "1", "4096"))
        await settle()
        assert figures() == [0, 1]


async def test_cgroups_version_1_has_no_memory_reserved_to_give_back(
    autojump_clock: MockClock,
) -> None:
    world = World(version=1)
    async with world.running():
        assert not any(limits.unified for limits in world.tree.there.values())


async def test_a_pod_that_comes_costs_the_levels_above_it_no_write(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        world.tree.writes.clear()
        pod = make_pod("u1")
        await world.cgroups.ensure(pod)
        world.show(pod)
        await settle()
        assert world.tree.writes == [(*BEST_EFFORT, "podu1")]
        await trio.sleep(61)  # all of them, whoever else has changed them
        assert {KUBEPODS, BURSTABLE, BEST_EFFORT} < set(world.tree.writes)


async def test_nothing_is_made_before_the_runtime_has_told_its_driver(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.cgroups.run)
        await trio.sleep(200)
        assert world.tree.there == {}
        nursery.cancel_scope.cancel()


async def test_pods_of_an_earlier_life_are_limited_once_and_never_made(
    autojump_clock: MockClock,
) -> None:
    world = World()
    old = (*BURSTABLE, "podold")
    world.tree.there = {KUBEPODS: CgroupLimits(), BURSTABLE: CgroupLimits(), old: CgroupLimits()}
    world.show(make_pod("old", "1"), make_pod("gone", "1"))
    async with world.running():
        assert world.tree.there[old] == CgroupLimits(1024, pids=64)
        assert (*BURSTABLE, "podgone") not in world.tree.there
        await world.cgroups.remove(PodUid("old"))
        await settle()
        assert old not in world.tree.there


async def test_a_pod_whose_class_nobody_knows_any_more_is_left_as_it_is(
    autojump_clock: MockClock,
) -> None:
    # A pod without a record is known by its containers alone: its class can only be guessed.
    world = World()
    old = (*BURSTABLE, "podold")
    world.tree.there = {KUBEPODS: CgroupLimits(), BURSTABLE: CgroupLimits(), old: CgroupLimits()}
    world.show(make_pod("old"))
    with capture_logs() as logs:
        async with world.running():
            await trio.sleep(200)
    assert [entry["event"] for entry in logs] == []
    assert world.tree.there[old] == CgroupLimits()


async def test_the_take_over_writes_the_limits_of_pods_that_are_certain(
    autojump_clock: MockClock,
) -> None:
    # The containers of the other may have larger limits: its worker looks before it writes.
    world = World(settled=frozenset({PodUid("settled")}))
    before = CgroupLimits(2048, 400_000, 100_000, 1 << 30)
    names = {uid: (*BURSTABLE, f"pod{uid}") for uid in ("settled", "other")}
    world.tree.there = {KUBEPODS: CgroupLimits(), BURSTABLE: CgroupLimits()}
    world.tree.there |= dict.fromkeys(names.values(), before)
    world.show(limited_pod("settled", "1", "1Mi"), limited_pod("other", "1", "1Mi"))
    async with world.running():
        kept = replace(before, cpu_shares=102, pids=64)
        assert world.tree.there[names["other"]] == kept
        assert world.tree.there[names["settled"]] == CgroupLimits(
            102, 100_000, 100_000, 1 << 20, 64
        )


class SlowTree(FakeTree):
    """Takes a second before it answers or writes."""

    async def exists(self, path: str) -> bool:
        await trio.sleep(1)
        return await super().exists(path)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        await trio.sleep(1)
        return await super().limit(path, limits)


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5])
async def test_the_take_over_never_writes_over_what_the_pods_worker_has_written(
    after: float, autojump_clock: MockClock
) -> None:
    """A resize is granted and carried out before the take-over has reached the pod."""
    world = World()
    world.tree = SlowTree()
    old = (*BURSTABLE, "podold")
    world.tree.there = {KUBEPODS: CgroupLimits(), BURSTABLE: CgroupLimits(), old: CgroupLimits()}
    world.show(limited_pod("old", "1", "1Mi"))
    world.runtime.set()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.cgroups.run)
        await trio.sleep(after)
        await world.cgroups.ensure(limited_pod("old", "1", "2Mi"))
        await trio.sleep(10)
        assert world.tree.there[old].memory == 2 << 20
        nursery.cancel_scope.cancel()


async def test_a_pods_cgroup_is_read_and_limited_and_its_class_weighed_anew(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = make_pod("u1", "1")
    async with world.running():
        assert await world.cgroups.read(pod) is None
        await world.cgroups.ensure(pod)
        world.show(pod)
        await settle()
        assert world.tree.there[BURSTABLE].cpu_shares == 1024
        world.show(make_pod("u1", "2"))  # the same pods: no round by itself
        await world.cgroups.limit(pod, CgroupLimits(cpu_shares=2048, memory=UNLIMITED))
        await settle()
        assert world.tree.there[BURSTABLE].cpu_shares == 2048
        assert await world.cgroups.read(pod) == CgroupLimits(2048, memory=UNLIMITED, pids=64)
        world.tree.usage = 4096
        assert await world.cgroups.memory_usage(pod) == 4096
        path = "/kubepods/burstable/podu1"
        world.tree.refused[path] = f"cannot write '9' to {path}/memory.max: Device or resource busy"
        with pytest.raises(CgroupError, match=r"memory\.max: Device or resource busy"):
            await world.cgroups.limit(pod, CgroupLimits(memory=9))
        assert (await world.cgroups.read(pod)) == CgroupLimits(2048, memory=UNLIMITED, pids=64)


async def test_without_cgroups_of_pods_there_is_nothing_to_limit(
    autojump_clock: MockClock,
) -> None:
    world, pod = World(), make_pod("u1", "1")
    world.tree.error = CgroupsDeniedError("cannot make cgroup /c/kubepods: Read-only file system")
    plain = PlainCgroups(lambda _driver: world.tree, lambda: NodeSettings("node", "node"))
    await world.cgroups.ensure(pod)
    for cgroups in (world.cgroups, plain):
        await cgroups.limit(pod, CgroupLimits(memory=1))
        assert await cgroups.read(pod) is None
        assert await cgroups.memory_usage(pod) is None
    assert world.tree.there == {}


async def test_a_machine_that_lets_us_write_none_is_said_once(autojump_clock: MockClock) -> None:
    world = World()
    world.tree.error = CgroupsDeniedError("cannot make cgroup /c/kubepods: Read-only file system")
    with capture_logs() as logs:
        async with world.running():
            for uid in ("u1", "u2"):
                await world.cgroups.ensure(make_pod(uid, "1"))
                await world.cgroups.remove(PodUid(uid))  # a pod ends all the same
            await trio.sleep(200)
            assert await world.cgroups.list_pods() == frozenset()
    assert [entry["event"] for entry in logs] == ["cgroups.denied"]
    assert "Read-only file system" in logs[0]["error"]


async def test_what_was_said_at_the_start_is_not_said_again(autojump_clock: MockClock) -> None:
    denied = World(CgroupPolicy(is_denied=True))
    missing = World(CgroupPolicy(known_missing=frozenset({"pids"})))
    missing.tree.missing = frozenset({"pids", "cpu"})
    with capture_logs() as logs:
        async with denied.running():
            await denied.cgroups.ensure(make_pod("u1", "1"))
            await denied.cgroups.remove(PodUid("u1"))
        await missing.cgroups.ensure(make_pod("u1", "1"))
    assert denied.tree.there == {}  # not even tried
    assert await missing.cgroups.list_pods() == {"u1"}
    assert [entry["controllers"] for entry in logs] == [["cpu"]]


async def test_missing_controllers_are_said_once_and_cost_no_pod(autojump_clock: MockClock) -> None:
    world = World()
    world.tree.missing = frozenset({"pids", "hugetlb"})
    with capture_logs() as logs:
        for uid in ("u1", "u2"):
            await world.cgroups.ensure(make_pod(uid, "1"))
    assert [entry["controllers"] for entry in logs] == [["pids"]]
    assert await world.cgroups.list_pods() == {"u1", "u2"}


async def test_what_the_kernel_refuses_of_a_pod_is_the_pods_trouble() -> None:
    world = World()
    world.tree.refused[*BURSTABLE, "podu1"] = "cannot write '1' to x: Invalid argument"
    with pytest.raises(CgroupError, match="Invalid argument"):
        await world.cgroups.ensure(make_pod("u1", "1"))
    await world.cgroups.ensure(make_pod("u2", "1"))


async def test_the_nodes_budget_is_tried_until_it_holds(autojump_clock: MockClock) -> None:
    world = World()
    world.tree.refused[KUBEPODS] = "cannot write '4096' to memory.max: Device or resource busy"
    async with world.running():
        assert world.events.seen[0][:2] == ("Warning", "FailedNodeAllocatableEnforcement")
        assert world.events.seen[0][2].startswith(
            "Failed to update Node Allocatable Limits [\"kubepods\"]: cannot write '4096'"
        )
        world.tree.refused.clear()
        await trio.sleep(61)
        assert world.events.seen[-1][1] == "NodeAllocatableEnforced"


async def test_the_daemons_own_cgroups_are_held_to_what_is_reserved(
    autojump_clock: MockClock,
) -> None:
    system = ReservedCgroup("System Reserved", "/system", {"cpu": NANO, "memory": 512 * NANO})
    kube = ReservedCgroup("Kube Reserved Compressible", "/kube", {"cpu": NANO}, True)
    world = World(CgroupPolicy({"cpu": NANO}, reserved=(system, kube)))
    world.tree.reserved = {"/system"}
    async with world.running():
        assert world.tree.there["system",] == CgroupLimits(1024, memory=512)
        assert ("kube",) not in world.tree.there
        assert (
            "Warning",
            "FailedNodeAllocatableEnforcement",
            'Failed to enforce Kube Reserved Compressible Cgroup Limits on "/kube": '
            '"/kube" cgroup does not exist',
        ) in world.events.seen
        world.tree.reserved.add("/kube")
        await trio.sleep(61)
        assert world.tree.there["kube",] == CgroupLimits(1024)
    done = [message for _, reason, message in world.events.seen if "Enforced" in reason]
    assert done == [
        "Updated Node Allocatable limit across pods",
        "Updated limits on system reserved cgroup /system",
        "Updated limits on kube reserved cgroup /kube",
    ]


@pytest.mark.parametrize(("version", "unified"), [(2, {"memory.min": "512"}), (1, {})])
async def test_the_daemons_memory_is_protected_from_reclaim(
    version: int, unified: dict[str, str], autojump_clock: MockClock
) -> None:
    system = ReservedCgroup("System Reserved", "/system", {"cpu": NANO, "memory": 512 * NANO})
    policy = CgroupPolicy({"cpu": NANO}, reserved=(system,))
    world = World(policy, version, memory_qos=True)
    world.tree.reserved = {"/system"}
    async with world.running():
        assert world.tree.there["system",] == CgroupLimits(1024, memory=512, unified=unified)


async def test_a_class_that_uses_more_than_is_left_to_it_may_at_least_not_grow(
    autojump_clock: MockClock,
) -> None:
    world = World(CgroupPolicy(reserve_percent=100, allocatable_memory=1000))
    world.tree.refused[BEST_EFFORT] = "cannot write: Device or resource busy"
    world.tree.usage = 3000
    async with world.running():
        assert world.tree.there[BEST_EFFORT].memory == 3000


async def test_version_1_is_warned_of(autojump_clock: MockClock) -> None:
    world = World(version=1)
    async with world.running():
        assert world.events.seen[0][:2] == ("Warning", "CgroupV1")


async def test_what_goes_wrong_once_is_tried_again_and_ends_nothing(
    autojump_clock: MockClock,
) -> None:
    world = World()
    world.tree.error = CgroupError("systemd: kubepods.slice: no answer within 30 s")
    with capture_logs() as logs:
        async with world.running():
            await trio.sleep(130)
            assert world.tree.there == {}
            world.tree.error = None
            await trio.sleep(61)
            assert KUBEPODS in world.tree.there
    assert [entry["error"] for entry in logs] == ["systemd: kubepods.slice: no answer within 30 s"]


class Registry:
    """What is somebody's is not reclaimed."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted

    async def wait_complete(self) -> None:
        await trio.lowlevel.checkpoint()

    @contextlib.contextmanager
    def reclaiming(self, uid: PodUid) -> Iterator[bool]:
        yield uid not in self.wanted


async def test_empty_cgroups_of_nobodys_pods_go_and_others_are_named_once(
    autojump_clock: MockClock,
) -> None:
    world = World()
    for uid in ("wanted", "empty", "busy", "lost"):
        await world.cgroups.ensure(make_pod(uid, "1"))
    world.tree.busy = {PodUid("busy"), PodUid("lost")}
    before = dict(world.tree.there)

    async def pods_on_disk() -> frozenset[PodUid]:
        await trio.lowlevel.checkpoint()
        return frozenset((PodUid("wanted"), PodUid("lost")))

    orphans = OrphanCgroups(
        world.cgroups,
        Registry({"wanted"}),
        trio.lowlevel.checkpoint,
        pods_on_disk,
    )
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(orphans.run)
            await trio.sleep(200)
            nursery.cancel_scope.cancel()
    assert await world.cgroups.list_pods() == {"wanted", "busy", "lost"}
    # What another agent may run is let be; what was this one's gets the least there is.
    changed = {n[-1]: limits for n, limits in world.tree.there.items() if before[n] != limits}
    assert changed == {"podlost": CgroupLimits(cpu_shares=2)}
    said = [(entry["event"], entry["podUID"]) for entry in logs]
    assert said == [
        ("cgroups.orphan_stays", "busy"),
        ("cgroups.orphan_removed", "empty"),
        ("cgroups.orphan_stays", "lost"),
    ]


@pytest.mark.parametrize(
    ("disk", "tree"),
    [(OSError("the disk is gone"), None), (None, CgroupError("no such slice"))],
)
async def test_an_orphan_that_cannot_be_limited_is_logged_and_tried_again(
    disk: OSError | None, tree: CgroupError | None, autojump_clock: MockClock
) -> None:
    world = World()
    await world.cgroups.ensure(make_pod("lost", "1"))
    world.tree.busy = {PodUid("lost")}
    world.tree.not_starved = tree

    async def pods_on_disk() -> frozenset[PodUid]:
        await trio.lowlevel.checkpoint()
        if disk is not None and trio.current_time() < 60:
            raise disk
        return frozenset([PodUid("lost")])

    orphans = OrphanCgroups(
        world.cgroups,
        Registry(set()),
        trio.lowlevel.checkpoint,
        pods_on_disk,
    )
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(orphans.run)
            await trio.sleep(60)
            world.tree.not_starved = None
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
    assert world.tree.there[*BURSTABLE, "podlost"] == CgroupLimits(cpu_shares=2)
    assert [(entry["event"], entry["podUID"], entry["error"]) for entry in logs] == [
        ("cgroups.orphan_stays", "lost", "cgroup podlost still has processes in it"),
        ("cgroups.orphan_not_limited", "lost", str(disk or tree)),
        ("cgroups.orphan_not_limited", "lost", str(disk or tree)),
    ]


async def test_a_pod_waits_for_its_cgroup_and_takes_it_along(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, tree, pod = Node(tmp_path), FakeTree(), make_node_pod()
    node.cgroup_tree = lambda _driver: tree
    uid = pod_uid(pod)
    place = (*BEST_EFFORT, f"pod{uid}")
    tree.refused[place] = "cannot write '2' to cpu.shares: Invalid argument"
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert "FailedCreatePodContainer" in node.reasons(pod)
        assert node.calls("RunPodSandbox") == []
        tree.refused.clear()
        await trio.sleep(120)
        assert ready(node.status(pod))
        assert tree.there[place].cpu_shares == 2
    # Cancelled, not stopped: what runs keeps its cgroup, and the next agent finds it.
    assert place in tree.there
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert node.calls("RunPodSandbox") == ["RunPodSandbox"]
        assert place in tree.there
        node.feed.put()
        await agent.wait_pod_gone(pod)
        assert place not in tree.there
