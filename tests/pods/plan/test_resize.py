"""Resizes as they are planned: in place or by a restart, and in which order.

The node of these tests has a pod's cgroup and its containers' limits; an agent that is killed
after any of its steps is followed by one that knows only what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    Container,
    ContainerResizePolicy,
    Pod,
    PodStatus,
    ResourceRequirements,
)
from msgspec.structs import replace

from kubelet_trio.cgroups import UNLIMITED, CgroupLimits, shares_in
from kubelet_trio.containers import NodeSettings, effective_resources, pod_cgroup_limits, pod_qos
from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerState,
    PodContainer,
    RuntimePod,
    pod_containers,
)
from kubelet_trio.pods.plan import (
    LimitPod,
    PlanInput,
    PodPlan,
    ResizeContainer,
    ResizePod,
    Resource,
    UpdateContainer,
    amount_of,
    begin_resize,
    exceeds,
    order_changes,
    plan_pod,
)
from kubelet_trio.pods.plan.resize import RESOURCES, changed_resources, with_resource
from kubelet_trio.pods.types import PodResize
from tests.pods.make import (
    CREATED,
    EXITED,
    UNKNOWN,
    container,
    planned,
    pod,
    record,
    runtime,
    sandbox,
    sidecar,
)
from tests.pods.world import LIVE, World

MIB = 1 << 20
NODE = NodeSettings("node", "node")


def sized(
    cpu: str | None = None, memory: str | None = None, cpu_limit: str | None = None, **more: str
) -> ResourceRequirements:
    """Requests, and limits as far as they are named: memory's is `memory_limit`."""
    requests = {"cpu": cpu, "memory": memory}
    limits = {"cpu": cpu_limit, "memory": more.get("memory_limit")}
    return ResourceRequirements(
        requests={n: q for n, q in requests.items() if q} or None,
        limits={n: q for n, q in limits.items() if q} or None,
    )


def policy(**restart: str) -> list[ContainerResizePolicy]:
    return [ContainerResizePolicy(resourceName=n, restartPolicy=p) for n, p in restart.items()]


SMALL = sized("100m", "10Mi", "200m", memory_limit="20Mi")
LARGE = sized("200m", "20Mi", "400m", memory_limit="40Mi")


def in_progress(**actuated: ResourceRequirements) -> PodResize:
    """A resize; an instance `web` is the first of container web in the first sandbox."""
    return PodResize(actuated={ContainerId(f"{n}-s0-0"): r for n, r in actuated.items()})


# What is resized, and how


def test_a_running_container_is_updated_from_what_it_has() -> None:
    of = pod(container("web", resources=LARGE), container("log", resources=SMALL))
    made = planned(of, runtime(record("web"), record("log")), resize=in_progress(web=SMALL))
    assert made.stop_containers == ()
    assert made.start == ()
    assert made.resize is not None
    (one,) = made.resize.containers
    assert (one.id, one.container.spec.name, one.before) == ("web-s0-0", "web", SMALL)
    assert (one.after.limits, one.after.requests) == (LARGE.limits, LARGE.requests)
    assert not made.is_noop


def test_without_a_resize_in_progress_there_is_nothing_to_do() -> None:
    of = pod(container("web", resources=LARGE))
    assert planned(of, runtime(record("web"))).is_noop


def test_a_resize_of_containers_that_do_not_run_is_one_of_the_pods_cgroup() -> None:
    of = pod(container("web", resources=LARGE), container("job", "OnFailure", resources=LARGE))
    observed = runtime(record("web"), record("job", EXITED))
    made = planned(of, observed, resize=in_progress(job=SMALL))
    assert (made.resize, made.start) == (ResizePod(), ())


@pytest.mark.parametrize(
    ("of", "observed"),
    [
        (pod(container("web", resources=LARGE)), runtime(record("web", CREATED))),
        (pod(container("web", resources=LARGE)), runtime(record("web", UNKNOWN))),
        (pod(container("web", resources=LARGE)), runtime(record("web", EXITED))),
        (pod(container("web", resources=LARGE)), runtime(sandboxes=())),
        (pod(container("web", resources=LARGE)), runtime(record("web"), sandboxes=())),
        (
            pod(container("web", resources=LARGE)),
            runtime(record("web"), sandboxes=(sandbox(ready=False),)),
        ),
    ],
)
def test_a_container_that_starts_gets_what_is_allocated(of: Pod, observed: RuntimePod) -> None:
    made = planned(of, observed, resize=in_progress(web=SMALL))
    assert [s.container.spec.resources for s in made.start] == [LARGE]
    assert made.resize == ResizePod()


def test_an_unhealthy_container_is_restarted_for_that_and_not_resized() -> None:
    of = pod(container("web", resources=LARGE, resizePolicy=policy(cpu="RestartContainer")))
    why = {ContainerId("web-s0-0"): "failed liveness probe"}
    made = planned(of, runtime(record("web")), resize=in_progress(web=SMALL), unhealthy=why)
    (stop,) = made.stop_containers
    assert stop.message == "Container web failed liveness probe, will be restarted"
    assert not stop.starts_again
    assert made.resize == ResizePod()


MORE_CPU = sized("200m", "10Mi", "400m", memory_limit="20Mi")
MORE_CPU_REQUEST = sized("101m", "10Mi", "200m", memory_limit="20Mi")
MORE_MEMORY_REQUEST = sized("100m", "11Mi", "200m", memory_limit="20Mi")


@pytest.mark.parametrize(
    ("wanted", "restarts", "is_restarted"),
    [
        (LARGE, {}, False),
        (LARGE, {"cpu": "NotRequired", "memory": "NotRequired"}, False),
        (LARGE, {"cpu": "RestartContainer"}, True),
        (LARGE, {"memory": "RestartContainer"}, True),
        (MORE_CPU, {"memory": "RestartContainer"}, False),
        (MORE_CPU, {"cpu": "RestartContainer"}, True),
        (MORE_CPU_REQUEST, {"cpu": "RestartContainer"}, True),
        (MORE_MEMORY_REQUEST, {"memory": "RestartContainer"}, True),
        (MORE_MEMORY_REQUEST, {"cpu": "RestartContainer"}, False),
        # The same amounts, written in another way.
        (sized("0.1", "10240Ki", "0.2", memory_limit="20Mi"), {"cpu": "RestartContainer"}, False),
    ],
)
@pytest.mark.parametrize("kind", ["main", "sidecar"])
def test_a_container_restarts_if_its_policy_for_a_changed_resource_says_so(
    wanted: ResourceRequirements, restarts: dict[str, str], is_restarted: bool, kind: str
) -> None:
    make = sidecar if kind == "sidecar" else container
    one = make("one", resources=wanted, resizePolicy=policy(**restarts))
    of = pod(init=[one]) if kind == "sidecar" else pod(one, "web", policy="OnFailure")
    observed = runtime(record("one"), record("web"))
    made = planned(of, observed, resize=in_progress(one=SMALL))
    assert made.resize is not None
    if not is_restarted:
        assert made.stop_containers == ()
        return
    (stop,) = made.stop_containers
    assert stop.message == "Container one resize requires restart"
    assert (stop.grace_period, stop.starts_again) == (None, True)
    assert [(s.container.spec.name, s.attempt) for s in made.start] == [("one", 1)]
    assert made.resize == ResizePod()


@pytest.mark.parametrize("restarting", [True, False])
def test_a_container_that_was_stopped_for_a_resize_starts_whatever_its_policy_says(
    restarting: bool,
) -> None:
    of = pod(container("web", resources=LARGE), "log", policy="OnFailure")
    observed = runtime(record("web", EXITED, code=0), record("log"))
    ids = frozenset({ContainerId("web-s0-0")}) if restarting else frozenset()
    made = planned(of, observed, restarting=ids)
    assert [s.container.spec.name for s in made.start] == (["web"] if restarting else [])
    gone = runtime(record("web", EXITED, code=0), sandboxes=(sandbox(ready=False),))
    made = planned(of, gone, restarting=ids)
    assert ("web" in [s.container.spec.name for s in made.start]) is restarting


def test_an_init_container_is_resized_while_it_runs() -> None:
    of = pod(init=[container("first", resources=LARGE), container("second", resources=LARGE)])
    ran = record("first", EXITED, created=50.0)
    made = planned(
        of, runtime(ran, record("second")), resize=in_progress(first=SMALL, second=SMALL)
    )
    assert made.resize is not None
    assert [one.container.spec.name for one in made.resize.containers] == ["second"]


def test_a_resize_that_failed_waits_but_a_start_tries_it_again() -> None:
    of = pod(container("web", resources=LARGE), container("log", resources=LARGE))
    given: dict[str, Any] = {"resize": in_progress(web=SMALL), "resize_is_held": True}
    assert planned(of, runtime(record("web"), record("log")), **given).is_noop
    made = planned(of, runtime(record("web"), record("log", EXITED)), **given)
    assert made.resize is not None
    assert [one.container.spec.name for one in made.resize.containers] == ["web"]


# The order of the changes


def change(name: str, before: ResourceRequirements, after: ResourceRequirements) -> ResizeContainer:
    one = PodContainer(ContainerKind.MAIN, container(name))
    return ResizeContainer(ContainerId(name), one, before, after)


def listed(operations: list[LimitPod | UpdateContainer]) -> list[str]:
    found = []
    for op in operations:
        if isinstance(op, UpdateContainer):
            amount = amount_of(op.then, op.resource)
            found.append(f"{op.instance.id} {op.resource} {amount.limit}/{amount.request}")
            continue
        limits = op.limits
        assert op.resource == ("memory" if limits.memory is not None else "cpu")
        if limits.memory is not None:
            found.append(f"pod memory {limits.memory}")
        elif limits.cpu_shares is not None:
            found.append(f"pod shares {limits.cpu_shares}")
        else:
            found.append(f"pod cpu {limits.cpu_quota}/{limits.cpu_period}")
    return found


def of_cpu(limit: str, request: str = "100m") -> ResourceRequirements:
    return sized(request, cpu_limit=limit)


@pytest.mark.parametrize(
    ("now", "wanted", "containers", "expected"),
    [
        pytest.param(
            CgroupLimits(102, 20_000, 100_000, 20 * MIB),
            CgroupLimits(204, 40_000, 100_000, 40 * MIB),
            [change("a", SMALL, LARGE)],
            [
                f"pod memory {40 * MIB}",
                f"a memory {40 * MIB}/{20 * MIB}",
                "pod cpu 40000/100000",
                "pod shares 204",
                "a cpu 400/200",
            ],
            id="increase",
        ),
        pytest.param(
            CgroupLimits(204, 40_000, 100_000, 40 * MIB),
            CgroupLimits(102, 20_000, 100_000, 20 * MIB),
            [change("a", LARGE, SMALL)],
            [
                f"a memory {20 * MIB}/{10 * MIB}",
                f"pod memory {20 * MIB}",
                "a cpu 200/100",
                "pod shares 102",
                "pod cpu 20000/100000",
            ],
            id="decrease",
        ),
        pytest.param(
            CgroupLimits(204, 100_000, 100_000),
            CgroupLimits(204, 100_000, 100_000),
            [
                change("up", of_cpu("200m"), of_cpu("500m")),
                change("down", of_cpu("800m"), of_cpu("500m")),
                change("capped", of_cpu(""), of_cpu("500m")),
                change("freed", of_cpu("500m"), of_cpu("")),
                change("request", of_cpu("500m", "200m"), of_cpu("500m", "100m")),
            ],
            [
                "down cpu 500/100",
                "capped cpu 500/100",
                "request cpu 500/100",
                "up cpu 500/100",
                "freed cpu 0/100",
            ],
            id="decreases before increases",
        ),
        pytest.param(
            CgroupLimits(204, UNLIMITED, 100_000, UNLIMITED),
            CgroupLimits(204, 100_000, 100_000, MIB),
            [change("a", of_cpu(""), of_cpu("1"))],
            [f"pod memory {MIB}", "a cpu 1000/100", "pod cpu 100000/100000"],
            id="a limit of the pod after those of its containers, where there was none",
        ),
        pytest.param(
            CgroupLimits(204, 100_000, 100_000, MIB),
            CgroupLimits(204),
            [change("a", of_cpu("1"), of_cpu(""))],
            ["pod memory -1", "pod cpu -1/100000", "a cpu 0/100"],
            id="no limit of the pod before those of its containers go",
        ),
        pytest.param(
            None,
            CgroupLimits(204, 100_000, 100_000, MIB),
            [change("a", SMALL, LARGE)],
            [f"a memory {40 * MIB}/{20 * MIB}", "a cpu 400/200"],
            id="no cgroup of the pod",
        ),
        pytest.param(
            CgroupLimits(memory=MIB),
            CgroupLimits(204, 100_000, 100_000, MIB),
            [],
            [],
            id="no cpu controller",
        ),
        pytest.param(
            CgroupLimits(102, 25_000, 50_000),
            CgroupLimits(102, 50_000, 100_000),
            [],
            [],
            id="the same share of another period",
        ),
    ],
)
def test_changes_have_an_order(
    now: CgroupLimits | None,
    wanted: CgroupLimits,
    containers: list[ResizeContainer],
    expected: list[str],
) -> None:
    assert listed(order_changes(now, wanted, containers, 1)) == expected


def test_shares_are_compared_in_the_unit_of_the_cgroup() -> None:
    now, wanted = CgroupLimits(cpu_shares=81), CgroupLimits(cpu_shares=102)  # 100m, read back
    assert order_changes(now, wanted, [], 2) == []
    assert listed(order_changes(now, wanted, [], 1)) == ["pod shares 102"]


def test_reserved_memory_of_the_pod_is_written_before_that_of_its_containers() -> None:
    wanted = CgroupLimits(memory=MIB, unified={"memory.min": "0", "memory.low": "4096"})
    first, second = order_changes(
        CgroupLimits(memory=MIB), wanted, [change("a", sized(memory="1Mi"), sized(memory="2Mi"))], 2
    )
    assert first == LimitPod("memory", CgroupLimits(unified=wanted.unified), grows=True)
    assert isinstance(second, UpdateContainer)


@pytest.mark.parametrize(
    ("resources", "limits", "expected"),
    [
        (SMALL, CgroupLimits(cpu_quota=20_000, cpu_period=100_000, memory=20 * MIB), False),
        (SMALL, CgroupLimits(cpu_quota=19_000, cpu_period=100_000, memory=20 * MIB), True),
        (SMALL, CgroupLimits(cpu_quota=20_000, cpu_period=100_000, memory=19 * MIB), True),
        (SMALL, CgroupLimits(), False),
        (SMALL, CgroupLimits(cpu_quota=UNLIMITED, cpu_period=100_000, memory=UNLIMITED), False),
        (sized("1m", cpu_limit="333m"), CgroupLimits(cpu_quota=33_300, cpu_period=100_000), False),
        (sized("1m", cpu_limit="1m"), CgroupLimits(cpu_quota=1_000, cpu_period=100_000), False),
        (sized("1m"), CgroupLimits(memory=MIB), False),
    ],
)
def test_a_container_exceeds_its_pod(
    resources: ResourceRequirements, limits: CgroupLimits, expected: bool
) -> None:
    assert exceeds(resources, limits) is expected


# Any resize, on a node whose agent may be killed


@dataclass
class ResizeWorld(World):
    """A pod whose resources change. What is recorded outlives the agent, and nothing else."""

    version: int = 2
    exit_code: int = 0  # of a container that is stopped
    has: dict[ContainerId, ResourceRequirements] = field(default_factory=dict)
    limits: CgroupLimits = field(default_factory=CgroupLimits)
    resize: PodResize | None = None  # recorded
    restarting: frozenset[ContainerId] = frozenset()  # recorded

    def come_up(self) -> None:
        self.limits = self.wanted()
        self.settle()
        self.note_starts()

    def wanted(self) -> CgroupLimits:
        """What the kernel has once the pod's limits are written; unwritten ones are none."""
        made = pod_cgroup_limits(self.pod, NODE)
        return CgroupLimits(
            made.cpu_shares,
            made.cpu_quota if made.cpu_quota is not None else UNLIMITED,
            100_000,
            made.memory if made.memory is not None else UNLIMITED,
        )

    def note_starts(self) -> None:
        specs = {c.spec.name: c.spec for c in pod_containers(self.pod)}
        for one in self.containers:
            self.has.setdefault(one.id, effective_resources(self.pod, specs[one.name]))

    def grant(self, after: Pod) -> None:
        """Allocate other resources, as the worker records it."""
        self.resize = begin_resize(self.pod, after, self.observed(), self.resize)
        self.pod = replace(after, status=self.pod.status)

    def next_plan(self) -> PodPlan:
        given = PlanInput(
            now=self.now, crash=self.crash, resize=self.resize, restarting=self.restarting
        )
        return plan_pod(self.pod, self.observed(), given)

    def steps(self, plan: PodPlan) -> Iterator[None]:
        """Carry out a plan; the agent may be killed at each yield."""
        self.restarting |= {s.id for s in plan.stop_containers if s.starts_again}
        yield
        for stop in plan.stop_containers:
            self.end(stop.id, self.exit_code)
            yield
        gone = set(plan.remove_containers)
        self.containers = [c for c in self.containers if c.id not in gone]
        if plan.resize is not None:
            wanted = pod_cgroup_limits(self.pod, NODE)
            for op in order_changes(self.limits, wanted, plan.resize.containers, self.version):
                self.apply(op)
                yield
                self.record(op)
                yield
        for start in plan.start:
            assert plan.sandbox_id is not None
            self.start(start, plan.sandbox_id)
            self.note_starts()
            yield
        if plan.resize is not None:
            self.resize = None
        yield

    def apply(self, op: LimitPod | UpdateContainer) -> None:
        if isinstance(op, UpdateContainer):
            live = next(c for c in self.containers if c.id == op.instance.id)
            assert live.state is ContainerState.RUNNING
            assert changed_resources(op.now, op.then) == (op.resource,)
            has = self.has[op.instance.id]
            self.has[op.instance.id] = with_resource(has, op.then, op.resource)
            return
        made = op.limits
        before = self.limits
        self.limits = CgroupLimits(
            made.cpu_shares if made.cpu_shares is not None else before.cpu_shares,
            made.cpu_quota if made.cpu_quota is not None else before.cpu_quota,
            made.cpu_period if made.cpu_period is not None else before.cpu_period,
            made.memory if made.memory is not None else before.memory,
        )
        assert self.limits != before
        held = self.limits.memory if op.resource == "memory" else self.limits.cpu_quota
        was = before.memory if op.resource == "memory" else before.cpu_quota
        if was == UNLIMITED != held:
            self.check_unlimited(op.resource)

    def record(self, op: LimitPod | UpdateContainer) -> None:
        assert self.resize is not None
        if isinstance(op, UpdateContainer):
            actuated = {**self.resize.actuated, op.instance.id: op.then}
            self.resize = replace(self.resize, actuated=actuated)

    def check_limits(self) -> None:
        """No container has a higher limit than its pod."""
        for one in self.containers:
            if one.state in LIVE:
                assert not exceeds(self.has[one.id], self.limits), (one.id, self.has[one.id])

    def check_unlimited(self, resource: Resource) -> None:
        """No container that is to get a limit is still without one."""
        specs = {c.spec.name: c.spec for c in pod_containers(self.pod)}
        for one in self.containers:
            gets = amount_of(effective_resources(self.pod, specs[one.name]), resource)
            has = amount_of(self.has[one.id], resource)
            assert one.state not in LIVE or has.limit or not gets.limit, one.id

    def run(self, kill_after: int | None = None) -> None:
        """Run an agent until it has nothing to do, or until it is killed after some steps."""
        left = 10**6 if kill_after is None else kill_after
        for _ in range(20):
            plan = self.next_plan()
            self.check(plan)
            if plan.is_noop and plan.retry_at is None:
                return
            self.now = max(self.now, plan.retry_at or 0.0)
            for _ in self.steps(plan):
                self.check_limits()
                left -= 1
                if left < 0:
                    return
            self.now += 0.1
        raise AssertionError("the resize never ends")


@dataclass(frozen=True)
class Shape:
    """A pod without its resources."""

    mains: int
    inits: tuple[bool, ...]  # sidecars, or not
    policies: tuple[Mapping[str, str], ...]  # resize policies, by container
    restart: str
    has_level: bool


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    mains = draw(st.integers(1, 4))
    inits = tuple(draw(st.lists(st.booleans(), max_size=2)))
    one = st.fixed_dictionaries(
        {},
        optional={str(r): st.sampled_from(["NotRequired", "RestartContainer"]) for r in RESOURCES},
    )
    policies: tuple[Mapping[str, str], ...] = tuple(draw(one) for _ in range(mains + len(inits)))
    restart = draw(st.sampled_from(["Always", "OnFailure"]))
    return Shape(mains, inits, policies, restart, draw(st.booleans()))


# By resource: the request, and what the limit is above it (None: no limit), in milli or MiB.
amounts = st.tuples(st.integers(1, 4), st.none() | st.integers(0, 4))
sizes = st.lists(st.fixed_dictionaries({"cpu": amounts, "memory": amounts}), min_size=6, max_size=6)
Sizes = list[dict[str, tuple[int, int | None]]]
_UNIT = {"cpu": "00m", "memory": "Mi"}


def make(shape: Shape, size: Sizes) -> Pod:
    """Return a pod of that shape, each container of the size of its turn."""

    def resources(index: int) -> ResourceRequirements:
        requests, limits = {}, {}
        for name, (request, above) in size[index].items():
            requests[name] = f"{request}{_UNIT[name]}"
            if above is not None:
                limits[name] = f"{request + above}{_UNIT[name]}"
        return ResourceRequirements(requests=requests, limits=limits or None)

    def one(index: int, name: str, is_sidecar: bool = False) -> Container:
        build = sidecar if is_sidecar else container
        # An ordinary init container cannot restart for a resize, says the API.
        restarts = shape.policies[index] if is_sidecar or name.startswith("m") else {}
        return build(name, resources=resources(index), resizePolicy=policy(**restarts) or None)

    mains = [one(i, f"m{i}") for i in range(shape.mains)]
    inits = [one(shape.mains + i, f"i{i}", kind) for i, kind in enumerate(shape.inits)]
    level = None
    if shape.has_level:
        # At least what any container has: more than eight units it cannot be.
        first = size[5]
        level = ResourceRequirements(
            requests={n: f"{30 + first[n][0]}{_UNIT[n]}" for n in RESOURCES},
            limits={n: f"{40 + (first[n][1] or 0)}{_UNIT[n]}" for n in RESOURCES},
        )
    return pod(*mains, init=inits, policy=shape.restart, resources=level, status=PodStatus())


def brought_up(of: Pod, finish_inits: bool, **more: Any) -> ResizeWorld:
    world = ResizeWorld(of, **more)
    world.come_up()
    while finish_inits:
        ordinary = {c.spec.name for c in pod_containers(of) if not c.is_sidecar}
        running = [c for c in world.containers if c.name.startswith("i") and c.name in ordinary]
        if not any(c.state in LIVE for c in running):
            break
        for one in running:
            world.end(one.id, 0)
        world.come_up()
    return world


@settings(deadline=None, max_examples=150)
@given(
    shape=shapes(),
    start=sizes,
    targets=st.lists(st.tuples(sizes, st.none() | st.integers(0, 40)), min_size=1, max_size=3),
    finish_inits=st.booleans(),
    version=st.sampled_from([1, 2]),
    exit_code=st.sampled_from([0, 143]),
)
def test_any_resize_ends_in_its_target_and_no_container_is_ever_above_its_pod(
    shape: Shape,
    start: Sizes,
    targets: list[tuple[Sizes, int | None]],
    finish_inits: bool,
    version: int,
    exit_code: int,
) -> None:
    world = brought_up(make(shape, start), finish_inits, version=version, exit_code=exit_code)
    world.check_limits()
    for target, kill_after in targets:
        after = make(shape, target)
        assume(pod_qos(after) == pod_qos(world.pod))
        before = {c.name: c for c in world.observed().running()}
        expected = {
            name: one.attempt + restarts(world, after, name)
            for name, one in before.items()
            if kill_after is None
        }
        world.grant(after)
        world.run(kill_after)
        if kill_after is None:
            counts = {c.name: c.attempt for c in world.observed().running()}
            assert {name: counts[name] for name in expected} == expected
    world.run()
    assert world.next_plan().is_noop
    assert world.resize is None
    for one in world.containers:
        if one.state in LIVE:
            named = next(c.spec for c in pod_containers(world.pod) if c.spec.name == one.name)
            assert not changed_resources(world.has[one.id], effective_resources(world.pod, named))
    wanted = world.wanted()
    assert (world.limits.cpu_quota, world.limits.memory) == (wanted.cpu_quota, wanted.memory)
    assert shares_in(world.limits.cpu_shares or 0, version) == shares_in(
        wanted.cpu_shares or 0, version
    )


def restarts(world: ResizeWorld, after: Pod, name: str) -> int:
    """Return 1 if a running container has to restart for its new resources."""
    latest = world.observed().latest(name)
    assert latest is not None
    named = next(c.spec for c in pod_containers(after) if c.spec.name == name)
    changed = changed_resources(world.has[latest.id], effective_resources(after, named))
    policies = {p.resourceName: p.restartPolicy for p in named.resizePolicy or ()}
    return int(any(policies.get(resource) == "RestartContainer" for resource in changed))


@settings(deadline=None, max_examples=150)
@given(
    shape=shapes(),
    start=sizes,
    target=sizes,
    kills=st.lists(st.integers(0, 30), max_size=4),
    exit_code=st.sampled_from([0, 143]),
)
@example(  # stopped for the resize, with success, and the agent killed before the start
    shape=Shape(1, (), ({"cpu": "RestartContainer"},), "OnFailure", False),
    start=[{"cpu": (1, 1), "memory": (1, 1)}] * 6,
    target=[{"cpu": (2, 1), "memory": (1, 1)}] * 6,
    kills=[1],
    exit_code=0,
)
def test_a_killed_agent_loses_no_restart_and_repeats_none(
    shape: Shape, start: Sizes, target: Sizes, kills: list[int], exit_code: int
) -> None:
    world = brought_up(make(shape, start), True, exit_code=exit_code)
    after = make(shape, target)
    assume(pod_qos(after) == pod_qos(world.pod))
    expected = {
        one.name: one.attempt + restarts(world, after, one.name)
        for one in world.observed().running()
    }
    world.grant(after)
    for kill_after in kills:
        world.run(kill_after)
    world.run()
    assert {c.name: c.attempt for c in world.observed().running()} == expected
