"""When the keeper writes, and what it says where the server is silent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
import trio
from lightkube.models.core_v1 import Container, EnvFromSource, Pod, PodSpec, Secret, SecretEnvSource
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import PodKey, PodUid, pod_uid
from kubelet_trio.objects import KnownToken, TokenRequest, secret_key
from kubelet_trio.offline import Folder, Keeper
from kubelet_trio.offline.files import object_item, pod_item

P = ParamSpec("P")
T = TypeVar("T")
KEY = secret_key("default", "secret")


def pod(uid: str = "1", **labels: str) -> Pod:
    source = EnvFromSource(secretRef=SecretEnvSource(name="secret"))
    return Pod(
        metadata=ObjectMeta(name=f"p{uid}", namespace="default", uid=uid, labels=labels),
        spec=PodSpec(containers=[Container(name="main", image="web", envFrom=[source])]),
    )


def secret(**data: str) -> Secret:
    return Secret(metadata=ObjectMeta(name="secret", namespace="default"), data=data)


REQUEST = TokenRequest(PodKey("default", "p1"), PodUid("1"), "default")
TOKEN = KnownToken("text", 1.0, 2.0)


class World:
    """One directory; keepers come and go."""

    def __init__(self, base: Path) -> None:
        self.path = base / "offline"
        self.written_at: list[float] = []
        self.is_broken = False

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint()
        if self.is_broken:
            raise OSError(28, "No space left on device")
        result = fn(*args, **kwargs)
        if isinstance(result, int) and result:
            self.written_at.append(trio.current_time())
        return result

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Keeper]:
        keeper = Keeper(Folder(self.path), self.offload)
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            yield keeper
            nursery.cancel_scope.cancel()

    def held(self) -> dict[Any, Any]:
        return Folder(self.path).load()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def note(keeper: Keeper, *pods: Pod) -> None:
    keeper.note_pods({pod_uid(p): p for p in pods})


async def test_news_that_come_together_are_one_pass_and_passes_keep_their_distance(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as keeper:
        for i in range(200):
            note(keeper, pod(step=str(i)))
            keeper.note_object(KEY, secret(step=str(i)))
            await trio.sleep(0.1)
        await trio.sleep(10)
    assert 2 <= len(world.written_at) <= 5
    held = world.held()
    assert held[pod_item("1")].metadata.labels == {"step": "199"}
    assert held[object_item(KEY)].data == {"step": "199"}


async def test_nothing_is_written_where_nothing_is_another(
    world: World, autojump_clock: MockClock
) -> None:
    for _ in range(2):  # the second finds all of it there
        async with world.running() as keeper:
            for _ in range(50):
                note(keeper, pod())
                keeper.note_object(KEY, secret(a="1"))
                keeper.note_services(())
                keeper.note_token(REQUEST, TOKEN)
                await trio.sleep(3)
    assert len(world.written_at) == 1


async def test_nothing_is_written_or_removed_before_the_server_has_listed_pods(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as keeper:
        note(keeper, pod())
        await trio.sleep(5)
    before = world.held()
    async with world.running() as keeper:
        keeper.note_services(())
        keeper.note_object(KEY, None)
        await trio.sleep(60)
        assert world.held() == before
        note(keeper)
        await trio.sleep(5)
    assert [item.kind for item in world.held()] == ["Services"]


async def test_a_silent_server_is_stood_in_for_until_it_speaks(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as keeper:
        assert keeper.fall_back() is None  # nothing is known
        note(keeper, pod())
        keeper.note_object(KEY, secret(a="1"))
        keeper.note_token(REQUEST, TOKEN)
        await trio.sleep(5)
        assert keeper.fall_back() is None  # the server has spoken
    async with world.running() as keeper:
        assert not keeper.is_cut_off  # the server may yet speak
        assert [pod_uid(p) for p in keeper.fall_back() or ()] == ["1"]
        assert keeper.is_cut_off
        assert keeper.last_object(KEY) == secret(a="1")
        assert keeper.last_token(REQUEST) == TOKEN
        assert keeper.last_services() is None
        note(keeper, pod())
        assert not keeper.is_cut_off
        await trio.sleep(60)
        assert keeper.last_object(KEY) == secret(a="1")  # it has not spoken of that one
        keeper.note_object(KEY, secret(a="2"))
        assert keeper.last_object(KEY) is None
        note(keeper)
        await trio.sleep(60)
        assert keeper.last_token(REQUEST) is None


async def test_a_pods_tokens_are_kept_together(world: World, autojump_clock: MockClock) -> None:
    other = replace(REQUEST, audience="vault")
    async with world.running() as keeper:
        note(keeper, pod())
        keeper.note_token(REQUEST, TOKEN)
        keeper.note_token(other, TOKEN)
        await trio.sleep(60)
    fresh = replace(TOKEN, text="fresh")
    async with world.running() as keeper:
        note(keeper, pod())
        keeper.note_token(other, fresh)
        await trio.sleep(60)
    async with world.running() as keeper:
        assert keeper.last_token(REQUEST) == TOKEN
        assert keeper.last_token(other) == fresh


async def test_what_is_known_is_written_when_the_agent_ends(
    world: World, autojump_clock: MockClock
) -> None:
    keeper = Keeper(Folder(world.path), world.offload)
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            note(keeper, pod())
            keeper.stop()
    assert [item.name for item in world.held()] == ["1"]


async def test_objects_whose_workers_have_ended_stay_while_their_pods_are_bound(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as keeper:
        note(keeper, pod())
        keeper.note_object(KEY, secret(a="1"))
        await trio.sleep(10)
        keeper.drop_object(KEY)  # the node's shutdown has ended them
        note(keeper, pod(ended="true"))
        await trio.sleep(10)
        assert {item.kind for item in world.held()} == {"Pod", "Secret"}
        note(keeper)
        await trio.sleep(10)
        assert world.held() == {}


async def test_a_full_disk_is_tried_again_with_all_that_is_news(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as keeper:
        note(keeper, pod())
        world.is_broken = True
        await trio.sleep(100)
        note(keeper, pod(), pod("2"))
        await trio.sleep(100)
        world.is_broken = False
        await trio.sleep(60)
    assert {item.name for item in world.held()} == {"1", "2"}
