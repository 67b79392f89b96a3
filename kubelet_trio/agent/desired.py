"""The pipeline of desired pods, from the sources to the pod workers, with one writer.

documents   objects from manifests, before the pods that refer to them
claims      of devices, which a node without an API server allocates itself
overhead    of a static pod's runtime class, as an API server's admission would add it
starts      the start of the clock for the pod start metrics
mark        the annotation by which an embedded agent recognizes its pods in the runtime
registry    starts, updates and terminates the pod workers
mirrors     the mirror pods of static pods, on a node of a cluster
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import trio
from trio_util import AsyncValue

from kubelet_trio.model import INSTANCE, EventSink, metadata, pod_annotations
from kubelet_trio.objects import LocalObjects
from kubelet_trio.pods import PodRegistry
from kubelet_trio.server import ProblemInfo, SourceInfo
from kubelet_trio.sources import Desired, Source, run_merge, with_overhead
from kubelet_trio.status import PodStarts


class DesiredPods:
    """Merges the sources and applies the result (the child `merge` of `sources`).

    `value` is the current result: the desired pods.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        documents: LocalObjects,
        starts: PodStarts,
        registry: PodRegistry,
        events: EventSink,
        *,
        sync_period: float,
        instance: str = "",
        want_mirrors: Callable[[Desired], None] = lambda _desired: None,
        with_claims: Callable[[Desired], Desired] = lambda desired: desired,
        note: Callable[[Desired], None] = lambda _desired: None,
    ) -> None:
        """Args:
        sources: the sources of pods.
        documents: the objects from manifests.
        starts: measures the starts of pods.
        registry: the pod workers.
        events: for pods that are in conflict with others.
        sync_period: seconds between two turns without a delivery.
        instance: the mark of an embedded agent's pods; "": none.
        want_mirrors: called with the desired pods, for mirror pods.
        with_claims: takes the desired pods and the documents of claims; returns the pods with the
            names of their claims.
        note: called with what the sources want, before anything is made of it.
        """
        self.sources = tuple(sources)
        self.value: AsyncValue[Desired] = AsyncValue(Desired())
        self.turned_at: float | None = None  # trio time of the last turn of the merge
        self._documents = documents
        self._starts = starts
        self._registry = registry
        self._events = events
        self._sync_period = sync_period
        self._instance = instance
        self._want_mirrors = want_mirrors
        self._with_claims = with_claims
        self._note = note
        self._is_clearing = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Merge and apply until cancelled."""
        # Before any source delivers, which may take long: none can revoke a recorded decision.
        self._registry.resume()
        await run_merge(
            self.sources,
            self.apply,
            self._events,
            on_applied=self._turn,
            period=self._sync_period,
            task_status=task_status,
        )

    def _turn(self) -> None:
        self.turned_at = trio.current_time()

    async def apply(self, desired: Desired) -> None:
        """Pass the newest desired pods through the pipeline."""
        desired = self._take(desired)
        if await self._registry.apply(desired):
            self._want_mirrors(desired)

    def _take(self, desired: Desired) -> Desired:
        """Tell the other parts of the newest desired pods; return them as the registry wants."""
        self._note(desired)
        # First, so that a pod of the same manifest finds them when it starts.
        self._documents.apply(desired.objects)
        desired = self._with_claims(with_overhead(desired))
        self._starts.wanted(desired.pods)
        if self._instance:
            desired = with_mark(desired, self._instance)
        self.value.value = desired
        if self._is_clearing:
            # Without `all_ready` the pods of a source that has not delivered yet would stay.
            desired = replace(desired, pods={}, all_ready=True, kept=frozenset())
        return desired

    def clear(self) -> None:
        """Terminate every pod for good: from now on none is desired, whatever a source delivers."""
        self._is_clearing = True
        desired = self._take(self.value.value)
        self._registry.clear(desired)
        self._want_mirrors(desired)

    def infos(self) -> Iterator[SourceInfo]:
        """Yield the state of each source."""
        return source_infos(self.sources, self.value.value)


def with_mark(desired: Desired, instance: str) -> Desired:
    """Mark the pods of an embedded agent: the runtime's objects carry the mark (`owned_by`)."""
    pods = {}
    for uid, pod in desired.pods.items():
        annotations = {**pod_annotations(pod), INSTANCE: instance}
        meta = msgspec.structs.replace(metadata(pod), annotations=annotations)
        pods[uid] = msgspec.structs.replace(pod, metadata=meta)
    return replace(desired, pods=pods)


def source_infos(sources: Iterable[Source], desired: Desired) -> Iterator[SourceInfo]:
    """Yield each source's state: its problems, and those of its pods that lost a conflict."""
    for source in sources:
        given_way = [p for p in desired.problems if p.source == source.name]
        problems = tuple(
            ProblemInfo(p.place, p.message, tuple(map(str, p.pods)))
            for p in (*source.problems.value, *given_way)
        )
        delivered = source.delivered
        yield SourceInfo(
            f"{source.name}:{source.origin}",
            delivered is not None and delivered.is_complete,
            len(delivered.pods) - len(given_way) if delivered is not None else 0,
            problems,
        )
