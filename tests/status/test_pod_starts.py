"""The start of a node's first pod with a network of its own is shown apart."""

from __future__ import annotations

import datetime

import trio
from lightkube.models.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import Meter, PodUid, pod_uid
from kubelet_trio.status.pod_starts import PodStarts
from kubelet_trio.testing import TrioClock

_FIRST = "kubelet_first_network_pod_start_sli_duration_seconds"


def created(uid: str, clock: TrioClock, *, host_network: bool = False) -> Pod:
    now = datetime.datetime.fromtimestamp(clock.time(), datetime.UTC)
    return Pod(
        metadata=ObjectMeta(
            name=uid,
            namespace="prod",
            uid=uid,
            creationTimestamp=now,
            annotations={"kubernetes.io/config.source": "api"},
        ),
        spec=PodSpec(containers=[Container(name="c")], hostNetwork=host_network),
    )


async def start(starts: PodStarts, pod: Pod, seconds: float) -> None:
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
        state=ContainerState(running=ContainerStateRunning()),
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
