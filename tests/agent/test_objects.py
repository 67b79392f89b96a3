"""Config maps, secrets and claims of a node without an API server, and the pods that need them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import (
    ConfigMap,
    LocalVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    Pod,
    Secret,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.model import metadata, pod_uid
from kubelet_trio.testing.images import image_id
from tests.agent.node import Node, make_pod, ready


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def config_map(**data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="config", namespace="default"), data=data)


def secret(value: str) -> Secret:
    encoded = base64.b64encode(value.encode()).decode()
    return Secret(metadata=ObjectMeta(name="keys", namespace="default"), data={"token": encoded})


def env_pod(variable: str, name: str = "web") -> Pod:
    return make_pod(
        name,
        containers=f"- {{name: web, image: web, imagePullPolicy: IfNotPresent, {variable}}}",
    )


def volume_pod(volume: str) -> Pod:
    mount = "volumeMounts: [{name: v, mountPath: /v}]"
    return make_pod(
        containers=f"- {{name: web, image: web, imagePullPolicy: IfNotPresent, {mount}}}",
        spec=[f"volumes: [{{name: v, {volume}}}]"],
    )


def environment(node: Node, name: str = "web-node") -> dict[str, bytes]:
    (container,) = node.runtime.instances(name)
    return {each.key: each.value for each in container.config.envs}


def only(node: Node, pod: Pod, pattern: str) -> Path:
    """Return the one file of a pod on disk that matches."""
    (found,) = list((node.base / "root/pods" / pod_uid(pod)).rglob(pattern))
    return found


FROM_CONFIG = "envFrom: [{configMapRef: {name: config}}]"


async def test_a_container_waits_for_its_config_map_and_starts_as_soon_as_it_is_there(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = env_pod(FROM_CONFIG)
    async with node.running(pod):
        await trio.sleep(31)
        waiting = node.container(pod).state
        assert waiting is not None
        assert waiting.waiting is not None
        assert waiting.waiting.reason == "CreateContainerConfigError"
        assert waiting.waiting.message == 'configmap "config" not found'
        assert "Failed" in node.reasons(pod)
        assert node.runtime.instances("web-node") == []
        node.feed.put(pod, objects=[config_map(A="1")])
        await trio.sleep(1)
        assert ready(node.status(pod))
        assert environment(node) == {"A": b"1"}


async def test_a_pod_is_told_of_itself(node: Node, autojump_clock: MockClock) -> None:
    pod = env_pod(
        "env: ["
        "{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}},"
        "{name: NODE, valueFrom: {fieldRef: {fieldPath: status.hostIP}}},"
        "{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}},"
        "{name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: token}}}]"
    )
    async with node.running():
        node.feed.put(pod, objects=[secret("s")])
        await trio.sleep(1)
        told = environment(node)
        (ips,) = [status.ip for status in node.status(pod).podIPs or ()]
        assert told == {
            "NAME": b"web-node",
            "NODE": b"192.0.2.7",
            "IP": ips.encode(),
            "TOKEN": b"s",
        }


async def test_a_changed_config_map_restarts_no_container_for_its_environment(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = env_pod(FROM_CONFIG)
    async with node.running():
        node.feed.put(pod, objects=[config_map(A="1")])
        await trio.sleep(1)
        node.feed.put(pod, objects=[config_map(A="2")])
        await trio.sleep(120)
        assert node.container(pod).restartCount == 0
        assert environment(node) == {"A": b"1"}


async def test_a_changed_config_map_reaches_a_running_pods_volume_at_once(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = volume_pod("configMap: {name: config}")
    async with node.running():
        node.feed.put(pod, objects=[config_map(a="1")])
        await trio.sleep(1)
        (container,) = node.runtime.instances("web-node")
        (mount,) = [m for m in container.config.mounts if m.container_path == "/v"]
        file = Path(mount.host_path) / "a"
        assert file.read_text() == "1"
        node.feed.put(pod, objects=[config_map(a="2")])
        await trio.sleep(0.1)
        assert file.read_text() == "2"
        assert node.calls("StopContainer") == []


async def test_a_secret_that_goes_is_told_and_what_runs_keeps_its_copy(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = volume_pod("secret: {secretName: keys}")
    async with node.running():
        node.feed.put(pod, objects=[secret("1")])
        await trio.sleep(1)
        node.feed.put(pod)
        await trio.sleep(0.1)
        assert node.reasons(pod).count("FailedMount") == 1
        file = only(node, pod, "..data/token")
        assert file.read_text() == "1"
        assert ready(node.status(pod))


async def test_a_pod_waits_for_its_secret_with_an_event(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = volume_pod("secret: {secretName: keys}")
    async with node.running(pod) as agent:
        await trio.sleep(60)
        assert node.status(pod).phase == "Pending"
        texts = [e.message for e in agent.events.events() if e.reason == "FailedMount"]
        assert texts[0] == 'MountVolume.SetUp failed for volume "v" : secret "keys" not found'
        node.feed.put(pod, objects=[secret("1")])
        await trio.sleep(1)
        assert ready(node.status(pod))
        node.feed.put()
        await trio.sleep(40)
        assert node.leftovers() == []


async def test_an_agent_started_again_brings_volumes_up_to_date(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = volume_pod("configMap: {name: config}")
    for text in ("1", "2"):
        async with node.running(pod, objects=[config_map(a=text)]):
            await trio.sleep(2)
            file = only(node, pod, "..data/a")
            assert file.read_text() == text
    assert len(node.calls("StartContainer")) == 1


async def test_a_claim_and_its_volume_may_come_after_the_pod(
    node: Node, autojump_clock: MockClock, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/file").touch()
    pod = volume_pod("persistentVolumeClaim: {claimName: claim}")
    claim = PersistentVolumeClaim(
        metadata=ObjectMeta(name="claim", namespace="default"),
        spec=PersistentVolumeClaimSpec(volumeName="pv"),
    )
    volume = PersistentVolume(
        metadata=ObjectMeta(name="pv"),
        spec=PersistentVolumeSpec(local=LocalVolumeSource(str(tmp_path / "disk"))),
    )
    async with node.running(pod):
        await trio.sleep(5)
        node.feed.put(pod, objects=[claim])
        await trio.sleep(5)
        assert node.status(pod).phase == "Pending"
        node.feed.put(pod, objects=[claim, volume])
        await trio.sleep(1)
        assert ready(node.status(pod))
        node.feed.put()
        await trio.sleep(40)
        assert node.leftovers() == []
        assert (tmp_path / "disk/file").exists()


async def test_nobody_holds_what_no_pod_refers_to_any_more(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = env_pod(FROM_CONFIG)
    async with node.running(pod) as agent:
        await trio.sleep(1)
        assert [key.name for key in agent.parts.supplies.documents.held] == ["config"]
        node.feed.put()
        await trio.sleep(40)
        assert agent.parts.supplies.documents.held == frozenset()


async def test_the_image_of_a_volume_is_pulled_before_the_container_starts(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = volume_pod("image: {reference: app, pullPolicy: Always}")
    async with node.running(pod) as agent:
        await trio.sleep(2)
        pulled = [e.message for e in agent.events.events() if e.reason == "Pulling"]
        assert 'Pulling image "app"' in pulled
        (container,) = node.runtime.instances("web-node")
        (mount,) = [m for m in container.config.mounts if m.container_path == "/v"]
        assert mount == v1.Mount(
            container_path="/v",
            readonly=True,
            # By its id: the tag may be another image's by the time of CreateContainer.
            image=v1.ImageSpec(
                image=image_id("app"),
                user_specified_image="app",
                annotations=dict(metadata(pod).annotations or {}),
            ),
        )


async def test_a_container_waits_for_the_images_of_its_own_volumes_first(
    node: Node, autojump_clock: MockClock
) -> None:
    mount = "volumeMounts: [{name: v, mountPath: /v}]"
    pod = make_pod(
        containers=(
            f"- {{name: web, image: missing-too, {mount}}}\n"
            "- {name: beside, image: web, imagePullPolicy: IfNotPresent}"
        ),
        spec=["volumes: [{name: v, image: {reference: missing, pullPolicy: Always}}]"],
    )
    async with node.running(pod):
        await trio.sleep(2)
        web, beside = node.status(pod).containerStatuses or []
        if web.name != "web":
            web, beside = beside, web
        assert web.state is not None
        assert web.state.waiting is not None
        assert web.state.waiting.reason == "ErrImagePull"
        assert 'image "missing"' in (web.state.waiting.message or "")
        assert "missing-too" not in {name for name, _ in node.runtime.images.tried}
        assert beside.ready


@pytest.mark.parametrize("gate", [True, False])
async def test_the_digest_of_a_mounted_image_is_shown_with_its_gate(
    gate: bool, node: Node, autojump_clock: MockClock
) -> None:
    node.node_fields = {"image_digests": gate}
    pod = volume_pod("image: {reference: app, pullPolicy: IfNotPresent}")

    def shown() -> str | None:
        (mount,) = node.container(pod).volumeMounts or []
        image = mount.volumeStatus.image if mount.volumeStatus is not None else None
        return image.imageRef if image is not None else None

    async with node.running(pod):
        await trio.sleep(5)
        assert shown() == (f"app@{image_id('app')}" if gate else None)
    node.runtime.images.present.discard("app")  # its name is another image's by now
    async with node.running(pod):
        await trio.sleep(5)
        assert shown() == (f"app@{image_id('app')}" if gate else None)


async def test_whole_trees_are_read_only_where_the_runtime_can(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.handler_features[""] = v1.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
    mount = (
        "volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: IfPossible}]"
    )
    pod = make_pod(
        containers=f"- {{name: web, image: web, {mount}}}",
        spec=["volumes: [{name: v, emptyDir: {}}]"],
    )
    async with node.running(pod):
        await trio.sleep(2)
        (container,) = node.runtime.instances("web-node")
        (made,) = [m for m in container.config.mounts if m.container_path == "/v"]
        assert made.recursive_read_only
        (told,) = node.container(pod).volumeMounts or []
        assert told.recursiveReadOnly == "Enabled"


@pytest.mark.parametrize("able", ["kata", ""])
async def test_whole_trees_are_read_only_where_the_pods_own_handler_can(
    able: str, node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.handler_features = {
        "": v1.RuntimeHandlerFeatures(recursive_read_only_mounts=not able),
        "kata": v1.RuntimeHandlerFeatures(recursive_read_only_mounts=bool(able)),
    }
    mount = (
        "volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: IfPossible}]"
    )
    pod = make_pod(
        containers=f"- {{name: web, image: web, {mount}}}",
        spec=["runtimeClassName: kata", "volumes: [{name: v, emptyDir: {}}]"],
    )
    kata = RuntimeClass(metadata=ObjectMeta(name="kata"), handler="kata")
    async with node.running(pod, objects=[kata]):
        await trio.sleep(2)
        (container,) = node.runtime.instances("web-node")
        (made,) = [m for m in container.config.mounts if m.container_path == "/v"]
        assert made.recursive_read_only is bool(able)
        (told,) = node.container(pod).volumeMounts or []
        assert told.recursiveReadOnly == ("Enabled" if able else "Disabled")


async def test_a_variable_comes_from_a_file_that_an_init_container_wrote(
    node: Node, autojump_clock: MockClock
) -> None:
    ref = "{volumeName: work, path: made/env, key: TOKEN}"
    variable = f"env: [{{name: TOKEN, valueFrom: {{fileKeyRef: {ref}}}}}]"
    mount = "volumeMounts: [{name: work, mountPath: /work}]"
    pod = make_pod(
        containers=f"- {{name: web, image: web, imagePullPolicy: IfNotPresent, {variable}}}",
        spec=[
            "volumes: [{name: work, emptyDir: {}}]",
            f"initContainers: [{{name: init, image: exit-0, {mount}}}]",
        ],
    )
    async with node.running(pod):
        await trio.sleep(5)
        state = node.container(pod).state
        assert state is not None
        assert state.waiting is not None
        assert state.waiting.reason == "CreateContainerConfigError"
        assert state.waiting.message == "couldn't parse env file: volume work has no file made/env"
        work = node.base / "root/pods" / pod_uid(pod) / "volumes/kubernetes.io~empty-dir/work"
        (work / "made").mkdir()
        (work / "made" / "env").write_text("TOKEN='secret'")
        await trio.sleep(15)
        (started,) = node.runtime.instances("web-node", "web")
        assert {e.key: e.value for e in started.config.envs}["TOKEN"] == b"secret"
