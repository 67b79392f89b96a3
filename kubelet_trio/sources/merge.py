"""All sources together: what this node is to run, and the only writer of that.

`merge` is pure. `run_merge` runs it whenever a source delivers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import EventSink, PodKey, PodUid, pod_key, pod_object_ref, pod_uid
from kubelet_trio.objects import ApiObject, ObjectKey, object_key
from kubelet_trio.sources.types import Desired, Source, SourceSnapshot

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Dropped:
    """A pod that does not run because another has its name or UID."""

    source: str
    key: PodKey
    uid: PodUid
    message: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of one merge."""

    desired: Desired
    dropped: Mapping[Dropped, Pod]
    hidden: frozenset[ObjectKey] = frozenset()  # objects that are there twice: the first counts


def merge(order: Sequence[str], snapshots: Mapping[str, SourceSnapshot]) -> Merged:
    """Put the latest snapshots together.

    Within a source the first pod of a name wins, over all of them the first of a UID;
    `order` says which source comes first. Names may be the same in two sources: the pods'
    workers run one after the other (pods).
    """
    pods: dict[PodUid, Pod] = {}
    owner: dict[PodUid, str] = {}
    dropped: dict[Dropped, Pod] = {}
    for source in order:
        names: set[PodKey] = set()
        for pod in snapshots[source].pods if source in snapshots else ():
            key, uid = pod_key(pod), pod_uid(pod)
            if uid in pods:
                message = f"{_name(source, pod)} has the UID of one from {owner[uid]}"
            elif key in names:
                message = f"{_name(source, pod)} has the name of another one from {source}"
            else:
                pods[uid], owner[uid] = pod, source
                names.add(key)
                continue
            dropped[Dropped(source, key, uid, f"{message}: ignored")] = pod
    ready = all(source in snapshots and snapshots[source].is_complete for source in order)
    objects, hidden = _merge_objects(order, snapshots)
    incomplete = {name for name, snapshot in snapshots.items() if not snapshot.is_complete}
    last_known = frozenset(uid for uid in pods if owner[uid] in incomplete)
    delivered = frozenset(snapshots.keys() - incomplete)
    return Merged(Desired(pods, ready, objects, last_known, delivered), dropped, hidden)


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


def _name(source: str, pod: Pod) -> str:
    return f'pod "{pod_key(pod)}" from {source}'


async def run_merge(
    sources: Sequence[Source],
    apply: Callable[[Desired], None],
    events: EventSink,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Apply the merged set at once and at every delivery, until cancelled.

    It keeps nothing that it cannot have again: started anew, it asks the sources for what
    they delivered last.
    """
    order = [source.name for source in sources]
    if len(set(order)) < len(order):
        raise ValueError(f"two sources of one name: {order}")
    snapshots = {s.name: s.delivered for s in sources if s.delivered is not None}
    dropped: frozenset[Dropped] = frozenset()
    hidden: frozenset[ObjectKey] = frozenset()

    def publish() -> None:
        nonlocal dropped, hidden
        merged = merge(order, snapshots)
        for drop in [d for d in merged.dropped if d not in dropped]:
            log.warning("source.pod_dropped", pod=str(drop.key), uid=drop.uid, why=drop.message)
            involved = pod_object_ref(merged.dropped[drop])
            events.emit(involved, "Warning", "FailedValidation", drop.message)
        dropped = frozenset(merged.dropped)
        for key in merged.hidden - hidden:
            log.warning("source.object_dropped", object=str(key), why="there is one before it")
        hidden = merged.hidden
        apply(merged.desired)

    async def pump(source: Source) -> None:
        while True:
            snapshots[source.name] = await source.snapshots.wait_value()
            publish()

    async with trio.open_nursery() as pumps:
        publish()
        for source in sources:
            pumps.start_soon(pump, source, name=f"merge:{source.name}")
        task_status.started()
        await trio.sleep_forever()
