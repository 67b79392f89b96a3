"""Dead containers, old sandboxes, logs and images, on a whole agent in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.credentials import PullVerification
from kubelet_trio.cri import v1
from kubelet_trio.gc import ContainerPolicy, ImagePolicy
from kubelet_trio.model import DiskSpace, pod_uid
from kubelet_trio.testing import FaultKind
from kubelet_trio.testing.images import FakeImages
from tests.agent.node import Node, make_pod, ready


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def attempts(node: Node, name: str) -> list[int]:
    return [c.metadata.attempt for c in node.runtime.instances(name)]


def logs(node: Node) -> list[str]:
    return sorted(path.name for path in (node.base / "pods").glob("*/web/*"))


async def test_a_crashing_container_keeps_its_last_end_and_its_log(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="exit-1")
    async with node.running(pod):
        await trio.sleep(1800)
        assert len(attempts(node, "web-node")) <= 2
        last = max(attempts(node, "web-node"))
        assert last > 3
        assert len(logs(node)) <= 3
        assert f"{last}.log" in logs(node)
    assert not node.runtime.violations


async def test_more_dead_containers_are_kept_where_that_is_wished(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="exit-1")
    async with node.running(pod, container_gc=ContainerPolicy(max_per_container=3)):
        await trio.sleep(1800)
        dead = [c for c in node.runtime.instances("web-node") if not c.alive]
        assert 3 <= len(dead) <= 4


@pytest.mark.parametrize("clears", [True, False])
async def test_logs_of_pods_that_nobody_knows_go_unless_another_agent_may_know_them(
    node: Node, clears: bool, autojump_clock: MockClock
) -> None:
    foreign = node.base / "pods" / "ns_other_5b6e8c1c-9d5f-4b54-9c55-64b3bb7b1d5a"
    foreign.mkdir(parents=True)
    async with node.running(make_pod(), container_gc=ContainerPolicy(clears_unknown_logs=clears)):
        await trio.sleep(600)
        assert foreign.exists() is not clears


async def test_old_sandboxes_go_and_the_newest_stays(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    async with node.running(pod):
        for _ in range(3):
            await trio.sleep(20)
            newest = max(node.runtime.sandboxes.values(), key=lambda s: s.created_at)
            node.runtime.kill_sandbox(newest.id)
        await trio.sleep(200)
        assert ready(node.status(pod))
        # One holds how the container ended last.
        assert [s.ready for s in node.runtime.sandboxes.values()] == [False, True]
    assert not node.runtime.violations


async def test_logs_of_pods_that_are_gone_go_and_others_stay(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    left = node.base / "pods/default_gone_0f-1/web"
    left.mkdir(parents=True)
    (left / "0.log").touch()
    (node.base / "pods/lost+found").mkdir()
    links = node.base / "containers"
    links.mkdir()
    (links / "gone_default_web-1.log").symlink_to(left / "0.log")
    (links / "notes.txt").symlink_to("/nowhere")
    async with node.running(pod):
        await trio.sleep(130)
        assert sorted(p.name for p in (node.base / "pods").iterdir()) == sorted(
            ["lost+found", f"default_web-node_{pod_uid(pod)}"]
        )
        assert len(list(links.iterdir())) == 2  # the notes, and the link to the pod's log
        assert (links / "notes.txt").is_symlink()


async def test_logs_stay_while_a_source_has_not_spoken(
    node: Node, autojump_clock: MockClock
) -> None:
    left = node.base / "pods/default_gone_0f-1"
    left.mkdir(parents=True)
    async with node.running(silent=True):
        await trio.sleep(600)
        assert left.is_dir()


async def test_dead_containers_sandboxes_and_old_logs_do_not_wait_for_a_silent_source(
    node: Node, autojump_clock: MockClock
) -> None:
    """It may never speak, and pods crash on meanwhile."""
    pod = make_pod(image="exit-1")
    async with node.running(pod, container_gc=ContainerPolicy(max_per_container=-1)):
        await trio.sleep(30)
        newest = max(node.runtime.sandboxes.values(), key=lambda s: s.created_at)
        node.runtime.kill_sandbox(newest.id)
        await trio.sleep(300)
    before = attempts(node, "web-node")
    assert len(before) > 3
    assert len(node.runtime.sandboxes) == 2
    left = node.base / "pods/default_gone_0f-1"
    left.mkdir(parents=True)
    async with node.running(silent=True):
        await trio.sleep(200)
        assert attempts(node, "web-node") == [max(before)]
        assert logs(node) == [f"{max(before)}.log"]
        assert len(node.runtime.sandboxes) == 1
        assert left.is_dir()
    assert not node.runtime.violations


async def test_under_pressure_logs_stay_while_a_source_has_not_spoken(
    node: Node, autojump_clock: MockClock
) -> None:
    left = node.base / "pods/default_gone_0f-1"
    left.mkdir(parents=True)
    async with node.running(silent=True) as agent:
        await trio.sleep(30)
        await agent.parts.upkeep.containers.collect(all_unused=True)
        assert left.is_dir()
        node.feed.put()
        await trio.sleep(90)
        assert not left.exists()


async def test_what_cannot_be_removed_is_told_and_tried_again(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        for _ in range(2):
            await trio.sleep(20)
            newest = max(node.runtime.sandboxes.values(), key=lambda s: s.created_at)
            node.runtime.kill_sandbox(newest.id)
        first = next(iter(node.runtime.sandboxes))
        node.runtime.faults.add(FaultKind.ERROR, "RemovePodSandbox", times=1)
        await trio.sleep(130)
        assert "ContainerGCFailed" in node.reasons()
        assert first not in node.runtime.sandboxes


GB = 10**9


def images_on(node: Node, *names: str, used: int = 90) -> None:
    """Put images of 10 GB each on a disk of 100, so full in per cent without them."""
    node.runtime.images.present |= set(names)
    node.runtime.images.sizes |= dict.fromkeys(names, 10 * GB)
    place = v1.FilesystemIdentifier(mountpoint="/images")
    node.runtime.image_fs = v1.ImageFsInfoResponse(
        image_filesystems=[v1.FilesystemUsage(fs_id=place)]
    )
    removed = node.runtime.images.removed

    def space(path: str) -> DiskSpace:
        assert path == "/images"
        return DiskSpace(100 * GB, (100 - used + 10 * len(removed)) * GB)

    node.disk_space = space


def present(node: Node, names: Iterable[str]) -> set[str]:
    return node.runtime.images.present & set(names)


POLICY = ImagePolicy()


async def test_images_go_until_the_disk_has_room_again(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "run", "a", "b", "c")
    pod = make_pod(image="run")
    async with node.running(pod, image_gc=POLICY):
        await trio.sleep(400)
        assert node.runtime.images.removed in (["a"], ["b"], ["c"])
        assert "run" in node.runtime.images.present
        assert ready(node.status(pod))


async def test_images_from_before_the_agent_have_their_minimum_age_too(
    node: Node, autojump_clock: MockClock
) -> None:
    """As with the Go kubelet, which counts it from its start (`Start` in image_gc_manager.go)."""
    images_on(node, "a", "b", "c")
    async with node.running(image_gc=ImagePolicy(min_age=1000)):
        await trio.sleep(950)
        assert node.runtime.images.removed == []
        await trio.sleep(300)
        assert node.runtime.images.removed in (["a"], ["b"], ["c"])


async def test_an_image_that_cannot_be_removed_does_not_stand_in_for_another(
    node: Node, autojump_clock: MockClock
) -> None:
    """freeSpace goes on with the next image until enough is free."""
    images_on(node, "a", "b", "c", used=95)
    node.runtime.images.busy.add("c")  # the first in order
    async with node.running(image_gc=POLICY):
        await trio.sleep(400)
        assert node.runtime.images.removed == ["b", "a"]


async def test_a_failed_removal_is_told_in_upstreams_words(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "a", "b", used=99)
    node.runtime.images.busy.update("ab")
    async with node.running(image_gc=POLICY):
        await trio.sleep(700)
        assert node.agent is not None
        (event,) = [e for e in node.agent.events.events() if e.reason == "ImageGCFailed"]
        why = 'image "{}" is in use'
        assert event.message == (
            "wanted to free 19000000000 bytes, but freed 0 bytes space with errors in image "
            f"deletion: [{why.format('b')}, {why.format('a')}]"
        )


async def test_images_wait_five_minutes_for_a_silent_source_and_not_for_ever(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "a", "b", "c")
    async with node.running(silent=True, image_gc=POLICY):
        await trio.sleep(290)
        assert node.runtime.images.removed == []
        await trio.sleep(400)
        assert node.runtime.images.removed in (["a"], ["b"], ["c"])


async def test_images_that_are_wanted_pinned_or_the_sandboxes_stay_however_full_the_disk(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "run-soon", "pause:3", "pinned", "left", used=99)
    node.runtime.images.pinned.add("pinned")
    node.runtime.sandbox_image_name = "pause:3"
    # Its container never starts, so the runtime knows of no user: the spec does.
    node.runtime.faults.add(FaultKind.ERROR, "CreateContainer", times=None)
    pod = make_pod(image="run-soon")
    async with node.running(pod, image_gc=POLICY):
        await trio.sleep(1000)
        assert node.runtime.images.removed == ["left"]
        reasons = node.reasons()
        assert "FreeDiskSpaceFailed" in reasons
        assert "ImageGCFailed" in reasons


async def test_an_image_stays_while_a_container_mounts_it_though_its_tag_has_moved(
    node: Node, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    images_on(node, "run", "left", "data", used=99)
    described = FakeImages.image

    def without_tag(images: FakeImages, name: str) -> v1.Image:
        image = described(images, name)
        if name == "data":
            image.repo_tags, image.repo_digests = [], []
        return image

    mount = "volumeMounts: [{name: v, mountPath: /v}]"
    pod = make_pod(
        containers=f"- {{name: web, image: run, {mount}}}",
        spec=["volumes: [{name: v, image: {reference: data, pullPolicy: IfNotPresent}}]"],
    )
    async with node.running(pod, image_gc=POLICY):
        await trio.sleep(100)
        assert ready(node.status(pod))
        monkeypatch.setattr(FakeImages, "image", without_tag)
        await trio.sleep(900)
        assert node.runtime.images.removed == ["left"]


async def test_a_full_disk_that_images_cannot_mend_is_told_in_upstreams_words(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, used=95)
    async with node.running(image_gc=POLICY):
        await trio.sleep(10)
        assert node.agent is not None
        (event,) = [e for e in node.agent.events.events() if e.reason == "FreeDiskSpaceFailed"]
        assert (event.message or "").startswith(
            "Insufficient free disk space on the node's image filesystem (95% of 93.1 GiB used). "
        )
        # As upstream, a first failure may be that of a node that is not up yet.
        assert "ImageGCFailed" not in node.reasons()
        await trio.sleep(300)
        assert "ImageGCFailed" in node.reasons()


async def test_a_file_system_without_a_size_is_told_in_upstreams_words(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "left")
    node.disk_space = lambda _path: DiskSpace(0, 0)
    async with node.running(image_gc=POLICY):
        await trio.sleep(10)
        assert node.agent is not None
        (event,) = [e for e in node.agent.events.events() if e.reason == "InvalidDiskCapacity"]
        assert event.message == "invalid capacity 0 on image filesystem"


async def test_the_record_of_a_pull_goes_with_its_image(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "kept", used=99)
    node.runtime.images.pinned.add("kept")
    pulled = node.base / "root" / "image_manager" / "pulled"
    async with node.running(
        make_pod(image="web"), image_gc=POLICY, pull_verification=PullVerification()
    ) as agent:
        await agent.pods.wait_value(
            lambda pods: any(p.status and ready(p.status) for p in pods.values())
        )
        (record,) = pulled.iterdir()
        await trio.sleep(600)
        assert record.exists(), "its image is in use"
        node.feed.put()
        await trio.sleep(1800)
        assert "web" in node.runtime.images.removed
        assert not record.exists()


async def test_images_stay_where_nobody_asked_for_collection(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "left", used=99)
    async with node.running():
        await trio.sleep(4000)
    assert present(node, ["left"])
    assert not node.calls("ListImages")


async def test_an_old_image_goes_though_there_is_room(
    node: Node, autojump_clock: MockClock
) -> None:
    images_on(node, "old", used=10)
    async with node.running(image_gc=ImagePolicy(max_age=3600)):
        await trio.sleep(3000)
        assert present(node, ["old"])
        await trio.sleep(1200)
        assert not present(node, ["old"])


async def test_a_runtime_that_is_away_is_no_failure(node: Node, autojump_clock: MockClock) -> None:
    images_on(node, "left", used=99)
    async with node.running(image_gc=POLICY):
        await trio.sleep(1)
        node.runtime.go_down()
        await trio.sleep(1000)
        assert not {"ImageGCFailed", "ContainerGCFailed"} & set(node.reasons())
