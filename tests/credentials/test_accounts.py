"""Credential providers that are given tokens of service accounts. Programs are real ones here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import Container, Pod, PodSpec, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.credentials import (
    AccountSource,
    ImageAccess,
    Login,
    NodeKeyring,
    Plugin,
    Provider,
    ProviderError,
    Puller,
    PullVerification,
    TokenAttributes,
    make_plugins,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    EventType,
    ObjectRef,
    SystemClock,
    inline_offload,
    pod_containers,
    pod_key,
    pod_uid,
)
from kubelet_trio.objects import ClusterAccounts, ClusterTokens
from kubelet_trio.pods import ImageError, ImagePuller
from kubelet_trio.testing import FakeKube, FakeRuntime, TrioClock

API = "credentialprovider.kubelet.k8s.io/v1"
IMAGE = "reg.example/app"
ROLE, TIER = "cloud.example/role", "cloud.example/tier"
# Answers with a login, or with the token that it was given.
GIVES = """\
cat >request; cat request >>asked; echo >>asked
[ "$1" = echo ] && password=$(sed 's/.*"serviceAccountToken":"\\([^"]*\\)".*/\\1/' request)
cat <<END
{"kind": "CredentialProviderResponse", "apiVersion": "%s", "cacheKeyType": "Image",
 "cacheDuration": "1h", "auth": {"reg.example": {"username": "a", "password": "${password:-p}"}}}
END
"""


class World:
    """A cluster with service accounts, and a node with a program."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kube = FakeKube()
        self.account("builder", {ROLE: "puller"})
        self.account("other", {ROLE: "puller", TIER: "gold"})
        self.account("plain", {})
        program = directory / "provider"
        program.write_text(f"#!/bin/sh\ncd {directory}\n{GIVES % API}")
        program.chmod(0o755)

    def account(self, name: str, annotations: dict[str, str]) -> None:
        meta = ObjectMeta(name=name, namespace="default", annotations=annotations)
        self.kube.add(ServiceAccount(metadata=meta))

    def pod(self, name: str, account: str = "builder") -> Pod:
        meta = ObjectMeta(name=name, namespace="default")
        container = Container(name="main", image=IMAGE, imagePullPolicy="IfNotPresent")
        spec = PodSpec(containers=[container], serviceAccountName=account or None)
        return self.kube.add(Pod(metadata=meta, spec=spec))

    def puller(self, name: str, account: str = "builder") -> Puller:
        pod = self.pod(name, account)
        return Puller(pod_key(pod), pod_uid(pod), account)

    def plugin(self, *, cluster: bool = True, echo: bool = False, **attributes: Any) -> Plugin:
        told = {"audience": "reg", "is_required": True, "is_per_token": False, **attributes}
        provider = Provider(
            "provider",
            ("reg.example",),
            0.0,
            API,
            ("echo",) if echo else (),
            tokens=TokenAttributes(**told),
        )
        accounts = ClusterAccounts(self.kube, ClusterTokens(self.kube, TrioClock()))
        directory = self.directory
        return make_plugins([provider], directory, accounts=accounts if cluster else None)[0]

    @property
    def asked(self) -> list[dict[str, Any]]:
        file = self.directory / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_it_is_given_a_token_of_the_pod_and_what_its_account_says(world: World) -> None:
    plugin = world.plugin(required_annotations=(ROLE,), optional_annotations=(TIER,))
    found = await plugin.logins(IMAGE, world.puller("web", "other"))
    assert found == {"reg.example": Login("a", "p")}
    source = found["reg.example"].source
    assert isinstance(source, AccountSource)
    assert (source.namespace, source.name, bool(source.uid)) == ("default", "other", True)
    (request,) = world.asked
    assert request.pop("serviceAccountToken")
    assert request == {
        "kind": "CredentialProviderRequest",
        "apiVersion": API,
        "image": IMAGE,
        "serviceAccountAnnotations": {ROLE: "puller", TIER: "gold"},
    }
    (asked,) = [r for r in world.kube.requests if r.resource == "serviceaccounts/token"]
    assert asked.name == "other"


async def test_answers_are_for_the_pods_of_one_account(world: World) -> None:
    plugin = world.plugin()
    for name, account in (("a", "builder"), ("b", "builder"), ("c", "other")):
        assert await plugin.logins(IMAGE, world.puller(name, account))
    assert len(world.asked) == 2


async def test_answers_may_be_for_one_token(world: World) -> None:
    plugin, web = world.plugin(is_per_token=True), world.puller("web")
    for puller in (web, web, world.puller("other")):
        assert await plugin.logins(IMAGE, puller)
    assert len(world.asked) == 2


async def test_an_account_made_anew_is_another(world: World) -> None:
    plugin = world.plugin()
    before = await plugin.logins(IMAGE, world.puller("a"))
    world.kube.remove(ServiceAccount, "builder")
    world.account("builder", {})
    after = await plugin.logins(IMAGE, world.puller("b"))
    assert len(world.asked) == 2
    assert before["reg.example"].source != after["reg.example"].source


async def test_an_account_without_a_required_annotation_asks_nobody(world: World) -> None:
    plugin = world.plugin(required_annotations=(ROLE,))
    assert await plugin.logins(IMAGE, world.puller("web", "plain")) == {}
    assert world.asked == []


@pytest.mark.parametrize("cluster", [False, True])
async def test_a_pod_without_an_account_needs_a_provider_that_needs_none(
    world: World, cluster: bool
) -> None:
    static = world.puller("static", "")
    assert await world.plugin(cluster=cluster).logins(IMAGE, static) == {}
    found = await world.plugin(cluster=cluster, is_required=False).logins(IMAGE, static)
    assert found["reg.example"].source is None
    assert [request.keys() for request in world.asked] == [{"kind", "apiVersion", "image"}]


async def test_an_account_that_cannot_be_had_is_an_error(world: World) -> None:
    with pytest.raises(ProviderError, match=r"service account default/gone: .*not found"):
        await world.plugin().logins(IMAGE, world.puller("lost", "gone"))
    web = world.puller("web")
    world.kube.go_down()
    with pytest.raises(ProviderError, match="service account default/builder"):
        await world.plugin().logins(IMAGE, web)


async def test_the_token_itself_is_a_login_only_where_answers_are_for_one(world: World) -> None:
    web = world.puller("web")
    with pytest.raises(ProviderError, match="a token as password needs cacheType Token"):
        await world.plugin(echo=True).logins(IMAGE, web)
    assert await world.plugin(echo=True, is_per_token=True).logins(IMAGE, web)


class Told:
    """Takes events."""

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        pass


async def test_what_an_account_pulled_is_for_its_pods(world: World, tmp_path: Path) -> None:
    runtime, clock = FakeRuntime(), SystemClock()
    runtime.images.logins[IMAGE] = "a"
    verification = PullVerification("NeverVerifyPreloadedImages")
    plugin = world.plugin(required_annotations=(ROLE,))
    puller = ImagePuller(
        runtime,
        Told(),
        clock,
        keyring=NodeKeyring(tmp_path, inline_offload, [plugin]),
        access=ImageAccess(tmp_path, runtime, inline_offload, clock, verification),
    )

    async def pulls(pod: Pod) -> int:
        before = len(runtime.images.tried)
        await puller.ensure(pod, next(iter(pod_containers(pod))), v1.PodSandboxConfig())
        return len(runtime.images.tried) - before

    assert await pulls(world.pod("first")) == 1
    assert await pulls(world.pod("second")) == 0
    assert await pulls(world.pod("third", "other")) == 1
    with pytest.raises(ImageError, match="ErrImagePull"):
        await pulls(world.pod("fourth", "plain"))
