"""What of a pod's resources is desired, allocated and actuated, over restarts of the agent."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lightkube.models.core_v1 import (
    ContainerResizePolicy,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    ResourceRequirements,
)

from kubelet_trio.containers import (
    differs,
    effective_resources,
    pod_requests,
    same_resources,
    with_allocated,
    with_larger,
)
from kubelet_trio.containers.resources.container import container_resources
from kubelet_trio.model import ContainerId, RuntimePod, pod_containers, spec
from kubelet_trio.pods.records.record import PodRecord
from kubelet_trio.pods.types import PendingResize, PodResize
from kubelet_trio.pods.worker.allocation import PodAllocation
from tests.containers.make import NODE
from tests.containers.resources.test_update import had_of
from tests.pods.make import EXITED, UID, container, pod, record, runtime

RUNS = runtime(record("web"), record("log"))


def resources(cpu: str | None, memory: str | None = None) -> ResourceRequirements:
    amounts = {n: q for n, q in (("cpu", cpu), ("memory", memory)) if q is not None}
    return ResourceRequirements(requests=amounts or None, limits=amounts or None)


def sized(web: str, log: str = "100m", **more: Any) -> Pod:
    return pod(
        container("web", resources=resources(web)),
        container("log", resources=resources(log)),
        **more,
    )


def known(body: Pod, **more: Any) -> PodRecord:
    return PodRecord(UID, body, 0.0, admitted=True, allocates=True, **more)


def accepted(desired: Pod, allocated: Pod, observed: RuntimePod = RUNS) -> PodAllocation:
    allocation = PodAllocation(desired, known(allocated))
    allocation.grant()
    allocation.begin(*allocation.accepted(observed))
    return allocation


def test_a_pod_that_is_not_admitted_has_what_it_asks_for() -> None:
    allocation = PodAllocation(sized("1"), None)
    allocation.update(sized("2"), is_admitted=False, now=1.0)
    assert allocation.allocated == sized("2")
    assert allocation.asked is None


def test_an_admitted_pod_keeps_what_it_has_until_a_grant_is_recorded() -> None:
    allocation = PodAllocation(sized("1"), known(sized("1")))
    allocation.update(sized("2", generation=2), is_admitted=True, now=5.0)
    assert allocation.asked is allocation.desired
    assert allocation.pending_since == 5.0
    allocation.grant()
    assert allocation.asked is None
    assert not differs(allocation.allocated, sized("1"))
    assert not differs(allocation.counted, sized("2"))
    after, resize = allocation.accepted(RUNS)
    assert resize.generation == 2
    assert resize.actuated == {record("web").id: resources("1")}
    allocation.begin(after, resize)
    assert allocation.allocated == sized("2", generation=2)
    assert allocation.granted is None


def test_what_is_asked_is_undecided_until_it_is_granted_or_refused() -> None:
    allocation = PodAllocation(sized("1"), known(sized("1")))
    assert not allocation.is_undecided
    allocation.update(sized("2", generation=2), is_admitted=True, now=5.0)
    assert allocation.is_undecided
    allocation.refuse(PendingResize("Deferred", "no", 2))
    assert not allocation.is_undecided
    allocation.grant()
    assert not allocation.is_undecided
    allocation.begin(*allocation.accepted(RUNS))
    assert not allocation.is_undecided


def test_a_grant_is_shown_as_in_progress_before_it_is_recorded() -> None:
    allocation = PodAllocation(sized("1"), known(sized("1")))
    assert allocation.shown is None
    allocation.update(sized("2", generation=2), is_admitted=True, now=5.0)
    allocation.grant()
    assert allocation.shown == PodResize(generation=2)
    allocation.begin(*allocation.accepted(RUNS))
    assert allocation.shown is allocation.resize


def test_what_a_decrease_frees_is_counted_until_it_is_actuated() -> None:
    allocation = accepted(sized("1"), sized("2"))
    assert not differs(allocation.counted, sized("2"))
    allocation.finish()
    assert not differs(allocation.counted, sized("1"))


def test_a_request_that_is_taken_back_is_not_pending() -> None:
    allocation = PodAllocation(sized("1"), known(sized("1")))
    allocation.update(sized("9"), is_admitted=True, now=1.0)
    assert allocation.refuse(PendingResize("Deferred", "no")) is None
    allocation.update(sized("1000m"), is_admitted=True, now=2.0)
    assert allocation.pending is None
    assert allocation.asked is None


def test_a_second_resize_keeps_what_the_first_left_undone() -> None:
    allocation = accepted(sized("2"), sized("1"))
    allocation.update(sized("3", "200m"), is_admitted=True, now=1.0)
    allocation.grant()
    _, resize = allocation.accepted(RUNS)
    assert resize.actuated == {
        record("web").id: resources("1"),
        record("log").id: resources("100m"),
    }


def test_a_resize_that_goes_back_is_undone_as_its_update_may_have_taken_effect() -> None:
    allocation = accepted(sized("2"), sized("1"))
    allocation.update(sized("1"), is_admitted=True, now=1.0)
    allocation.grant()
    assert allocation.accepted(RUNS)[1].actuated == {record("web").id: resources("2")}


def test_a_resize_that_goes_back_leaves_a_container_alone_that_would_have_restarted() -> None:
    restarts = [ContainerResizePolicy(resourceName="cpu", restartPolicy="RestartContainer")]
    before, after = sized("1"), sized("2")
    for of in (before, after):
        spec(of).containers[0].resizePolicy = restarts
    allocation = accepted(after, before)
    allocation.update(before, is_admitted=True, now=1.0)
    allocation.grant()
    assert allocation.accepted(RUNS)[1].actuated == {}


def test_only_instances_that_may_run_are_resized() -> None:
    observed = runtime(record("web", attempt=1), record("web", EXITED), record("log"))
    _, resize = _granted(sized("2"), sized("1")).accepted(observed)
    assert resize.actuated == {record("web", attempt=1).id: resources("1")}


def test_a_limit_of_the_pod_counts_for_containers_without_one() -> None:
    def level(memory: str) -> Pod:
        return pod("web", resources=resources(None, memory))

    after, resize = _granted(level("2Gi"), level("1Gi")).accepted(RUNS)
    assert resize.pod_level == resources(None, "1Gi")
    assert resize.actuated == {
        record("web").id: ResourceRequirements(limits={"memory": "1Gi"}),
    }
    assert spec(after).resources == resources(None, "2Gi")


def test_a_restarted_agent_goes_on() -> None:
    allocation = accepted(sized("1"), sized("2"))
    assert allocation.resize is not None
    left = known(_shown(allocation.allocated, "2"), resize=allocation.resize)
    again = PodAllocation(sized("1"), left)
    assert again.resize == allocation.resize
    assert not differs(again.counted, sized("2"))


def test_a_restarted_agent_keeps_a_resize_pending() -> None:
    why = PodCondition(
        type="PodResizePending",
        status="True",
        reason="Deferred",
        message="full",
        observedGeneration=4,
    )
    before = known(_shown(sized("1"), "1", why))
    assert PodAllocation(sized("2"), before).pending == PendingResize("Deferred", "full", 4)
    assert PodAllocation(sized("1"), before).pending is None


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="no record"),
        pytest.param(PodRecord(UID, sized("2"), 0.0, admitted=True), id="an earlier version's"),
    ],
)
def test_without_a_word_on_what_is_allocated_it_is_what_the_containers_have(
    before: PodRecord | None,
) -> None:
    # An earlier version recorded what was desired, and changed no container.
    allocation = PodAllocation(sized("2"), before)
    assert not allocation.is_recorded
    assert allocation.adopt(running(sized("1")), NODE)
    assert not differs(allocation.allocated, sized("1"))
    assert allocation.asked is allocation.desired
    assert allocation.is_recorded


def test_a_pod_without_a_record_asks_for_nothing_if_its_containers_have_it() -> None:
    for observed in (running(sized("2")), RUNS, runtime()):  # RUNS: the runtime does not say
        allocation = PodAllocation(sized("2"), None)
        assert not allocation.adopt(observed, NODE)
        assert allocation.allocated is allocation.desired


def test_what_an_ended_instance_had_says_nothing() -> None:
    had = running(sized("1"))
    observed = runtime(*(dataclasses.replace(c, state=EXITED) for c in had.containers))
    assert not PodAllocation(sized("2"), None).adopt(observed, NODE)


def test_a_go_kubelet_that_refused_a_resize_has_not_allocated_it() -> None:
    pending = PodCondition(type="PodResizePending", status="True", reason="Deferred")
    allocation = PodAllocation(_shown(sized("2"), "1", pending), None)
    assert not differs(allocation.allocated, sized("1"))
    assert allocation.adopt(running(sized("1")), NODE)
    assert not differs(allocation.allocated, sized("1"))
    assert PodAllocation(_shown(sized("2"), "1"), None).asked is None


def test_a_go_kubelet_that_was_about_to_resize_has_it_done_by_this_agent() -> None:
    doing = PodCondition(type="PodResizeInProgress", status="True")
    allocation = PodAllocation(_shown(sized("2"), "2", doing), None)
    assert allocation.asked is None
    assert allocation.adopt(running(sized("1")), NODE)


def running(body: Pod) -> RuntimePod:
    """Return a pod whose containers run with its resources, as the runtime tells."""
    made = {c.spec.name: had_of(container_resources(body, c, NODE)) for c in pod_containers(body)}
    return runtime(*(record(name, resources=has) for name, has in made.items()))


def _granted(desired: Pod, allocated: Pod) -> PodAllocation:
    allocation = PodAllocation(desired, known(allocated))
    allocation.grant()
    return allocation


def _shown(body: Pod, web: str, *conditions: PodCondition) -> Pod:
    """Return a pod whose status shows this CPU of its container `web`."""
    shown = [
        ContainerStatus(
            name=instance.name,
            image="",
            imageID="",
            ready=True,
            restartCount=0,
            containerID=f"containerd://{instance.id}",
            state=ContainerState(running=ContainerStateRunning()),
            resources=resources(web if instance.name == "web" else "100m"),
            allocatedResources=resources(web if instance.name == "web" else "100m").requests,
        )
        for instance in RUNS.containers
    ]
    status = PodStatus(containerStatuses=shown, conditions=list(conditions))
    return msgspec.structs.replace(body, status=status)


SIZES = st.sampled_from(["100m", "1", "2", "3"])


class Resizes(RuleBasedStateMachine):
    """One pod of two containers, a disk, and an agent that is killed at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.desired = sized("1")
        self.disk = known(self.desired)
        self.has = {i.id: effective(self.desired, i.name) for i in RUNS.containers}
        self.allocation = PodAllocation(self.desired, self.disk)

    @rule(web=SIZES, log=SIZES)
    def edit(self, web: str, log: str) -> None:
        self.desired = sized(web, log)
        self.allocation.update(self.desired, is_admitted=True, now=0.0)

    @precondition(lambda self: self.allocation.asked is not None)
    @rule(fits=st.booleans())
    def decide(self, fits: bool) -> None:
        if fits:
            self.allocation.grant()
        else:
            self.allocation.refuse(PendingResize("Deferred", "full"))

    @precondition(lambda self: self.allocation.granted is not None)
    @rule(edited=st.none() | SIZES)
    def record_grant(self, edited: str | None) -> None:
        after, resize = self.allocation.accepted(RUNS)
        if edited is not None:  # while the record is being written
            self.edit(edited, edited)
        self.disk = known(after, resize=resize)
        self.allocation.begin(after, resize)

    @precondition(lambda self: self.allocation.resize is not None)
    @rule(instance=st.sampled_from(RUNS.containers), recorded=st.booleans())
    def actuate(self, instance: Any, recorded: bool) -> None:
        now = effective(self.allocation.allocated, instance.name)
        self.has[instance.id] = now
        self.allocation.actuated(instance.id, now)
        resize = self.allocation.resize
        assert resize is not None
        if recorded:
            self.disk = msgspec.structs.replace(self.disk, resize=resize)
        if all(self.is_done(i.id, i.name) for i in RUNS.containers):
            self.allocation.finish()
            self.disk = msgspec.structs.replace(self.disk, resize=None)

    @rule()
    def restart(self) -> None:
        self.allocation = PodAllocation(self.desired, self.disk)

    def is_done(self, instance: ContainerId, name: str) -> bool:
        return same_resources(self.has[instance], effective(self.allocation.allocated, name))

    @invariant()
    def what_is_not_actuated_is_known(self) -> None:
        resize = self.allocation.resize
        for instance in RUNS.containers:
            if not self.is_done(instance.id, instance.name):
                assert resize is not None
                assert instance.id in resize.actuated

    @invariant()
    def the_disk_has_what_rounds_use(self) -> None:
        assert not differs(self.allocation.allocated, self.disk.pod)

    @invariant()
    def admission_counts_what_is_allocated(self) -> None:
        counted = pod_requests(self.allocation.counted)
        assert counted == pod_requests(with_larger(self.allocation.counted, self.disk.pod))
        if self.allocation.asked is None and self.allocation.granted is None:
            assert not differs(with_allocated(self.desired, self.disk.pod), self.desired)


def effective(body: Pod, name: str) -> ResourceRequirements:
    return next(effective_resources(body, c) for c in spec(body).containers if c.name == name)


TestResizes = Resizes.TestCase
