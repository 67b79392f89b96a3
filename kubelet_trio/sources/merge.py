"""Merges all sources into the set of pods that this node is to run; its only writer.

`merge` is pure. `run_merge` calls it whenever a source delivers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    Bell,
    EventSink,
    PodKey,
    PodUid,
    get_logger,
    next_due,
    pod_key,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.objects import ApiObject, ObjectKey, object_key
from kubelet_trio.sources.manifest.static import manifest_of, seen_at
from kubelet_trio.sources.source import Desired, Source, SourceProblem, SourceSnapshot

log = get_logger()

NameInSource = tuple[str, PodKey]  # source and name


@dataclass(frozen=True, slots=True)
class DroppedPod:
    """A pod that does not run because another one has its name or UID."""

    source: str
    key: PodKey
    uid: PodUid
    message: str
    manifest: str = ""  # its file, if it comes from one

    def problem(self) -> SourceProblem:
        return SourceProblem(self.source, self.manifest or str(self.key), self.message)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of one merge."""

    desired: Desired
    dropped: Mapping[DroppedPod, Pod]
    hidden: frozenset[ObjectKey] = frozenset()  # objects defined twice: the first one counts

    def holders(self, snapshots: Mapping[str, SourceSnapshot]) -> dict[NameInSource, str]:
        """Return the manifest that provides each name of each source."""
        wanted = self.desired.pods
        return {
            (source, pod_key(pod)): manifest_of(pod)
            for source, snapshot in snapshots.items()
            for pod in snapshot.pods
            if wanted.get(pod_uid(pod)) is pod
        }


def merge(
    order: Sequence[str],
    snapshots: Mapping[str, SourceSnapshot],
    holders: Mapping[NameInSource, str] = MappingProxyType({}),
) -> Merged:
    """Merge the latest snapshots.

    Two pods of one source may not share a name: the manifest in `holders`, which provided the
    name before, wins, else the pod that was seen first, so that a running pod stays. Two pods
    of any sources may not share a UID: the first source in `order` wins. Two sources may use
    the same name: the pods' workers then run one after the other (see `pods`).
    """
    pods: dict[PodUid, Pod] = {}
    owner: dict[PodUid, str] = {}
    dropped: dict[DroppedPod, Pod] = {}
    for source in order:
        given = snapshots[source].pods if source in snapshots else ()
        first = _first_of_names(source, [p for p in given if pod_uid(p) not in pods], holders)
        for pod in given:
            key, uid = pod_key(pod), pod_uid(pod)
            if uid in pods:
                other = pods[uid] if owner[uid] == source else None
                message = f"{_name(source, pod)} has the UID of {_other(owner[uid], other)}"
            elif first[key] is not pod:
                message = f"{_name(source, pod)} has the name of {_other(source, first[key])}"
            else:
                pods[uid], owner[uid] = pod, source
                continue
            drop = DroppedPod(source, key, uid, f"{message}: ignored", manifest_of(pod))
            dropped[drop] = pod
    # Until then what belongs to no known source may still be wanted.
    ready = all(source in snapshots and snapshots[source].is_complete for source in order)
    objects, hidden = _merge_objects(order, snapshots)
    incomplete = {name for name, snapshot in snapshots.items() if not snapshot.is_complete}
    last_known = frozenset(uid for uid in pods if owner[uid] in incomplete)
    delivered = frozenset(snapshots.keys() - incomplete)
    problems = tuple(drop.problem() for drop in dropped)
    kept = frozenset(uid for snapshot in snapshots.values() for uid in snapshot.kept)
    desired = Desired(pods, ready, objects, last_known, delivered, problems, kept)
    return Merged(desired, dropped, hidden)


def _first_of_names(
    source: str, pods: Iterable[Pod], holders: Mapping[NameInSource, str]
) -> dict[PodKey, Pod]:
    """Return the pod that wins each name."""
    first: dict[PodKey, Pod] = {}
    for pod in pods:
        key = pod_key(pod)
        holder = holders.get((source, key), "")

        # `seen_at` is RFC 3339 in UTC, of one length within a source, so it sorts as text.
        # `holder` is a default, because the loop binds the name again.
        def rank(each: Pod, holder: str = holder) -> tuple[bool, str]:
            return manifest_of(each) != holder, seen_at(each)

        if key not in first or rank(pod) < rank(first[key]):
            first[key] = pod
    return first


def _merge_objects(
    order: Sequence[str], snapshots: Mapping[str, SourceSnapshot]
) -> tuple[dict[ObjectKey, ApiObject], frozenset[ObjectKey]]:
    """Return the first object of each key, and the keys that are defined more than once."""
    objects: dict[ObjectKey, ApiObject] = {}
    hidden: set[ObjectKey] = set()
    for source in order:
        for each in snapshots[source].objects if source in snapshots else ():
            key = object_key(each)
            if key in objects:
                hidden.add(key)
            objects.setdefault(key, each)
    return objects, frozenset(hidden)


def _other(source: str, other: Pod | None) -> str:
    manifest = manifest_of(other) if other is not None else ""
    return f"the one in {manifest}" if manifest else f"one from {source}"


def _name(source: str, pod: Pod) -> str:
    manifest = manifest_of(pod)
    return f'pod "{pod_key(pod)}" ' + (f"in {manifest}" if manifest else f"from {source}")


def _tell_kept(problem: SourceProblem, snapshot: SourceSnapshot | None, events: EventSink) -> None:
    """Emit an event on each pod that an invalid manifest leaves as it was."""
    for pod in snapshot.pods if snapshot is not None else ():
        if pod_key(pod) in problem.pods:
            message = f"{problem}: this pod runs on as it was before"
            events.emit(pod_object_ref(pod), "Warning", "FailedValidation", message)


async def _tell_problems(
    source: Source, snapshots: Mapping[str, SourceSnapshot], events: EventSink
) -> None:
    """Emit events on the pods that each new problem of a source leaves as they were."""
    known: frozenset[SourceProblem] = frozenset()
    async for problems in source.problems.eventual_values():
        for problem in (p for p in problems if p not in known):
            _tell_kept(problem, snapshots.get(source.name), events)
        known = frozenset(problems)


def _tell_dropped(drop: DroppedPod, pod: Pod, events: EventSink) -> None:
    log.warning("source.pod_dropped", pod=str(drop.key), podUID=drop.uid, why=drop.message)
    events.emit(pod_object_ref(pod), "Warning", "FailedValidation", drop.message)


class _Merging:
    """Merges the snapshots, which its owner replaces; tells once what others displace."""

    def __init__(
        self, order: Sequence[str], snapshots: Mapping[str, SourceSnapshot], events: EventSink
    ) -> None:
        self._order = order
        self._snapshots = snapshots
        self._events = events
        self._dropped: frozenset[DroppedPod] = frozenset()
        self._hidden: frozenset[ObjectKey] = frozenset()
        self._holders: Mapping[NameInSource, str] = {}

    def desired(self) -> Desired:
        """Merge the snapshots as they are now."""
        merged = merge(self._order, self._snapshots, self._holders)
        self._holders = merged.holders(self._snapshots)
        for drop in [d for d in merged.dropped if d not in self._dropped]:
            _tell_dropped(drop, merged.dropped[drop], self._events)
        self._dropped = frozenset(merged.dropped)
        for key in merged.hidden - self._hidden:
            log.warning("source.object_dropped", object=str(key), why="there is one before it")
        self._hidden = merged.hidden
        return merged.desired


async def run_merge(
    sources: Sequence[Source],
    apply: Callable[[Desired], Awaitable[None]],
    events: EventSink,
    *,
    on_applied: Callable[[], None] = lambda: None,
    period: float = 60.0,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Apply the merged set now and after every delivery, until cancelled.

    `on_applied` is called after each of them, and every `period` seconds in between: at that
    moment every delivery of the sources has been applied. A source's next snapshot is taken only
    then: one that knows when it is read knows what has been applied.

    After a restart it starts again from the sources' last snapshots (`Source.delivered`).
    """
    order = [source.name for source in sources]
    if len(set(order)) < len(order):
        raise ValueError(f"two sources of one name: {order}")
    snapshots = {s.name: s.delivered for s in sources if s.delivered is not None}
    merging = _Merging(order, snapshots, events)
    delivered = Bell()
    applied = trio.Event()  # once what is delivered now has been applied

    async def publish() -> None:
        nonlocal applied
        done, applied = applied, trio.Event()
        await apply(merging.desired())
        on_applied()
        done.set()

    async def pump(source: Source) -> None:
        while True:
            snapshots[source.name] = await source.snapshots.wait_value()
            delivered.ring()
            await applied.wait()

    async with trio.open_nursery() as pumps:
        # Also before any delivery: after a restart with the sources' last snapshots.
        await publish()
        for source in sources:
            pumps.start_soon(pump, source, name=f"merge:{source.name}")
            pumps.start_soon(
                _tell_problems, source, snapshots, events, name=f"problems:{source.name}"
            )
        task_status.started()
        while True:
            with trio.move_on_at(next_due(period)) as waited:
                await delivered.wait_ring()
            if waited.cancelled_caught:
                on_applied()
            else:
                await publish()
