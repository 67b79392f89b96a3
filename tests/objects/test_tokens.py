"""Tokens from an API server: the same until due, renewed in time, kept while it is away."""

from __future__ import annotations

import pytest
import trio
from lightkube.models.core_v1 import Container, Pod, PodSpec, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import PodKey, PodUid, pod_uid
from kubelet_trio.objects import ClusterTokens, ObjectError, TokenRequest
from kubelet_trio.testing import FakeKube, TrioClock


class World:
    """A server with a pod, and what its node asks for."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.kube.add(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
        self.uid = self.make_pod()
        self.tokens = ClusterTokens(self.kube, TrioClock())

    def make_pod(self) -> PodUid:
        meta = ObjectMeta(name="web", namespace="default")
        spec = PodSpec(containers=[Container(name="main", image="web")])
        return pod_uid(self.kube.add(Pod(metadata=meta, spec=spec)))

    async def token(self, audience: str = "", seconds: int = 3600) -> str:
        key = PodKey("default", "web")
        return await self.tokens.token(TokenRequest(key, self.uid, "default", audience, seconds))

    @property
    def asked(self) -> int:
        return sum(r.resource == "serviceaccounts/token" for r in self.kube.requests)


async def test_a_token_is_asked_for_once_until_it_is_due(autojump_clock: MockClock) -> None:
    world = World()
    first = await world.token()
    await trio.sleep(0.8 * 3600 - 11)
    assert await world.token() == first
    assert world.asked == 1
    await trio.sleep(12)
    await world.token()
    assert world.asked == 2


async def test_each_audience_has_its_own(autojump_clock: MockClock) -> None:
    world = World()
    await world.token("vault")
    await world.token()
    await world.token("vault")
    assert world.asked == 2


async def test_a_long_one_is_renewed_after_a_day(autojump_clock: MockClock) -> None:
    world = World()
    await world.token(seconds=10 * 24 * 3600)
    await trio.sleep(24 * 3600 + 1)
    await world.token(seconds=10 * 24 * 3600)
    assert world.asked == 2


async def test_while_the_server_is_away_a_valid_one_is_good_enough(
    autojump_clock: MockClock,
) -> None:
    world = World()
    first = await world.token()
    world.kube.go_down()
    await trio.sleep(3000)
    assert await world.token() == first
    await trio.sleep(700)
    with pytest.raises(ObjectError, match="default/default expired and refresh failed"):
        await world.token()
    world.kube.come_back()
    await world.token()


async def test_what_is_refused_is_told(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.remove(ServiceAccount, "default")
    with pytest.raises(ObjectError, match=r"^failed to fetch token: .*not found"):
        await world.token()


async def test_nothing_is_kept_of_a_pod_that_is_gone(autojump_clock: MockClock) -> None:
    world = World()
    await world.token()
    world.tokens.forget(world.uid)
    await world.token()
    assert world.asked == 2
