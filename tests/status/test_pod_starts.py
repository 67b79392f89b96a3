"""What counts as a pod's start, and that a node's first pod with a network is shown apart."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
import trio
from lightkube.models.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    ProjectedVolumeSource,
    SecretVolumeSource,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import Meter, PodUid, pod_uid
from kubelet_trio.status.pod_starts import PodStarts
from kubelet_trio.testing import TrioClock

_FIRST = "kubelet_first_network_pod_start_sli_duration_seconds"
_SLI = "kubelet_pod_start_sli_duration_seconds"
_TOTAL = "kubelet_pod_start_total_duration_seconds"


def created(
    uid: str, clock: TrioClock, *, host_network: bool = False, volumes: Sequence[Volume] = ()
) -> Pod:
    now = datetime.datetime.fromtimestamp(clock.time(), datetime.UTC)
    return Pod(
        metadata=ObjectMeta(
            name=uid,
            namespace="prod",
            uid=uid,
            creationTimestamp=now,
            annotations={"kubernetes.io/config.source": "api"},
        ),
        spec=PodSpec(
            containers=[Container(name="c")], hostNetwork=host_network, volumes=list(volumes)
        ),
    )


async def start(
    starts: PodStarts, pod: Pod, seconds: float, state: ContainerState | None = None
) -> None:
    uid = PodUid(pod_uid(pod))
    starts.wanted({uid: pod})
    starts.delivered({uid: Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus())})
    await trio.sleep(seconds)
    running = ContainerStatus(
        image="",
        imageID="",
        name="c",
        ready=True,
        restartCount=0,
        state=state or ContainerState(running=ContainerStateRunning()),
    )
    status = PodStatus(containerStatuses=[running])
    starts.delivered({uid: Pod(metadata=pod.metadata, spec=pod.spec, status=status)})


async def test_only_the_first_pod_with_a_network_is_shown(autojump_clock: MockClock) -> None:
    meter, clock = Meter(), TrioClock()
    starts = PodStarts(meter, clock)
    await start(starts, created("host", clock, host_network=True), 9)
    assert not dict(meter.gauges(_FIRST))
    await start(starts, created("first", clock), 3)
    assert dict(meter.gauges(_FIRST)) == {(): 3.0}
    await start(starts, created("second", clock), 5)
    assert dict(meter.gauges(_FIRST)) == {(): 3.0}


@pytest.mark.parametrize(
    ("volumes", "counts"),
    [
        ((), True),
        ((Volume(name="token", projected=ProjectedVolumeSource(sources=[])),), True),
        (
            (
                Volume(name="s", secret=SecretVolumeSource(secretName="s")),
                Volume(name="e", emptyDir=EmptyDirVolumeSource()),
            ),
            True,
        ),
        ((Volume(name="h", hostPath=HostPathVolumeSource(path="/x")),), False),
        (
            (
                Volume(name="e", emptyDir=EmptyDirVolumeSource()),
                Volume(
                    name="c",
                    persistentVolumeClaim=PersistentVolumeClaimVolumeSource(claimName="c"),
                ),
            ),
            False,
        ),
    ],
)
async def test_the_slo_is_about_pods_without_state(
    autojump_clock: MockClock, volumes: tuple[Volume, ...], counts: bool
) -> None:
    meter, clock = Meter(), TrioClock()
    await start(PodStarts(meter, clock), created("a", clock, volumes=volumes), 4)
    assert dict(meter.histograms("kubelet_pod_start_total_duration_seconds"))
    assert bool(dict(meter.histograms("kubelet_pod_start_sli_duration_seconds"))) == counts
    assert bool(dict(meter.gauges(_FIRST))) == counts


async def test_time_of_pulls_is_not_counted(autojump_clock: MockClock) -> None:
    meter, clock = Meter(), TrioClock()
    starts, pod = PodStarts(meter, clock), created("a", clock)
    starts.wanted({pod_uid(pod): pod})
    starts.pulls.begin(pod_uid(pod), "image")
    await trio.sleep(3)
    starts.pulls.end(pod_uid(pod))
    await start(starts, pod, 1)
    assert dict(meter.gauges(_FIRST)) == pytest.approx({(): 1.0})
    assert starts.pulls.seconds(pod_uid(pod)) == 0  # it has started: nothing is kept


UNSCHEDULABLE = PodCondition(type="PodScheduled", status="False", reason="Unschedulable")


# TestPodsRunningBeforeKubeletStarted and TestImmediatelySchedulablePods.
@pytest.mark.parametrize(
    "before",
    [
        PodStatus(startTime=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        PodStatus(conditions=[UNSCHEDULABLE]),
    ],
    ids=["another agent took it", "it had to wait for room"],
)
async def test_the_slo_is_about_pods_that_this_agent_starts_at_once(
    autojump_clock: MockClock, before: PodStatus
) -> None:
    meter, clock = Meter(), TrioClock()
    pod = created("a", clock)
    pod.status = before
    await start(PodStarts(meter, clock), pod, 4)
    assert not dict(meter.histograms(_SLI))
    assert not dict(meter.histograms(_TOTAL))


async def test_a_start_takes_until_all_containers_run(autojump_clock: MockClock) -> None:
    """As hasPodStartedSLO: one that has ended already does not count as running."""
    meter, clock = Meter(), TrioClock()
    starts, pod = PodStarts(meter, clock), created("a", clock)
    ended = ContainerState(terminated=ContainerStateTerminated(exitCode=0))
    await start(starts, pod, 3, ended)
    assert dict(meter.histograms("kubelet_pod_start_duration_seconds"))
    assert not dict(meter.histograms(_TOTAL))
    await start(starts, pod, 2)
    (total,) = dict(meter.histograms(_TOTAL)).values()
    assert (sum(total.counts), total.sum) == (1, 5.0)
    await start(starts, pod, 2)
    (total,) = dict(meter.histograms(_TOTAL)).values()
    assert sum(total.counts) == 1
