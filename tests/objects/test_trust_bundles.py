"""Trust anchors of a fake API server's ClusterTrustBundles, as volumes ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from lightkube.models.certificates_v1beta1 import ClusterTrustBundle
from lightkube.models.core_v1 import ClusterTrustBundleProjection
from trio.testing import MockClock

from kubelet_trio.model import PodUid
from kubelet_trio.objects import ClusterTrustBundles, NoTrustBundles, ObjectError
from kubelet_trio.objects.pem import certificates_pem, pem_blocks
from kubelet_trio.supervision import DynamicSupervisor
from kubelet_trio.testing import FakeKube

WEB, DB = PodUid("u-web"), PodUid("u-db")
SIGNER = "example.com/ca"
A, B, C = b"anchor a", b"anchor b", b"anchor c"


class World:
    """An API server with bundles, and a node that reads them."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.tree = DynamicSupervisor("projections")
        self.changes: list[PodUid] = []
        self.bundles = ClusterTrustBundles(self.kube.node("node"), self.tree, self.changes.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.tree.run)
            yield
            nursery.cancel_scope.cancel()

    def add(self, name: str, *anchors: bytes, signer: str = "", **labels: str) -> None:
        bundle = {
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "signerName": signer or None,
                "trustBundle": f"words\n{certificates_pem(anchors).decode()}",
            },
        }
        self.kube.add(msgspec.convert(bundle, ClusterTrustBundle))

    async def anchors(self, uid: PodUid = WEB, **source: Any) -> list[bytes]:
        document = {"path": "ca.pem", **source}
        projection = msgspec.convert(document, ClusterTrustBundleProjection)
        found = await self.bundles.anchors(projection, uid)
        assert found == certificates_pem(pem_blocks(found.decode()))
        return list(pem_blocks(found.decode()))

    async def refusal(self, **source: Any) -> str:
        """Return the text of the error instead of anchors."""
        with pytest.raises(ObjectError) as caught:
            await self.anchors(**source)
        return str(caught.value)

    @property
    def watches(self) -> int:
        return sum(
            r.verb == "watch" and r.resource == "clustertrustbundles" for r in self.kube.requests
        )


@pytest.fixture
def world() -> World:
    return World()


async def test_a_bundle_is_found_by_its_name(world: World, autojump_clock: MockClock) -> None:
    world.add("one", A, B, A)
    world.add("other", C, signer=SIGNER)
    async with world.running():
        assert sorted(await world.anchors(name="one")) == [A, B]
        # A name needs no signer, whatever the bundle's is.
        assert await world.anchors(name="other") == [C]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, [A, B]),
        ({"matchLabels": {"env": "live"}}, [A]),
        ({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["live"]}]}, [B]),
    ],
)
async def test_bundles_are_found_by_signer_and_labels(
    world: World, autojump_clock: MockClock, selector: dict[str, Any], expected: list[bytes]
) -> None:
    world.add("one", A, signer=SIGNER, env="live")
    world.add("two", B, signer=SIGNER, env="test")
    world.add("three", C, signer="example.com/other", env="live")
    async with world.running():
        found = await world.anchors(signerName=SIGNER, labelSelector=selector)
        assert sorted(found) == expected


NO_MATCH = "combination of signerName and labelSelector matched zero ClusterTrustBundles"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"name": "none"},
            "while getting ClusterTrustBundle: "
            'clustertrustbundle.certificates.k8s.io "none" not found',
        ),
        ({"signerName": "example.com/none", "labelSelector": {}}, NO_MATCH),
        # Without a selector nothing is selected.
        ({"signerName": SIGNER}, NO_MATCH),
    ],
)
async def test_what_is_missing_is_told_unless_it_is_optional(
    world: World, autojump_clock: MockClock, source: dict[str, Any], message: str
) -> None:
    world.add("one", A, signer=SIGNER)
    async with world.running():
        assert await world.refusal(**source) == message
        assert await world.anchors(**source, optional=True) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "ClusterTrustBundle projection requires either name or signerName to be set"),
        (
            {
                "signerName": SIGNER,
                "optional": True,
                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]},
            },
            'while parsing label selector: "Gt" is not a valid label selector operator',
        ),
    ],
)
async def test_a_malformed_source_is_told(
    world: World, autojump_clock: MockClock, source: dict[str, Any], message: str
) -> None:
    world.add("one", A, signer=SIGNER)
    async with world.running():
        assert await world.refusal(**source) == message


async def test_the_order_is_stable_and_another_after_a_restart(
    world: World, autojump_clock: MockClock
) -> None:
    many = [b"anchor %d" % number for number in range(20)]
    world.add("one", *many)
    async with world.running():
        first = await world.anchors(name="one")
        assert await world.anchors(name="one") == first
        restarted = ClusterTrustBundles(world.kube, world.tree)
        world.bundles.forget(WEB)
        world.bundles = restarted
        assert await world.anchors(name="one") != first


async def test_pods_are_woken_when_bundles_change(world: World, autojump_clock: MockClock) -> None:
    world.add("one", A)
    async with world.running():
        await world.anchors(WEB, name="one")
        await world.anchors(DB, name="one")
        await trio.sleep(1)
        world.changes.clear()
        bundle = certificates_pem([B]).decode()
        world.kube.change(ClusterTrustBundle, "one", {"spec": {"trustBundle": bundle}})
        await trio.sleep(1)
        assert world.changes == [DB, WEB]
        assert await world.anchors(name="one") == [B]
        world.kube.remove(ClusterTrustBundle, "one")
        await trio.sleep(1)
        assert await world.anchors(name="one", optional=True) == []


async def test_there_is_one_watch_while_a_pod_needs_it(
    world: World, autojump_clock: MockClock
) -> None:
    world.add("one", A)
    async with world.running():
        assert world.watches == 0
        for uid in (WEB, DB):
            await world.anchors(uid, name="one")
        assert world.watches == 1
        world.bundles.forget(WEB)
        assert world.tree.names() == ("trust-bundles",)
        world.bundles.forget(DB)
        await trio.sleep(1)
        assert world.tree.names() == ()
        # The next pod finds what has changed meanwhile.
        world.add("two", B)
        assert await world.anchors(name="two") == [B]


async def test_without_the_server_pods_wait_for_a_moment_and_are_woken_later(
    world: World, autojump_clock: MockClock
) -> None:
    world.add("one", A)
    world.kube.go_down()
    async with world.running():
        began = trio.current_time()
        with pytest.raises(ObjectError, match=r"^ClusterTrustBundle informer has not yet synced: "):
            await world.anchors(name="one")
        assert trio.current_time() - began == pytest.approx(10)
        with pytest.raises(ObjectError, match="not yet synced"):
            await world.anchors(name="one")
        assert trio.current_time() - began == pytest.approx(10)
        world.kube.come_back()
        await trio.sleep(60)
        assert world.changes == [WEB]
        assert await world.anchors(name="one") == [A]


async def test_a_server_that_goes_away_later_does_not_matter(
    world: World, autojump_clock: MockClock
) -> None:
    world.add("one", A)
    async with world.running():
        await world.anchors(name="one")
        world.kube.go_down()
        await trio.sleep(100)
        assert await world.anchors(name="one") == [A]


async def test_a_standalone_node_has_none() -> None:
    source = ClusterTrustBundleProjection(path="ca.pem", name="one")
    with pytest.raises(ObjectError, match="not supported in static kubelet mode"):
        await NoTrustBundles().anchors(source, WEB)
