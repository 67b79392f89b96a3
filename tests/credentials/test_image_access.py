"""Which pod may use an image that is there, over pulls, restarts, faults and collections."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Container, LocalObjectReference, Pod, PodSpec, Secret
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.credentials import ImageAccess, Login, PullVerification
from kubelet_trio.credentials.pulled import file_name
from kubelet_trio.cri import ImagePullError, v1
from kubelet_trio.model import (
    EventType,
    Meter,
    ObjectRef,
    SystemClock,
    inline_offload,
    pod_containers,
)
from kubelet_trio.objects import LocalObjects, object_key
from kubelet_trio.pods import ImageError, ImagePuller
from kubelet_trio.testing import FakeRuntime, image_id

IMAGE = "reg.example/team/app:1"
ID = image_id(IMAGE)


def secret(name: str, user: str, *, uid: str = "", password: str = "p") -> Secret:
    auths = {"auths": {"reg.example": {"username": user, "password": password}}}
    return Secret(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}"),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": base64.b64encode(json.dumps(auths).encode()).decode()},
    )


class Node:
    """A puller with records in a directory; `restart` makes a new agent on the same node."""

    def __init__(self, root: Path, policy: str = "NeverVerifyPreloadedImages") -> None:
        self.root = root
        self.policy = policy
        self.runtime = FakeRuntime()
        self.runtime.images.logins[IMAGE] = "a"
        self.clock = SystemClock()
        self.objects = LocalObjects()
        self.told: list[str] = []
        self._uids = itertools.count()
        self.restart()

    def restart(self) -> None:
        verification = PullVerification(self.policy)
        self.meter = Meter()
        self.access = ImageAccess(
            self.root, self.runtime, inline_offload, self.clock, verification, self.meter
        )
        self.puller = ImagePuller(
            self.runtime, self, self.clock, objects=self.objects, access=self.access
        )

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told.append(f"{reason}: {message}")

    def hold(self, *secrets: Secret) -> None:
        self.objects.apply({object_key(s): s for s in secrets})

    async def ensure(self, *secrets: str, policy: str = "IfNotPresent") -> int:
        """Ensure the image for a new pod with those secrets; return how many pulls that took."""
        uid = f"u{next(self._uids)}"
        pod = Pod(
            metadata=ObjectMeta(name="web", namespace="default", uid=uid),
            spec=PodSpec(
                containers=[Container(name="main", image=IMAGE, imagePullPolicy=policy)],
                imagePullSecrets=[LocalObjectReference(name=name) for name in secrets],
            ),
        )
        before = len(self.runtime.images.tried)
        await self.puller.ensure(pod, next(iter(pod_containers(pod))), v1.PodSandboxConfig())
        return len(self.runtime.images.tried) - before

    def record(self, image: str = ID) -> dict[str, object]:
        path = self.root / "image_manager" / "pulled" / file_name(image)
        found: dict[str, object] = json.loads(path.read_text())
        return found

    def intents(self) -> list[Path]:
        return list((self.root / "image_manager" / "pulling").iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_only_pods_with_the_secret_use_what_it_pulled(node: Node) -> None:
    node.hold(secret("one", "a"), secret("wrong", "b"))
    assert await node.ensure("one") == 1
    assert await node.ensure("one") == 0
    assert node.told[-1] == (
        f'Pulled: Container image "{IMAGE}" already present on machine '
        "and can be accessed by the pod"
    )
    for secrets in ((), ("wrong",)):
        with pytest.raises(ImageError, match=r"ErrImagePull: .*401 Unauthorized"):
            await node.ensure(*secrets)
    with pytest.raises(ImageError) as refused:
        await node.ensure(policy="Never")
    text = f'Container image "{IMAGE}" is not present with pull policy of Never'
    assert refused.value.waiting.reason == "ErrImageNeverPull"
    assert refused.value.waiting.message == text
    assert await node.ensure("one", policy="Never") == 0


async def test_it_is_remembered_over_a_restart(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    node.restart()
    assert await node.ensure("one") == 0
    with pytest.raises(ImageError, match="401"):
        await node.ensure()


async def test_the_record_is_as_the_go_kubelet_writes_it(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    assert node.record() == {
        "kind": "ImagePulledRecord",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "lastUpdatedTime": node.record()["lastUpdatedTime"],
        "imageRef": ID,
        "credentialMapping": {
            "reg.example/team/app": {
                "kubernetesSecrets": [
                    {
                        "uid": "uid-one",
                        "namespace": "default",
                        "name": "one",
                        # sha256 of {"username":"a","password":"p"}
                        "credentialHash": "7b633d85fba01744fc824573a3fb09af"
                        "4ed2ef5c6cdcb501a7c36ba4886c6187",
                    }
                ]
            }
        },
    }
    assert node.intents() == []
    manager = node.root / "image_manager"
    assert {p.stat().st_mode & 0o777 for p in (manager, *manager.iterdir())} == {0o700}


async def test_a_record_has_the_name_as_the_pod_writes_it(node: Node) -> None:
    """As the Go kubelet's: which registry a short name means depends on the runtime."""
    image = "app:1"
    await node.access.begin(image)
    await node.access.pulled(image, ID, None)
    assert node.record()["credentialMapping"] == {"app": {"nodePodsAccessible": True}}

    async def none() -> list[Login]:
        return []

    assert not await node.access.must_pull("app:2", ID, none)
    assert await node.access.must_pull("docker.io/library/app:1", ID, none)


async def test_a_record_of_the_go_kubelet_counts(node: Node) -> None:
    directory = node.root / "image_manager" / "pulled"
    directory.mkdir(parents=True)
    (directory / file_name(ID)).write_text(
        '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1",'
        f'"lastUpdatedTime":"2025-10-21T12:26:40Z","imageRef":"{ID}","credentialMapping":'
        '{"reg.example/team/app":{"nodePodsAccessible":true}}}'
    )
    node.runtime.images.present.add(IMAGE)
    assert await node.ensure() == 0
    node.policy = "AlwaysVerify"
    node.restart()
    assert await node.ensure() == 0


async def test_what_came_with_the_node_is_for_all(node: Node) -> None:
    node.runtime.images.present.add(IMAGE)
    assert await node.ensure() == 0
    assert await node.ensure(policy="Never") == 0


async def test_always_verify_trusts_no_image_that_came_with_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path, "AlwaysVerify")
    node.runtime.images.present.add(IMAGE)
    node.hold(secret("one", "a"))
    with pytest.raises(ImageError, match="401"):
        await node.ensure()
    assert await node.ensure("one") == 1
    assert await node.ensure("one") == 0


async def test_never_verify_asks_nobody(tmp_path: Path) -> None:
    node = Node(tmp_path, "NeverVerify")
    node.hold(secret("one", "a"))
    await node.ensure("one")
    assert await node.ensure() == 0
    checks = dict(node.meter.counters("kubelet_imagemanager_image_mustpull_checks_total"))
    assert checks == {("credentialPolicyAllowed",): 1}


async def test_a_rotated_secret_and_a_copied_one_count_and_are_noted(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    node.hold(secret("one", "a", password="new"))
    assert await node.ensure("one") == 0
    node.hold(secret("copy", "a", password="new"))
    assert await node.ensure("copy") == 0
    node.restart()
    assert await node.ensure("copy") == 0
    assert json.dumps(node.record()).count("credentialHash") == 2


async def test_a_public_pull_opens_the_image_to_all(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    node.runtime.images.logins[IMAGE] = ""
    assert await node.ensure() == 1
    assert await node.ensure(policy="Never") == 0


@pytest.mark.parametrize("content", ["", "{}", '{"kind":"ImagePulledRecord","new":1}', "\x00\xff"])
async def test_an_unreadable_record_is_kept_aside_and_still_asks(node: Node, content: str) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    path = node.root / "image_manager" / "pulled" / file_name(ID)
    path.write_text(content)
    aside = path.with_name(f"unreadable-{path.name}")
    for _life in range(2):
        node.restart()
        with pytest.raises(ImageError, match="401"):
            await node.ensure()
        assert aside.read_text() == content
        assert not path.exists()
    assert await node.ensure("one") == 1
    assert await node.ensure("one") == 0


async def test_an_image_of_a_pull_that_nobody_saw_end_asks(node: Node) -> None:
    """The agent is killed in a pull that the runtime goes on with."""
    await node.access.begin(IMAGE)
    node.runtime.images.present.add(IMAGE)
    node.restart()
    with pytest.raises(ImageError, match="401"):
        await node.ensure()
    assert node.intents() == []
    assert node.record()["imageRef"] == ID
    node.hold(secret("one", "a"))
    assert await node.ensure("one") == 1


async def test_an_empty_file_of_a_pull_that_was_begun_still_asks(node: Node) -> None:
    """What a power cut may leave of a file that was just written."""
    await node.access.begin(IMAGE)
    (path,) = node.intents()
    path.write_bytes(b"")
    node.runtime.images.present.add(IMAGE)
    for _life in range(2):
        node.restart()
        with pytest.raises(ImageError, match="401"):
            await node.ensure()


async def test_a_failed_pull_leaves_nothing(node: Node) -> None:
    node.runtime.images.present.add(IMAGE)
    with pytest.raises(ImageError, match="401"):
        await node.ensure(policy="Always")
    assert node.intents() == []
    assert await node.ensure() == 0, "it came with the node, and still counts so"


async def test_a_pull_cut_short_leaves_what_was_there_as_it_was(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    node.runtime.images.pull_takes = 60
    with trio.move_on_after(1):
        await node.ensure(policy="Always")
    assert node.intents() == []
    node.runtime.images.present.add(IMAGE)
    with trio.move_on_after(1):
        await node.ensure(policy="Always")
    assert node.intents() == []
    assert await node.ensure() == 0


async def test_pulls_at_a_time_share_an_intent(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    await node.access.begin(IMAGE)
    await node.access.begin(IMAGE)
    await node.access.failed(IMAGE)
    assert len(node.intents()) == 1
    await node.access.failed(IMAGE)
    assert node.intents() == []


async def test_where_nothing_can_be_written_nothing_is_pulled(node: Node) -> None:
    (node.root / "image_manager").write_text("not a directory")
    with pytest.raises(ImageError, match="Failed to record image pull intent"):
        await node.ensure()
    assert node.runtime.images.tried == []


async def test_records_go_with_their_images(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    now = node.clock.time()
    await node.access.prune({"sha256:other"}, now - 10)
    assert node.record(), "written after the images were listed"
    await node.access.prune({ID}, now + 10)
    assert node.record()
    await node.access.prune(set(), now + 10)
    assert list((node.root / "image_manager" / "pulled").iterdir()) == []
    assert await node.ensure() == 0, "whatever has this id now came with the node"


async def test_the_files_are_read_once(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    shutil.rmtree(node.root / "image_manager")
    assert await node.ensure("one") == 0
    with pytest.raises(ImageError, match="401"):
        await node.ensure()


async def test_a_registry_that_is_away_is_no_leave(node: Node) -> None:
    node.hold(secret("one", "a"))
    await node.ensure("one")
    node.runtime.images.broken[IMAGE] = ImagePullError("PullImage", "connection refused")
    with pytest.raises(ImageError, match="connection refused"):
        await node.ensure()
    assert await node.ensure("one") == 0


async def test_checks_and_files_are_counted_under_the_go_kubelets_names(node: Node) -> None:
    node.hold(secret("one", "a"), secret("wrong", "b"))
    await node.ensure("one")
    await node.ensure("one")
    with pytest.raises(ImageError):
        await node.ensure("wrong")
    checks = dict(node.meter.counters("kubelet_imagemanager_image_mustpull_checks_total"))
    assert checks == {("credentialRecordFound",): 1, ("mustAuthenticate",): 1}
    assert dict(node.meter.gauges("kubelet_imagemanager_ondisk_pulledrecords")) == {(): 1}
    assert dict(node.meter.gauges("kubelet_imagemanager_ondisk_pullintents")) == {(): 0}


async def test_an_intent_is_on_disk_while_its_pull_is_under_way(
    node: Node, autojump_clock: MockClock
) -> None:
    def intents() -> float:
        return dict(node.meter.gauges("kubelet_imagemanager_ondisk_pullintents"))[()]

    node.hold(secret("one", "a"))
    node.runtime.latency = {"PullImage": 10.0}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.ensure, "one")
        await trio.sleep(5)
        assert intents() == len(list((node.root / "image_manager" / "pulling").iterdir())) == 1
    assert intents() == 0


async def test_an_image_that_came_with_the_node_is_exempt_and_counted(node: Node) -> None:
    node.runtime.images.present.add(IMAGE)
    await node.ensure()
    checks = node.meter.counters("kubelet_imagemanager_image_mustpull_checks_total")
    assert dict(checks) == {("credentialPolicyAllowed",): 1}
