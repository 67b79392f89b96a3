"""The reflector, on a fake API server in virtual time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import ConfigMap, Container, Pod, PodSpec
from lightkube.models.meta_v1 import ManagedFieldsEntry, ObjectMeta
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.kube import KubeError, ObjectList, Reflector, ServerFeatures
from kubelet_trio.testing import FakeKube, FakeKubeClient, KubeFaultKind


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name), data=data or None)


def pod(name: str, node: str) -> Pod:
    spec = PodSpec(containers=[Container(name="main", image="i")], nodeName=node)
    return Pod(metadata=ObjectMeta(name=name), spec=spec)


@asynccontextmanager
async def following(reflector: Reflector[ConfigMap]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(reflector.run)
        yield
        nursery.cancel_scope.cancel()


def contents(reflector: Reflector[ConfigMap]) -> dict[str, dict[str, str]]:
    return {name: obj.data or {} for (_, name), obj in reflector.objects.items()}


def verbs(kube: FakeKube) -> list[str]:
    return [request.verb for request in kube.requests]


async def until(reflector: Reflector[ConfigMap], expected: dict[str, dict[str, str]]) -> None:
    with trio.fail_after(600):
        while contents(reflector) != expected or not reflector.synced.is_set():
            await reflector.wait_delivery()
        await reflector.connected.wait_value(True)


@pytest.fixture(params=[True, False], ids=["streaming", "lists"])
def kube(request: pytest.FixtureRequest) -> FakeKube:
    fake = FakeKube()
    fake.streaming_lists = request.param
    return fake


def reflector_of(kube: FakeKube, **options: object) -> Reflector[ConfigMap]:
    return Reflector(kube, ConfigMap, namespace="default", **options)  # type: ignore[arg-type]


async def test_what_is_there_comes_first_and_changes_after(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    kube.add(config_map("a", x="1"))
    kube.add(config_map("b"))
    reflector = reflector_of(kube)
    async with following(reflector):
        first = await reflector.wait_delivery()
        assert first.changed == {("default", "a"), ("default", "b")}
        assert set(first.objects) == first.changed
        kube.change(ConfigMap, "a", {"data": {"x": "2"}})
        second = await reflector.wait_delivery()
        assert second.changed == {("default", "a")}
        assert contents(reflector) == {"a": {"x": "2"}, "b": {}}
        # What was handed out is a moment that stays.
        kept = first.objects["default", "a"].data
        assert kept == {"x": "1"}
        kube.remove(ConfigMap, "b")
        third = await reflector.wait_delivery()
        assert third.changed == {("default", "b")}
        assert contents(reflector) == {"a": {"x": "2"}}
        assert set(first.objects) == {("default", "a"), ("default", "b")}


async def test_nothing_at_all_is_delivered_too(kube: FakeKube, autojump_clock: MockClock) -> None:
    reflector = reflector_of(kube)
    async with following(reflector):
        delivery = await reflector.wait_delivery()
    assert (dict(delivery.objects), delivery.changed) == ({}, frozenset())


async def test_changes_in_between_are_one_delivery(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    reflector = reflector_of(kube)
    async with following(reflector):
        await reflector.wait_delivery()
        first = kube.add(config_map("a", x="1"))
        kube.remove(ConfigMap, "a")
        second = kube.add(config_map("a", x="2"))
        kube.add(config_map("b"))
        await wait_all_tasks_blocked()
        delivery = await reflector.wait_delivery()
    assert delivery.changed == {("default", "a"), ("default", "b")}
    found = delivery.objects["default", "a"].metadata
    assert found is not None
    assert first.metadata is not None
    assert second.metadata is not None
    assert found.uid == second.metadata.uid != first.metadata.uid


async def test_only_what_the_selector_lets_through(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    kube.add(pod("mine", "n1"))
    kube.add(pod("other", "n2"))
    reflector = Reflector(kube.node("n1"), Pod, field_selector="spec.nodeName=n1")
    async with trio.open_nursery() as nursery:
        await nursery.start(reflector.run)
        assert set((await reflector.wait_delivery()).objects) == {("default", "mine")}
        nursery.cancel_scope.cancel()


async def test_a_cut_watch_goes_on_where_it_was(kube: FakeKube, autojump_clock: MockClock) -> None:
    kube.add(config_map("a"))
    reflector = reflector_of(kube)
    async with following(reflector):
        await until(reflector, {"a": {}})
        kube.requests.clear()
        kube.cut()
        kube.add(config_map("b"))
        await until(reflector, {"a": {}, "b": {}})
    assert verbs(kube) == ["watch"]


async def test_forgotten_changes_are_listed_anew(kube: FakeKube, autojump_clock: MockClock) -> None:
    kube.add(config_map("a"))
    reflector = reflector_of(kube)
    async with following(reflector):
        await until(reflector, {"a": {}})
        kube.requests.clear()
        kube.cut()
        kube.remove(ConfigMap, "a")
        kube.add(config_map("b"))
        kube.compact()
        await until(reflector, {"b": {}})
        await reflector.connected.wait_value(True)
    expected = ["watch", "watch"] if kube.streaming_lists else ["watch", "list", "watch"]
    assert verbs(kube) == expected


async def test_bookmarks_spare_a_list(autojump_clock: MockClock) -> None:
    """Changes of others move the version on; what is then forgotten was seen."""
    kube = FakeKube()
    reflector = reflector_of(kube)
    async with following(reflector):
        await reflector.wait_delivery()
        kube.add(pod("elsewhere", "n1"))
        await trio.sleep(61)
        kube.compact()
        kube.requests.clear()
        kube.cut()
        kube.add(config_map("a"))
        await until(reflector, {"a": {}})
    assert verbs(kube) == ["watch"]


async def test_a_server_that_is_down_changes_nothing(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    kube.add(config_map("a"))
    reflector = reflector_of(kube)
    async with following(reflector):
        await until(reflector, {"a": {}})
        kube.go_down()
        await trio.sleep(3600)
        assert contents(reflector) == {"a": {}}
        assert not reflector.connected.value
        assert "connection refused" in reflector.trouble
        kube.come_back()
        kube.add(config_map("b"))
        await until(reflector, {"a": {}, "b": {}})
        assert reflector.connected.value
        assert reflector.trouble == ""


async def test_waits_double_up_to_a_cap(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.go_down()
    reflector = reflector_of(kube)
    async with following(reflector):
        await trio.sleep(600)
    times = [request.time for request in kube.requests if request.verb == "watch"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    for gap, base in zip(gaps, (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30), strict=False):
        assert base <= gap <= 2 * base
    assert all(30 <= gap <= 60 for gap in gaps[6:])


async def test_a_hanging_server_is_left_for_another_try(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    """A watch on which nothing comes, no bookmark either, is dead."""
    kube.add(config_map("a"))
    reflector = reflector_of(kube, idle_limit=150.0)
    async with following(reflector):
        await until(reflector, {"a": {}})
        kube.requests.clear()
        kube.hang()
        kube.add(config_map("b"))
        await trio.sleep(200)
        assert verbs(kube)[:1] == ["list"]
        assert not reflector.connected.value
        kube.come_back()
        await until(reflector, {"a": {}, "b": {}})


async def test_bookmarks_keep_a_quiet_watch_alive(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    reflector = reflector_of(kube)
    async with following(reflector):
        await reflector.wait_delivery()
        await reflector.connected.wait_value(True)
        kube.requests.clear()
        await trio.sleep(3000)
    assert kube.requests == []


async def test_retry_after_is_obeyed(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    refusal = KubeError(429, "TooManyRequests", "too many requests", retry_after=45.0)
    kube.faults.add(KubeFaultKind.ERROR, "watch", error=refusal)
    reflector = reflector_of(kube)
    async with following(reflector):
        await reflector.wait_delivery()
    first, second = (request.time for request in kube.requests[:2])
    assert second - first >= 45


async def test_a_server_without_streaming_lists_is_asked_once(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.streaming_lists = False
    reflector = reflector_of(kube)
    async with following(reflector):
        await reflector.wait_delivery()
        await reflector.connected.wait_value(True)
        assert verbs(kube) == ["watch", "list", "watch"]
        kube.requests.clear()
        kube.cut()
        kube.add(config_map("a"))
        kube.compact()
        await until(reflector, {"a": {}})
        assert verbs(kube)[:2] == ["watch", "list"]


async def test_reflectors_share_what_a_server_lacks(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.streaming_lists = False
    features = ServerFeatures()
    for expected in (["watch", "list", "watch"], ["list", "watch"]):
        reflector = reflector_of(kube, features=features)
        kube.requests.clear()
        async with following(reflector):
            await reflector.wait_delivery()
            await reflector.connected.wait_value(True)
        assert verbs(kube) == expected


async def test_reflectors_that_start_together_ask_once_what_a_server_lacks(
    autojump_clock: MockClock,
) -> None:
    kube = FakeKube()
    kube.streaming_lists = False
    features = ServerFeatures()
    reflectors = [reflector_of(kube, features=features) for _ in range(5)]
    async with contextlib.AsyncExitStack() as stack:
        for reflector in reflectors:
            await stack.enter_async_context(following(reflector))
        for reflector in reflectors:
            await reflector.wait_delivery()
            await reflector.connected.wait_value(True)
    assert sorted(verbs(kube)) == ["list"] * 5 + ["watch"] * 6


async def test_one_that_has_no_answer_leaves_the_asking_to_the_next(
    autojump_clock: MockClock,
) -> None:
    kube = FakeKube()
    kube.streaming_lists = False
    kube.faults.add(KubeFaultKind.ERROR, "watch", error=KubeError(500, "InternalError", "no"))
    features = ServerFeatures()
    reflectors = [reflector_of(kube, features=features) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for reflector in reflectors:
            await stack.enter_async_context(following(reflector))
        for reflector in reflectors:
            await reflector.wait_delivery()
            await reflector.connected.wait_value(True)
    assert not features.streaming_lists
    assert verbs(kube).count("watch") == 1 + 1 + 3, "the failure, the refusal, the watches"


async def test_a_server_that_is_slow_to_refuse_one_holds_up_no_other(
    autojump_clock: MockClock,
) -> None:
    kube = FakeKube()
    kube.faults.add(KubeFaultKind.HANG, "watch", times=1)
    features = ServerFeatures()
    first, second = (reflector_of(kube, features=features) for _ in range(2))
    async with following(first):
        await wait_all_tasks_blocked()
        began = trio.current_time()
        async with following(second):
            await second.wait_delivery()
        assert trio.current_time() - began < 5
        assert not first.synced.is_set()


async def test_a_server_that_ignores_what_it_was_asked(autojump_clock: MockClock) -> None:
    """Its watch tells what there is, and then nothing, without a word on the end of it."""
    kube = FakeKube()
    kube.add(config_map("a"))

    class Ignorant(FakeKubeClient):
        def watch(self, model: type[Any], **options: Any) -> Any:
            return super().watch(model, **{**options, "send_initial_events": False})

    reflector = Reflector(Ignorant(kube.server, kube.desk), ConfigMap, namespace="default")
    async with following(reflector):
        await until(reflector, {"a": {}})
    assert verbs(kube) == ["watch", "list", "watch"]


@pytest.mark.parametrize("code", [500, 503, 504])
async def test_a_list_takes_the_place_of_a_streaming_one_that_fails(
    code: int, autojump_clock: MockClock
) -> None:
    """API servers of 1.36 whose etcd is older than 3.4.31 or 3.5.13 fail all of them with 500."""
    kube = FakeKube()
    kube.add(config_map("a"))

    class Failing(FakeKubeClient):
        def watch(self, model: type[Any], **options: Any) -> Any:
            if options.get("send_initial_events"):
                raise KubeError(code, "", "the required storage feature is disabled")
            return super().watch(model, **options)

    reflector = Reflector(Failing(kube.server, kube.desk), ConfigMap, namespace="default")
    began = trio.current_time()
    async with following(reflector):
        await until(reflector, {"a": {}})
        assert trio.current_time() == began
        await reflector.connected.wait_value(True)
        assert verbs(kube) == ["list", "watch"]
        assert reflector.trouble == ""
        kube.cut()
        kube.add(config_map("b"))
        kube.compact()
        await until(reflector, {"a": {}, "b": {}})


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("code", [0, 403, 500])
async def test_lists_take_the_place_of_watches_that_nobody_answers(
    streams: bool, code: int, autojump_clock: MockClock
) -> None:
    """As behind a proxy that holds back an answer until all of it is there; or all are refused."""
    kube = FakeKube()
    kube.streaming_lists = streams
    kube.add(config_map("a"))
    kind = KubeFaultKind.ERROR if code else KubeFaultKind.HANG
    kube.faults.add(kind, "watch", times=None, error=KubeError(code, "No", "no") if code else None)
    reflector = reflector_of(kube)
    async with following(reflector):
        with trio.fail_after(60):
            await reflector.synced.wait()
        assert contents(reflector) == {"a": {}}
        kube.add(config_map("b"))
        kube.remove(ConfigMap, "a")
        await trio.sleep(120)
        assert contents(reflector) == {"b": {}}
        lists = verbs(kube).count("list")
        await trio.sleep(600)
        assert lists < verbs(kube).count("list") <= lists + 20
        kube.faults.clear()
        await trio.sleep(60)
        kube.requests.clear()
        kube.add(config_map("c"))
        await wait_all_tasks_blocked()
        assert contents(reflector) == {"b": {}, "c": {}}
        await trio.sleep(600)
        assert "list" not in verbs(kube)


async def test_a_server_that_refuses_for_a_moment_is_asked_for_no_list(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    """As one that starts anew does to all watches of all nodes."""
    kube.add(config_map("a"))
    reflector = reflector_of(kube)
    async with following(reflector):
        await until(reflector, {"a": {}})
        kube.requests.clear()
        starting = KubeError(503, "ServiceUnavailable", "starting")
        kube.faults.add(KubeFaultKind.ERROR, "watch", times=2, error=starting)
        kube.add(config_map("b"))
        kube.cut()
        await until(reflector, {"a": {}, "b": {}})
        assert set(verbs(kube)) == {"watch"}


async def test_a_watch_that_falls_silent_is_followed_by_a_list(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    kube.add(config_map("a"))
    reflector = reflector_of(kube)
    async with following(reflector):
        await until(reflector, {"a": {}})
        kube.mute()
        kube.add(config_map("b"))
        await trio.sleep(155)
        assert contents(reflector) == {"a": {}, "b": {}}


async def test_watches_that_fall_silent_again_and_again_are_told_once(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    """A server without bookmarks and a kind that nobody changes: no fault of either."""
    reflector = reflector_of(kube)
    async with following(reflector):
        await until(reflector, {})
        kube.mute()
        with capture_logs() as logs:
            await trio.sleep(500)
            assert len(logs) == 1
            kube.come_back()
            await trio.sleep(200)  # the last mute watch has ended, the next has had a bookmark
            kube.mute()
            await trio.sleep(200)
        assert [entry["event"] for entry in logs] == ["kube.reflector"] * 2


async def test_pages_whose_moment_is_forgotten(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.streaming_lists = False
    for number in range(1200):
        kube.add(config_map(f"c{number}"))
    reflector = reflector_of(kube)
    # A first list that failed as too old makes the next a consistent one, in pages.
    from kubelet_trio.kube import GoneError

    kube.faults.add(KubeFaultKind.ERROR, "list", error=GoneError(410, "Expired", "too old"))
    original = kube.server.list

    def compacting(*args: object, **kwargs: object) -> object:
        page = original(*args, **kwargs)  # type: ignore[arg-type]
        if page.continue_token:
            kube.add(config_map(f"late-{page.version}"))
            kube.compact()
        return page

    kube.server.list = compacting  # type: ignore[method-assign, assignment]
    async with following(reflector):
        delivery = await reflector.wait_delivery()
    assert len(delivery.objects) >= 1200
    assert {("default", f"c{n}") for n in range(1200)} <= set(delivery.objects)


@pytest.mark.parametrize("seconds", [0.1, 5, 45])
async def test_cancelling_leaves_nothing_behind(seconds: float, autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.latency = 10
    reflector = reflector_of(kube)
    with trio.move_on_after(seconds):
        await reflector.run()
    assert trio.current_time() == pytest.approx(seconds)


async def test_only_what_is_wanted_of_an_object_is_kept(
    kube: FakeKube, autojump_clock: MockClock
) -> None:
    fields = [ManagedFieldsEntry(manager="kubectl", operation="Update")]
    before = config_map("a", x="1")
    assert before.metadata is not None
    before.metadata.managedFields = fields
    kube.add(before)

    def without_data(obj: ConfigMap) -> ConfigMap:
        return ConfigMap(metadata=obj.metadata)

    plain, reduced = reflector_of(kube), reflector_of(kube, transform=without_data)
    async with following(plain), following(reduced):
        await until(plain, {"a": {"x": "1"}})
        await until(reduced, {"a": {}})
        kube.change(ConfigMap, "a", {"data": {"x": "2"}})
        await until(plain, {"a": {"x": "2"}})
        for reflector in (plain, reduced):
            kept = reflector.objects["default", "a"].metadata
            assert kept is not None
            assert kept.managedFields is None
        assert contents(reduced) == {"a": {}}
    found = kube.find(ConfigMap, "a")
    assert found is not None
    assert found.metadata is not None
    assert found.metadata.managedFields == fields


async def test_an_object_without_metadata_is_no_answer(autojump_clock: MockClock) -> None:
    class Careless(FakeKubeClient):
        async def list(self, model: type[Any], **options: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return ObjectList((ConfigMap(),), "7")

    kube = FakeKube()
    api = Careless(kube.server, kube.desk)
    reflector = Reflector(api, ConfigMap, features=ServerFeatures(streaming_lists=False))
    async with following(reflector):
        await trio.sleep(60)
    assert "without metadata" in reflector.trouble
    assert not reflector.synced.is_set()
