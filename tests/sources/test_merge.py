from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import wait_all_tasks_blocked
from trio_util import AsyncValue

from kubelet_trio.model import EventType, Latest, ObjectRef, pod_key
from kubelet_trio.sources import Desired, SourceProblem, SourceSnapshot, run_merge
from kubelet_trio.sources.manifest.static import MANIFEST, mark_seen
from kubelet_trio.sources.merge import merge
from tests.sources.make import load, manifest, names


class FakeSource:
    def __init__(self, name: str) -> None:
        self.name = name
        self.origin = f"/{name}"
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    def deliver(self, *pods: Pod) -> None:
        self.delivered = SourceSnapshot(self.name, pods)
        self.snapshots.put(self.delivered)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, str]] = []

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.seen.append((involved.name, type_, reason, message))


def pod(name: str, uid: str = "") -> Pod:
    raw = manifest(name)
    raw["metadata"]["uid"] = uid or f"uid-{name}"
    return load(raw)[0]


def filed(name: str, uid: str, path: str, seen: str = "2026-01-01T00:00:00Z") -> Pod:
    """Return a pod as a file source delivers it."""
    marked = mark_seen(pod(name, uid), seen)
    assert marked.metadata is not None
    assert marked.metadata.annotations is not None
    marked.metadata.annotations[MANIFEST] = path
    return marked


def snapshots(**pods: list[Pod]) -> dict[str, SourceSnapshot]:
    return {name: SourceSnapshot(name, tuple(each)) for name, each in pods.items()}


def merged(**pods: list[Pod]) -> tuple[list[str], list[str]]:
    result = merge(["file", "http"], snapshots(**pods))
    return names(tuple(result.desired.pods.values())), [d.message for d in result.dropped]


def test_pods_of_all_sources_are_wanted() -> None:
    assert merged(file=[pod("a")], http=[pod("b")]) == (["a-node1", "b-node1"], [])


def test_the_first_pod_of_a_name_in_a_source_wins() -> None:
    wanted, dropped = merged(file=[pod("a", "1"), pod("a", "2")])
    assert wanted == ["a-node1"]
    assert dropped == [
        'pod "default/a-node1" in /m/web.yaml has the name of the one in /m/web.yaml: ignored'
    ]


def test_the_first_source_of_a_uid_wins() -> None:
    result = merge(["file", "http"], snapshots(http=[pod("a", "1")], file=[pod("b", "1")]))
    assert names(tuple(result.desired.pods.values())) == ["b-node1"]
    assert [(d.source, d.message) for d in result.dropped] == [
        ("http", 'pod "default/a-node1" in /m/web.yaml has the UID of one from file: ignored')
    ]


def test_one_name_in_two_sources_is_two_pods() -> None:
    wanted, dropped = merged(file=[pod("a", "1")], http=[pod("a", "2")])
    assert wanted == ["a-node1", "a-node1"]
    assert dropped == []


@pytest.mark.parametrize(
    ("delivered", "ready"),
    [({}, False), ({"file": []}, False), ({"file": [], "http": []}, True)],
)
def test_all_is_ready_when_every_source_has_delivered(
    delivered: dict[str, list[Pod]], ready: bool
) -> None:
    assert merge(["file", "http"], snapshots(**delivered)).desired.all_ready is ready


def test_without_sources_all_is_ready() -> None:
    assert merge([], {}).desired == Desired({}, all_ready=True)


async def start(
    nursery: trio.Nursery, *sources: FakeSource, apply: Callable[[Desired], None] | None = None
) -> tuple[list[Desired], Events]:
    applied: list[Desired] = []
    events = Events()

    async def take(desired: Desired) -> None:
        (apply or applied.append)(desired)

    async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await run_merge(sources, take, events, task_status=task_status)

    await nursery.start(run)
    await wait_all_tasks_blocked()
    return applied, events


async def test_each_delivery_is_applied_in_full(nursery: trio.Nursery) -> None:
    file, http = FakeSource("file"), FakeSource("http")
    applied, _ = await start(nursery, file, http)
    assert applied == [Desired()]
    file.deliver(pod("a"))
    await wait_all_tasks_blocked()
    assert (names(tuple(applied[-1].pods.values())), applied[-1].all_ready) == (["a-node1"], False)
    http.deliver()
    await wait_all_tasks_blocked()
    assert (names(tuple(applied[-1].pods.values())), applied[-1].all_ready) == (["a-node1"], True)
    file.deliver()
    await wait_all_tasks_blocked()
    assert not applied[-1].pods
    assert [sorted(desired.delivered) for desired in applied] == [
        [],
        ["file"],
        ["file", "http"],
        ["file", "http"],
    ]


async def test_a_merge_that_starts_again_has_lost_nothing(nursery: trio.Nursery) -> None:
    file, http = FakeSource("file"), FakeSource("http")

    def fail(desired: Desired) -> None:
        if desired.all_ready:
            raise RuntimeError("a bug in whoever applies")

    with pytest.RaisesGroup(pytest.RaisesGroup(RuntimeError)):
        async with trio.open_nursery() as first:
            await start(first, file, http, apply=fail)
            file.deliver(pod("a"))
            http.deliver(pod("b"))
    applied, _ = await start(nursery, file, http)
    assert names(tuple(applied[0].pods.values())) == ["a-node1", "b-node1"]
    assert applied[0].all_ready


async def test_a_dropped_pod_is_told_once(nursery: trio.Nursery) -> None:
    file = FakeSource("file")
    _, events = await start(nursery, file)
    for _ in range(3):
        file.deliver(pod("a", "1"), pod("a", "2"))
        await wait_all_tasks_blocked()
    assert [event[:3] for event in events.seen] == [("a-node1", "Warning", "FailedValidation")]
    file.deliver(pod("a", "1"))
    await wait_all_tasks_blocked()
    file.deliver(pod("a", "1"), pod("a", "2"))
    await wait_all_tasks_blocked()
    assert len(events.seen) == 2


async def _nowhere(_desired: Desired) -> None:
    await trio.lowlevel.checkpoint()


async def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two sources of one name"):
        await run_merge([FakeSource("file"), FakeSource("file")], _nowhere, Events())


def winners(applied: list[Desired]) -> list[list[str]]:
    return [list(desired.pods) for desired in applied]


async def test_a_pod_that_its_manifest_leaves_as_it_was_has_an_event(
    nursery: trio.Nursery,
) -> None:
    file = FakeSource("file")
    _, events = await start(nursery, file)
    kept, other = pod("a"), pod("b")
    file.deliver(kept, other)
    await wait_all_tasks_blocked()
    bad = SourceProblem("file", "/m/a.yaml", "Required value", 1, "spec", 3, 1, (pod_key(kept),))
    for problems in ((bad,), (bad, SourceProblem("file", "/m/c.yaml", "holds no document"))):
        file.problems.value = problems
        await wait_all_tasks_blocked()
    message = "/m/a.yaml:3:1: spec: Required value: this pod runs on as it was before"
    assert events.seen == [("a-node1", "Warning", "FailedValidation", message)]


async def test_what_runs_keeps_its_name_whatever_comes_beside_it(nursery: trio.Nursery) -> None:
    file = FakeSource("file")
    applied, _ = await start(nursery, file)
    web = filed("a", "1", "/m/web.yaml")
    copy = filed("a", "2", "/m/dup.yaml", "2026-01-02T00:00:00Z")
    edited = filed("a", "3", "/m/web.yaml", "2026-01-03T00:00:00Z")
    for pods in ([web], [copy, web], [copy, edited], [copy]):
        file.deliver(*pods)
        await wait_all_tasks_blocked()
    assert winners(applied[-4:]) == [["1"], ["1"], ["3"], ["2"]]
    (problem,) = applied[-2].problems
    assert str(problem) == (
        '/m/dup.yaml: pod "default/a-node1" in /m/dup.yaml has the name of the one in '
        "/m/web.yaml: ignored"
    )
    assert applied[-1].problems == ()


async def test_after_a_restart_what_was_seen_first_runs_on(nursery: trio.Nursery) -> None:
    file = FakeSource("file")
    applied, _ = await start(nursery, file)
    file.deliver(
        filed("a", "2", "/m/dup.yaml", "2026-01-02T00:00:00Z"), filed("a", "1", "/m/web.yaml")
    )
    await wait_all_tasks_blocked()
    assert winners(applied)[-1] == ["1"]


async def test_a_source_is_read_again_once_what_it_delivered_is_applied(
    nursery: trio.Nursery,
) -> None:
    """A program waits for that before it goes on (`embed.source`)."""
    file, http = FakeSource("file"), FakeSource("http")
    applied: list[Desired] = []
    seen: list[tuple[str, int]] = []  # the source that is read, and what was applied by then

    class Watched(Latest[SourceSnapshot]):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        async def wait_value(self) -> SourceSnapshot:
            seen.append((self._name, len(applied)))
            return await super().wait_value()

    file.snapshots, http.snapshots = Watched("file"), Watched("http")
    await start(nursery, file, http, apply=applied.append)
    file.deliver(pod("a"))
    http.deliver(pod("b"))
    await wait_all_tasks_blocked()
    assert [len(desired.pods) for desired in applied] == [0, 2]
    assert sorted(seen) == [("file", 1), ("file", 2), ("http", 1), ("http", 2)]
