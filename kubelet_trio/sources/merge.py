"""All sources together: what this node is to run, and the only writer of that.

`merge` is pure. `run_merge` runs it whenever a source delivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    EventSink,
    PodKey,
    PodUid,
    get_logger,
    pod_key,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.objects import ApiObject, ObjectKey, object_key
from kubelet_trio.sources.static import manifest_of, seen_at
from kubelet_trio.sources.types import Desired, Source, SourceProblem, SourceSnapshot

log = get_logger()

Name = tuple[str, PodKey]  # of a source


@dataclass(frozen=True, slots=True)
class Dropped:
    """A pod that does not run because another has its name or UID."""

    source: str
    key: PodKey
    uid: PodUid
    message: str
    manifest: str = ""  # the file that it is in, where it is in one

    def problem(self) -> SourceProblem:
        return SourceProblem(self.source, self.manifest or str(self.key), self.message)


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of one merge."""

    desired: Desired
    dropped: Mapping[Dropped, Pod]
    hidden: frozenset[ObjectKey] = frozenset()  # objects that are there twice: the first counts

    def holders(self, snapshots: Mapping[str, SourceSnapshot]) -> dict[Name, str]:
        """Return the manifest that has each name of each source."""
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
    holders: Mapping[Name, str] = MappingProxyType({}),
) -> Merged:
    """Put the latest snapshots together.

    Within a source one pod of a name wins: that of the manifest in `holders`, which had the name
    before, else the one that was seen first, so that what runs stays. Over all sources the first
    of a UID wins; `order` says which source comes first. Names may be the same in two sources:
    the pods' workers run one after the other (pods).
    """
    pods: dict[PodUid, Pod] = {}
    owner: dict[PodUid, str] = {}
    dropped: dict[Dropped, Pod] = {}
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
            drop = Dropped(source, key, uid, f"{message}: ignored", manifest_of(pod))
            dropped[drop] = pod
    ready = all(source in snapshots and snapshots[source].is_complete for source in order)
    objects, hidden = _merge_objects(order, snapshots)
    incomplete = {name for name, snapshot in snapshots.items() if not snapshot.is_complete}
    last_known = frozenset(uid for uid in pods if owner[uid] in incomplete)
    delivered = frozenset(snapshots.keys() - incomplete)
    problems = tuple(drop.problem() for drop in dropped)
    desired = Desired(pods, ready, objects, last_known, delivered, problems)
    return Merged(desired, dropped, hidden)


def _first_of_names(
    source: str, pods: Iterable[Pod], holders: Mapping[Name, str]
) -> dict[PodKey, Pod]:
    """Return the pod of each name that runs."""
    first: dict[PodKey, Pod] = {}
    for pod in pods:
        key = pod_key(pod)
        holder = holders.get((source, key), "")

        def rank(each: Pod, holder: str = holder) -> tuple[bool, str]:
            return manifest_of(each) != holder, seen_at(each)

        if key not in first or rank(pod) < rank(first[key]):
            first[key] = pod
    return first


def _merge_objects(
    order: Sequence[str], snapshots: Mapping[str, SourceSnapshot]
) -> tuple[dict[ObjectKey, ApiObject], frozenset[ObjectKey]]:
    """Return the objects by key, the first of each, and the keys of which there are more."""
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


async def run_merge(
    sources: Sequence[Source],
    apply: Callable[[Desired], None],
    events: EventSink,
    *,
    turned: Callable[[], None] = lambda: None,
    period: float = 60.0,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Apply the merged set at once and at every delivery, until cancelled.

    `turned` is called after each of them, and every `period` seconds in between: there is
    then nothing that a source has delivered and that was not applied.

    It keeps nothing that it cannot have again: started anew, it asks the sources for what
    they delivered last.
    """
    order = [source.name for source in sources]
    if len(set(order)) < len(order):
        raise ValueError(f"two sources of one name: {order}")
    snapshots = {s.name: s.delivered for s in sources if s.delivered is not None}
    dropped: frozenset[Dropped] = frozenset()
    hidden: frozenset[ObjectKey] = frozenset()
    holders: Mapping[Name, str] = {}

    def publish() -> None:
        nonlocal dropped, hidden, holders
        merged = merge(order, snapshots, holders)
        holders = merged.holders(snapshots)
        for drop in [d for d in merged.dropped if d not in dropped]:
            log.warning("source.pod_dropped", pod=str(drop.key), uid=drop.uid, why=drop.message)
            involved = pod_object_ref(merged.dropped[drop])
            events.emit(involved, "Warning", "FailedValidation", drop.message)
        dropped = frozenset(merged.dropped)
        for key in merged.hidden - hidden:
            log.warning("source.object_dropped", object=str(key), why="there is one before it")
        hidden = merged.hidden
        apply(merged.desired)
        turned()

    async def pump(source: Source) -> None:
        while True:
            snapshots[source.name] = await source.snapshots.wait_value()
            publish()

    async with trio.open_nursery() as pumps:
        publish()
        for source in sources:
            pumps.start_soon(pump, source, name=f"merge:{source.name}")
        task_status.started()
        while True:
            await trio.sleep(period)
            turned()
