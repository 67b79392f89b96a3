"""What the puller says of images, and when it does not pull."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    Container,
    ImageVolumeSource,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.cri import ImagePullError, v1
from kubelet_trio.model import EventType, Meter, ObjectRef, PodContainer, PodUid, pod_containers
from kubelet_trio.pods import ImageError, ImagePuller
from kubelet_trio.pods.images.failures import joined, pull_failure
from kubelet_trio.pods.images.rate import PullRate
from kubelet_trio.pods.images.request import container_request, volume_requests
from kubelet_trio.pods.types import WaitingReason
from kubelet_trio.status import PullTimes
from kubelet_trio.testing import FakeRuntime, FaultKind, TrioClock
from kubelet_trio.testing.images import image_id

IMAGE = "reg.example/team/app:1"
REQUESTS = "kubelet_image_manager_ensure_image_requests_total"
REQUESTED = "kubelet_image_volume_requested_total"


class Node:
    """A puller, and what it said."""

    def __init__(self, rate: PullRate | None = None) -> None:
        self.runtime = FakeRuntime()
        self.told: list[tuple[str, str, str, str]] = []
        self.meter = Meter()
        self.times = PullTimes()
        self.times.track(PodUid("u"))
        self.puller = ImagePuller(
            self.runtime, self, TrioClock(), rate=rate, meter=self.meter, times=self.times
        )

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told.append((type_, reason, message, involved.field_path))

    async def ensure(self, image: str = IMAGE, policy: str = "IfNotPresent") -> None:
        pod = Pod(
            metadata=ObjectMeta(name="web", namespace="default", uid="u"),
            spec=PodSpec(containers=[Container(name="c", image=image, imagePullPolicy=policy)]),
        )
        await self.puller.ensure(pod, next(iter(pod_containers(pod))), v1.PodSandboxConfig())

    async def refusal(self, image: str = IMAGE, policy: str = "IfNotPresent") -> str:
        """Ensure an image that cannot be had, and return the waiting reason."""
        with pytest.raises(ImageError) as refused:
            await self.ensure(image, policy)
        return refused.value.waiting.reason


PATH = "spec.containers{c}"


async def test_a_pull_says_how_long_it_took_and_how_large_the_image_is(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    node.runtime.images.pull_takes = 62.345
    node.runtime.images.sizes[IMAGE] = 4321
    await node.ensure()
    (_, pulling, _, _), (type_, reason, text, path) = node.told
    assert (pulling, type_, reason, path) == ("Pulling", "Normal", "Pulled", PATH)
    assert text == (
        f'Successfully pulled image "{IMAGE}" in 1m2.345s (1m2.345s including waiting). '
        "Image size: 4321 bytes."
    )


async def test_the_pulls_under_way_are_known_until_they_end(autojump_clock: MockClock) -> None:
    node = Node()
    node.runtime.images.pull_takes = 60
    clock = TrioClock()
    began = clock.time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.ensure)
        await trio.sleep(1)
        nursery.start_soon(node.ensure, "reg.example/other:1")
        await trio.sleep(1)
        assert [(p.uid, p.container, p.image, p.is_queued) for p in node.puller.pulls] == [
            ("u", "c", IMAGE, False),
            ("u", "c", "reg.example/other:1", True),
        ]
        assert [p.since - began for p in node.puller.pulls] == pytest.approx([0, 1])
        await trio.sleep(60)
        (second,) = node.puller.pulls
        assert not second.is_queued
        assert second.since - began == pytest.approx(60)  # how long it has been pulled
    assert not node.puller.pulls


async def test_a_pull_is_told_of_before_it_waits_for_others(autojump_clock: MockClock) -> None:
    node = Node()
    node.runtime.images.pull_takes = 20
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.ensure)
        nursery.start_soon(node.ensure, "reg.example/other:1")
        await trio.sleep(1)
        assert [reason for _, reason, _, _ in node.told] == ["Pulling", "Pulling"]
    texts = [text for _, reason, text, _ in node.told if reason == "Pulled"]
    assert [text.split('" ')[1].split(". Im")[0] for text in texts] == [
        "in 20s (20s including waiting)",
        "in 20s (40s including waiting)",
    ]
    assert node.times.seconds(PodUid("u")) == pytest.approx(40)


@pytest.mark.parametrize("pulled_by", ["the pod", "another"])
async def test_the_time_of_a_pull_ends_with_the_image(
    autojump_clock: MockClock, pulled_by: str
) -> None:
    node = Node()
    node.runtime.images.broken[IMAGE] = ImagePullError("PullImage", "the registry is away")
    assert await node.refusal() == "ErrImagePull"
    await trio.sleep(30)
    node.runtime.images.broken.clear()
    assert node.times.seconds(PodUid("u")) == 0
    if pulled_by == "another":
        await node.runtime.pull_image(v1.ImageSpec(image=IMAGE), None, v1.PodSandboxConfig())
    await node.ensure()
    assert node.times.seconds(PodUid("u")) == pytest.approx(30, abs=1)


async def test_a_pull_that_fails_or_is_cancelled_is_under_way_no_more(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    assert await node.refusal("reg.example/missing:1") == "ErrImagePull"
    assert not node.puller.pulls
    node.runtime.images.pull_takes = 60
    with trio.move_on_after(5):
        await node.ensure()
    assert not node.puller.pulls


async def test_an_image_that_is_never_pulled_is_an_error(autojump_clock: MockClock) -> None:
    node = Node()
    assert await node.refusal(policy="Never") == "ErrImageNeverPull"
    text = f'Container image "{IMAGE}" is not present with pull policy of Never'
    assert node.told == [
        ("Warning", "ErrImageNeverPull", text, PATH),
        ("Warning", "Failed", "Error: ErrImageNeverPull", PATH),
    ]


async def test_a_name_that_is_none_is_an_error(autojump_clock: MockClock) -> None:
    node = Node()
    assert await node.refusal("Not A Name") == "InvalidImageName"
    text = (
        'Failed to apply default image tag "Not A Name": couldn\'t parse image name "Not A Name": '
        "invalid reference format: repository name (library/Not A Name) must be lowercase"
    )
    assert node.told == [
        ("Warning", "InspectFailed", text, PATH),
        ("Warning", "Failed", "Error: InvalidImageName", PATH),
    ]


async def test_the_back_off_of_a_pull_is_an_error_each_time(autojump_clock: MockClock) -> None:
    node = Node()
    missing = "reg.example/missing:1"
    assert await node.refusal(missing) == "ErrImagePull"
    assert [text for _, reason, text, _ in node.told if reason == "Failed"][1:] == [
        "Error: ErrImagePull"
    ]
    node.told.clear()
    assert await node.refusal(missing) == "ImagePullBackOff"
    assert node.told == [
        ("Normal", "BackOff", f'Back-off pulling image "{missing}"', PATH),
        ("Warning", "Failed", "Error: ImagePullBackOff", PATH),
    ]


async def test_pulls_beyond_the_rate_are_refused(autojump_clock: MockClock) -> None:
    node = Node(PullRate(1, 2))
    images = [f"reg.example/app{n}:1" for n in range(3)]
    for image in images[:2]:
        await node.ensure(image)
    with pytest.raises(ImageError) as refused:
        await node.ensure(images[2])
    assert refused.value.waiting.reason == "ErrImagePull"
    assert refused.value.waiting.message == "pull QPS exceeded"
    text = f'Failed to pull image "{images[2]}": pull QPS exceeded'
    assert ("Warning", "Failed", text, PATH) in node.told
    await trio.sleep(60)
    await node.ensure(images[2])
    # What is there already takes no token.
    for image in images * 5:
        await node.ensure(image)


# The metrics of noFGPullerTestCases in pkg/kubelet/images/image_manager_test.go.
@pytest.mark.parametrize(
    ("image", "policy", "reason", "present", "pull"),
    [
        ("reg.example/new:1", "IfNotPresent", "", "false", "true"),
        (IMAGE, "IfNotPresent", "", "true", "false"),
        (IMAGE, "Always", "", "unknown", "true"),
        (IMAGE, "Never", "", "true", "false"),
        ("reg.example/new:1", "Never", "ErrImageNeverPull", "false", "unknown"),
        ("reg.example/missing:1", "IfNotPresent", "ErrImagePull", "false", "true"),
        ("reg.example/away:1", "IfNotPresent", "ImageInspectError", "unknown", "unknown"),
        ("Not A Name", "Always", "InvalidImageName", "unknown", "unknown"),
    ],
)
async def test_requests_are_counted_by_what_they_found(
    autojump_clock: MockClock, image: str, policy: str, reason: str, present: str, pull: str
) -> None:
    node = Node()
    node.runtime.images.present.add(IMAGE)
    if "away" in image:
        node.runtime.faults.add(FaultKind.ERROR, "ImageStatus")
    if reason:
        assert await node.refusal(image, policy) == reason
    else:
        await node.ensure(image, policy)
    assert dict(node.meter.counters(REQUESTS)) == {(present, policy.lower(), pull): 1}


async def test_an_image_is_pulled_always_without_the_runtimes_word_on_it(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    node.runtime.faults.add(FaultKind.ERROR, "ImageStatus")
    await node.ensure(policy="Always")
    assert [reason for _, reason, _, _ in node.told] == ["Pulling", "Pulled"]


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ("RegistryUnavailable", "RegistryUnavailable", "the registry is unavailable"),
        ("RegistryUnavailable: no", "RegistryUnavailable", "the registry is unavailable: no"),
        (
            "SignatureValidationFailed: bar",
            "SignatureValidationFailed",
            "the signature validation failed: bar",
        ),
    ],
)
async def test_reasons_of_the_runtime_are_told_in_words(
    autojump_clock: MockClock, text: str, reason: str, said: str
) -> None:
    node = Node()
    node.runtime.images.broken[IMAGE] = ImagePullError("PullImage", text, reason)
    said = f"image pull failed for {IMAGE} because {said}"
    with pytest.raises(ImageError) as refused:
        await node.ensure()
    assert refused.value.waiting == WaitingReason(reason, said)
    assert ("Warning", "Failed", f'Failed to pull image "{IMAGE}": {text}', PATH) in node.told
    with pytest.raises(ImageError) as refused:
        await node.ensure()
    message = f'Back-off pulling image "{IMAGE}": {reason}: {said}'
    assert refused.value.waiting == WaitingReason("ImagePullBackOff", message)


def test_a_pull_tells_what_each_login_met() -> None:
    one = ImagePullError("PullImage", "401")
    other = ImagePullError("PullImage", "RegistryUnavailable: x", "RegistryUnavailable")
    assert joined([one, ImagePullError("PullImage", "401")]).go_text == "401"
    assert joined([other]) is other
    both = joined([one, other, one])
    assert pull_failure(IMAGE, both) == WaitingReason(
        "ErrImagePull", "[401, RegistryUnavailable: x]"
    )


def test_the_runtime_gets_the_pods_annotations() -> None:
    pod = Pod(
        metadata=ObjectMeta(
            name="web", namespace="default", uid="u", annotations={"example.com/snapshotter": "x"}
        ),
        spec=PodSpec(
            containers=[
                Container(
                    name="c", image=IMAGE, volumeMounts=[VolumeMount(mountPath="/v", name="v")]
                )
            ],
            volumes=[Volume(name="v", image=ImageVolumeSource(reference="reg.example/data:1"))],
        ),
    )
    container = next(iter(pod_containers(pod)))
    for request in (
        container_request(pod, container),
        *volume_requests(pod, container).values(),
    ):
        assert request.spec.annotations == {"example.com/snapshotter": "x"}


DATA = "reg.example/data:1"


def mounting(pulls: dict[str, tuple[str, str]], mounts: list[str]) -> tuple[Pod, PodContainer]:
    """Return a pod with image volumes, (reference, pull policy) by name, and its container."""
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u", annotations={"a/b": "x"}),
        spec=PodSpec(
            containers=[
                Container(
                    name="c",
                    image=IMAGE,
                    volumeMounts=[VolumeMount(mountPath=f"/{m}", name=m) for m in mounts],
                )
            ],
            volumes=[
                Volume(name=name, image=ImageVolumeSource(policy, reference))
                for name, (reference, policy) in pulls.items()
            ],
        ),
    )
    return pod, next(iter(pod_containers(pod)))


async def test_what_is_mounted_is_the_image_that_was_ensured(autojump_clock: MockClock) -> None:
    node = Node()
    node.runtime.images.present.add("there:1")
    pod, container = mounting(
        {
            "v": (DATA, "Always"),
            "there": ("there:1", "IfNotPresent"),
            "other": ("missing:1", "Always"),
        },
        ["v", "there", "v"],
    )
    ensured = await node.puller.ensure_volumes(pod, container, v1.PodSandboxConfig())
    assert ensured == {
        name: v1.ImageSpec(
            image=image_id(reference),
            user_specified_image=reference,
            annotations={"a/b": "x"},
        )
        for name, reference in (("v", DATA), ("there", "there:1"))
    }
    assert dict(node.meter.counters(REQUESTED)) == {(): 2}
    # Upstream's getImageVolumes reports what the volumes need for the pod, not for a container.
    assert {path for *_, path in node.told} == {""}


async def test_all_images_of_volumes_are_tried_and_the_last_mounts_failure_shown(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    pod, container = mounting(
        {"a": ("missing:a", "Always"), "b": ("b:1", "Never"), "c": (DATA, "Always")},
        ["b", "c", "a"],
    )
    with pytest.raises(ImageError) as refused:
        await node.puller.ensure_volumes(pod, container, v1.PodSandboxConfig())
    assert refused.value.waiting.reason == "ErrImagePull"
    assert 'failed to pull and unpack image "missing:a": not found' in str(refused.value)
    assert node.runtime.images.pulled == [DATA]
    assert not dict(node.meter.counters(REQUESTED))
    failed = [(message, path) for _, reason, message, path in node.told if reason == "Failed"]
    assert ("Error: ErrImagePull", PATH) in failed
    assert ("Error: ErrImageNeverPull", PATH) in failed
    pod, container = mounting({"b": ("b:1", "Never"), "a": ("missing:a", "Always")}, ["a", "b"])
    with pytest.raises(ImageError) as refused:
        await node.puller.ensure_volumes(pod, container, v1.PodSandboxConfig())
    assert refused.value.waiting == WaitingReason(
        "ErrImageNeverPull", 'Container image "b:1" is not present with pull policy of Never'
    )


def test_a_burst_goes_at_once_and_the_rest_as_tokens_come() -> None:
    rate = PullRate(5, 10)
    assert [rate.try_take(100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not rate.try_take(100.1)
    assert rate.try_take(100.2)
    assert not rate.try_take(100.2)
    assert [rate.try_take(200.0) for _ in range(11)] == [True] * 10 + [False]


def test_no_rate_is_no_limit() -> None:
    rate = PullRate(0, 1)
    assert all(rate.try_take(0.0) for _ in range(1000))


@given(
    st.floats(0.1, 50),
    st.integers(1, 20),
    st.lists(st.floats(0, 3), max_size=200),
)
def test_never_more_than_the_burst_and_what_came_since(
    qps: float, burst: int, gaps: list[float]
) -> None:
    rate, now, taken = PullRate(qps, burst), 0.0, 0
    for gap in gaps:
        now += gap
        taken += rate.try_take(now)
        assert taken <= burst + qps * now + 1e-3
