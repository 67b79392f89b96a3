"""configMap, secret, downwardAPI and projected volumes."""

from __future__ import annotations

import base64
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import (
    ClusterTrustBundleProjection,
    ConfigMap,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EphemeralContainer,
    KeyToPath,
    ObjectFieldSelector,
    Pod,
    PodCertificateProjection,
    PodSecurityContext,
    ProjectedVolumeSource,
    ResourceFieldSelector,
    Secret,
    SecretProjection,
    SecretVolumeSource,
    SecurityContext,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from msgspec.structs import replace

from kubelet_trio.model import PodUid, inline_offload, pod_containers
from kubelet_trio.objects import (
    ApiObject,
    CredentialBundle,
    KnownToken,
    LocalObjects,
    ObjectError,
    ObjectKey,
    TokenRequest,
    config_map_key,
    secret_key,
)
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import (
    Issuers,
    KernelMounter,
    Mounter,
    NodeFacts,
    VolumeError,
    VolumeManager,
)
from tests.volumes.make import empty_dir, mount, pod

CONFIG = config_map_key("default", "config")
KEYS = secret_key("default", "keys")


class Node:
    """A manager whose objects a test writes."""

    def __init__(self, root: Path, mounter: Mounter, **settings: Any) -> None:
        self.root = root
        self.objects = LocalObjects()
        self.manager = VolumeManager(
            root, mounter, inline_offload, objects=self.objects, **settings
        )

    def put(self, objects: dict[ObjectKey, ApiObject]) -> None:
        self.objects.apply(objects)

    def directory(self, plugin: str, name: str = "v") -> Path:
        return self.root / "pods/u-1/volumes" / f"kubernetes.io~{plugin}" / name

    async def failure(self, of_pod: Pod) -> str:
        with pytest.raises(VolumeError) as caught:
            await self.manager.mount(of_pod)
        return str(caught.value).removeprefix('MountVolume.SetUp failed for volume "v" : ')


@pytest.fixture
def node(tmp_path: Path, mounter: FakeMounter) -> Node:
    return Node(tmp_path, mounter)


def config_map(**fields: Any) -> Volume:
    return Volume(name="v", configMap=ConfigMapVolumeSource(name="config", **fields))


def secret(**fields: Any) -> Volume:
    return Volume(name="v", secret=SecretVolumeSource(secretName="keys", **fields))


def projected(*sources: VolumeProjection, **fields: Any) -> Volume:
    return Volume(name="v", projected=ProjectedVolumeSource(sources=list(sources), **fields))


def files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory / "..data")): path.read_text()
        for path in sorted((directory / "..data").rglob("*"))
        if path.is_file()
    }


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_config_map_shows_text_and_binary_data(node: Node) -> None:
    binary = base64.b64encode(b"bin").decode()
    node.put({CONFIG: ConfigMap(data={"a": "1"}, binaryData={"b": binary})})
    await node.manager.mount(pod(config_map()))
    directory = node.directory("configmap")
    assert files(directory) == {"a": "1", "b": "bin"}
    assert (directory / "a").read_text() == "1"
    assert mode(directory) == 0o755
    assert mode(directory / "a") == 0o644


async def test_items_choose_keys_paths_and_modes(node: Node) -> None:
    node.put({CONFIG: ConfigMap(data={"a": "1", "b": "2"})})
    items = [KeyToPath("a", "deep/down", mode=0o600), KeyToPath("a", "again")]
    await node.manager.mount(pod(config_map(items=items, defaultMode=0o444)))
    directory = node.directory("configmap")
    assert files(directory) == {"again": "1", "deep/down": "1"}
    assert mode(directory / "deep/down") == 0o600
    assert mode(directory / "again") == 0o444


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        (config_map(), 'configmap "config" not found'),
        (secret(), 'secret "keys" not found'),
        (
            projected(
                VolumeProjection(configMap=ConfigMapProjection(name="config")),
                VolumeProjection(secret=SecretProjection(name="keys")),
            ),
            '[configmap "config" not found, secret "keys" not found]',
        ),
        (
            projected(
                VolumeProjection(secret=SecretProjection(name="keys")),
                VolumeProjection(secret=SecretProjection(name="keys")),
            ),
            'secret "keys" not found',
        ),
    ],
)
async def test_a_missing_object_is_named(node: Node, volume: Volume, message: str) -> None:
    assert await node.failure(pod(volume)) == message
    assert not (node.root / "pods/u-1/volumes").exists()  # nothing half made


@pytest.mark.parametrize("make", [config_map, secret])
async def test_missing_keys_fail_unless_optional(node: Node, make: Any) -> None:
    node.put({CONFIG: ConfigMap(data={"a": "1"}), KEYS: Secret(stringData={"a": "1"})})
    items = [KeyToPath("a", "a"), KeyToPath("none", "none")]
    kind = "config" if make is config_map else "secret"
    assert await node.failure(pod(make(items=items))) == f"references non-existent {kind} key: none"
    await node.manager.mount(pod(make(items=items, optional=True)))


async def test_an_optional_object_may_be_missing_and_come_later(node: Node) -> None:
    of_pod = pod(config_map(optional=True))
    await node.manager.mount(of_pod)
    assert files(node.directory("configmap")) == {}
    node.put({CONFIG: ConfigMap(data={"a": "1"})})
    await node.manager.refresh(of_pod)
    assert files(node.directory("configmap")) == {"a": "1"}


async def test_secrets_are_kept_in_memory(node: Node, mounter: FakeMounter) -> None:
    node.put({KEYS: Secret(data={"token": "c2VjcmV0"})})
    of_pod = pod(secret(defaultMode=0o400))
    await node.manager.mount(of_pod)
    directory = node.directory("secret")
    assert [(m.path, m.fstype) for m in mounter.mounts()] == [(str(directory), "tmpfs")]
    assert files(directory) == {"token": "secret"}
    assert mode(directory / "token") == 0o400
    await node.manager.mount(of_pod)
    assert len(mounter.mounts()) == 1
    await node.manager.unmount(PodUid("u-1"))
    assert mounter.mounts() == []
    assert not (node.root / "pods/u-1/volumes").exists()


async def test_a_running_pod_sees_what_changed(node: Node) -> None:
    node.put({CONFIG: ConfigMap(data={"a": "1"})})
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    before = os.readlink(node.directory("configmap") / "..data")
    await node.manager.refresh(of_pod)
    assert os.readlink(node.directory("configmap") / "..data") == before
    node.put({CONFIG: ConfigMap(data={"a": "2"})})
    await node.manager.refresh(of_pod)
    assert files(node.directory("configmap")) == {"a": "2"}


async def test_an_object_that_goes_leaves_a_running_pod_what_it_has(node: Node) -> None:
    node.put({CONFIG: ConfigMap(data={"a": "1"})})
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    node.put({})
    with pytest.raises(VolumeError, match='configmap "config" not found'):
        await node.manager.refresh(of_pod)
    assert files(node.directory("configmap")) == {"a": "1"}


def downward_items() -> list[DownwardAPIVolumeFile]:
    return [
        DownwardAPIVolumeFile("labels", fieldRef=ObjectFieldSelector("metadata.labels")),
        DownwardAPIVolumeFile("meta/name", fieldRef=ObjectFieldSelector("metadata.name")),
        DownwardAPIVolumeFile(
            "cpu",
            mode=0o600,
            resourceFieldRef=ResourceFieldSelector("limits.cpu", "main", "1m"),
        ),
    ]


async def test_the_downward_api_follows_the_pods_labels(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    node = Node(tmp_path, mounter, node=NodeFacts(allocatable={"cpu": 2 * 10**9}))
    volume = Volume(name="v", downwardAPI=DownwardAPIVolumeSource(items=downward_items()))
    of_pod = pod(volume)
    assert of_pod.metadata is not None
    for labels, text in (({"b": "2", "a": "1"}, 'a="1"\nb="2"'), ({}, "")):
        labelled = replace(of_pod, metadata=replace(of_pod.metadata, labels=labels))
        await node.manager.refresh(labelled)
        directory = node.directory("downward-api")
        assert files(directory) == {"cpu": "2000", "labels": text, "meta/name": "web"}
        assert mode(directory / "cpu") == 0o600


async def test_a_projected_volume_merges_its_sources(node: Node, mounter: FakeMounter) -> None:
    node.put(
        {CONFIG: ConfigMap(data={"a": "config", "b": "2"}), KEYS: Secret(stringData={"a": "s"})}
    )
    volume = projected(
        VolumeProjection(configMap=ConfigMapProjection(name="config")),
        VolumeProjection(secret=SecretProjection(name="keys")),
        VolumeProjection(downwardAPI=DownwardAPIProjection(items=downward_items()[1:2])),
        VolumeProjection(secret=SecretProjection(name="none", optional=True)),
        defaultMode=0o440,
    )
    await node.manager.mount(pod(volume))
    directory = node.directory("projected")
    assert files(directory) == {"a": "s", "b": "2", "meta/name": "web"}
    assert mode(directory / "a") == 0o440
    assert [m.fstype for m in mounter.mounts()] == ["tmpfs"]


class Tokens:
    """Gives numbered tokens, a new one each time."""

    def __init__(self) -> None:
        self.asked: list[TokenRequest] = []

    async def token(self, request: TokenRequest) -> str:
        return (await self.issue(request)).text

    async def issue(self, request: TokenRequest) -> KnownToken:
        self.asked.append(request)
        return KnownToken(f"token-{len(self.asked)}", math.inf, math.inf)

    def forget(self, uid: PodUid) -> None:
        self.asked.clear()


async def test_tokens_are_asked_for_and_renewed_in_place(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    tokens = Tokens()
    node = Node(tmp_path, mounter, issuers=Issuers(tokens=tokens))
    source = ServiceAccountTokenProjection("token", "vault", 600)
    of_pod = pod(projected(VolumeProjection(serviceAccountToken=source)))
    await node.manager.mount(of_pod)
    directory = node.directory("projected")
    assert files(directory) == {"token": "token-1"}
    assert mode(directory / "token") == 0o644
    (request,) = tokens.asked
    assert (request.service_account, request.audience, request.expiration_seconds) == (
        "default",
        "vault",
        600,
    )
    await node.manager.refresh(of_pod)
    assert files(directory) == {"token": "token-2"}


async def test_a_node_without_an_api_server_has_no_tokens(node: Node) -> None:
    source = ServiceAccountTokenProjection("token")
    failure = await node.failure(pod(projected(VolumeProjection(serviceAccountToken=source))))
    assert failure.startswith("service account tokens need an API server")


class Anchors:
    """Gives the anchors that a test sets, by the name of the bundle."""

    def __init__(self, **anchors: bytes) -> None:
        self.anchors_of = anchors
        self.forgotten: list[PodUid] = []

    async def anchors(self, source: ClusterTrustBundleProjection, uid: PodUid) -> bytes:
        if source.name not in self.anchors_of:
            raise ObjectError(f"no bundle {source.name}")
        return self.anchors_of[source.name]

    def forget(self, uid: PodUid) -> None:
        self.forgotten.append(uid)


class Certificates:
    """Gives each source of a volume a certificate of its own, renewed at each request."""

    def __init__(self) -> None:
        self.asked = 0
        self.forgotten: list[PodUid] = []

    async def credentials(self, pod: Pod, volume: str, index: int) -> CredentialBundle:
        self.asked += 1
        where = f"{volume}/{index}/{self.asked}"
        return CredentialBundle(f"KEY {where}\n".encode(), f"CHAIN {where}\n".encode())

    def forget(self, uid: PodUid) -> None:
        self.forgotten.append(uid)


def bundle_source(name: str) -> VolumeProjection:
    source = ClusterTrustBundleProjection(path=f"{name}.pem", name=name)
    return VolumeProjection(clusterTrustBundle=source)


def certificate_source(**paths: Any) -> VolumeProjection:
    source = PodCertificateProjection(keyType="ED25519", signerName="example.com/s", **paths)
    return VolumeProjection(podCertificate=source)


async def test_trust_anchors_are_a_file_that_follows_them(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    anchors = Anchors(ca=b"one")
    node = Node(tmp_path, mounter, issuers=Issuers(bundles=anchors))
    of_pod = pod(projected(bundle_source("ca")))
    await node.manager.mount(of_pod)
    directory = node.directory("projected")
    assert files(directory) == {"ca.pem": "one"}
    assert mode(directory / "ca.pem") == 0o644
    anchors.anchors_of["ca"] = b"two"
    await node.manager.refresh(of_pod)
    assert files(directory) == {"ca.pem": "two"}
    anchors.anchors_of.clear()
    with pytest.raises(VolumeError, match="no bundle ca"):
        await node.manager.refresh(of_pod)
    assert files(directory) == {"ca.pem": "two"}
    await node.manager.unmount(PodUid("u-1"))
    assert anchors.forgotten == ["u-1"]


async def test_a_certificate_is_one_file_or_two(tmp_path: Path, mounter: FakeMounter) -> None:
    certificates = Certificates()
    node = Node(
        tmp_path, mounter, issuers=Issuers(bundles=Anchors(ca=b"ca"), certificates=certificates)
    )
    of_pod = pod(
        projected(
            certificate_source(credentialBundlePath="tls/both.pem"),
            bundle_source("ca"),
            certificate_source(keyPath="key.pem", certificateChainPath="chain.pem"),
        )
    )
    await node.manager.mount(of_pod)
    directory = node.directory("projected")
    assert files(directory) == {
        "tls/both.pem": "KEY v/0/1\nCHAIN v/0/1\n",
        "ca.pem": "ca",
        "key.pem": "KEY v/2/2\n",
        "chain.pem": "CHAIN v/2/2\n",
    }
    assert mode(directory / "key.pem") == 0o644
    # Key and certificates belong together, so they change together.
    await node.manager.refresh(of_pod)
    assert files(directory)["key.pem"] == "KEY v/2/4\n"
    assert files(directory)["chain.pem"] == "CHAIN v/2/4\n"
    await node.manager.unmount(PodUid("u-1"))
    assert certificates.forgotten == ["u-1"]


async def test_a_key_is_for_the_pods_user_alone_if_it_is_known(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    node = Node(tmp_path, mounter, issuers=Issuers(certificates=Certificates()))
    source = certificate_source(credentialBundlePath="both.pem")
    user = SecurityContext(runAsUser=os.geteuid())
    await node.manager.mount(pod(projected(source), securityContext=user))
    assert mode(node.directory("projected") / "both.pem") == 0o600


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (bundle_source("ca"), "ClusterTrustBundle projection is not supported in static kubelet"),
        (certificate_source(keyPath="key"), "certificates of pods need an API server"),
    ],
)
async def test_a_node_without_an_api_server_has_neither(
    node: Node, source: VolumeProjection, message: str
) -> None:
    failure = await node.failure(pod(projected(source)))
    assert failure.startswith(message)


def with_group(of_pod: Pod, group: int, **fields: Any) -> Pod:
    assert of_pod.spec is not None
    context = PodSecurityContext(fsGroup=group, **fields)
    return replace(of_pod, spec=replace(of_pod.spec, securityContext=context))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change groups")
async def test_files_belong_to_the_pods_group_and_are_not_writable_for_it(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    node = Node(tmp_path, kernel)
    node.put({KEYS: Secret(stringData={"a": "1"})})
    of_pod = with_group(pod(secret(defaultMode=0o400)), 4711)
    for text in ("1", "2"):
        node.put({KEYS: Secret(stringData={"a": text})})
        await node.manager.mount(of_pod)
        file = node.directory("secret") / "a"
        assert file.read_text() == text
        assert (file.stat().st_gid, mode(file)) == (4711, 0o440)
        content = (node.directory("secret") / "..data").resolve()
        assert (content.stat().st_gid, mode(content)) == (4711, 0o2755)
    assert any(m.path == str(node.directory("secret")) for m in kernel.mounts())
    await node.manager.unmount(PodUid("u-1"))
    assert not any(m.path == str(node.directory("secret")) for m in kernel.mounts())


async def test_volumes_mounted_below_another_find_their_mount_points(node: Node) -> None:
    node.put({CONFIG: ConfigMap(data={"a": "1", "taken": "2"})})
    mounts = [
        mount("v", "/etc/app/"),
        mount("v", "/again"),
        mount("data", "/etc/app/sub/deep"),
        mount("data", "/etc/app/sub-2"),
        mount("data", "/etc/app/sub/deep/er"),  # within the other volume
        mount("data", "/etc/apple"),
        mount("data", "/again/taken"),  # a file is there already
        mount("data", "/again/../etc/app/up"),
    ]
    of_pod = pod(config_map(), empty_dir(), mounts=mounts)
    directory = node.directory("configmap")
    for _ in range(2):
        await node.manager.mount(of_pod)
        found = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_dir())
        assert [p for p in found if not p.startswith("..")] == ["sub", "sub-2", "sub/deep", "up"]
    assert mode(directory / "sub/deep") == 0o755
    assert (directory / "taken").read_text() == "2"
    node.put({CONFIG: ConfigMap(data={"a": "3"})})
    await node.manager.refresh(of_pod)
    assert (directory / "a").read_text() == "3"
    assert (directory / "sub/deep").is_dir()


async def test_an_ephemeral_container_may_mount_a_volume_below_another(node: Node) -> None:
    node.put({CONFIG: ConfigMap(data={"a": "1"})})
    of_pod = pod(config_map(), empty_dir())
    await node.manager.mount(of_pod)
    assert of_pod.spec is not None
    mounts = [mount("v", "/v"), mount("data", "/v/late")]
    late = EphemeralContainer(name="debug", image="busybox", volumeMounts=mounts)
    of_pod.spec.ephemeralContainers = [late]
    (container,) = (c for c in pod_containers(of_pod) if c.spec.name == "debug")
    await node.manager.container_mounts(of_pod, container)
    assert (node.directory("configmap") / "late").is_dir()


async def test_a_link_where_a_volume_is_mounted_leads_nowhere(node: Node, tmp_path: Path) -> None:
    """The directory is not trusted: see the module `atomic`."""
    node.put({CONFIG: ConfigMap(data={"a": "1"})})
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    (tmp_path / "outside").mkdir()
    (node.directory("configmap") / "sub").symlink_to(tmp_path / "outside")
    assert of_pod.spec is not None
    of_pod.spec.containers[0].volumeMounts = [mount("v", "/v"), mount("v", "/v/sub/deep")]
    await node.manager.mount(of_pod)
    assert list((tmp_path / "outside").iterdir()) == []
