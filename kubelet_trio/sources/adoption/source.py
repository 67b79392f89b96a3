"""Static pods of another kubelet keep running: their UIDs are taken over.

`AdoptingSource` stands between a source of static pods and the merge. Inside, UIDs are those that
this agent derives from manifests; outside, adopted pods have the UID that they run under. The
first snapshot of a source waits until the runtime has told which pods it holds: a pod that was
delivered with our UID would replace the one that runs.

A source with problems may want pods that it cannot deliver. Until the problems are solved, pods of
another kubelet that are in no manifest are kept as they are, and are adopted when one comes.

There is one only on a node where pods of another kubelet were found, or were adopted before.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.cri import Runtime, RuntimeCallError
from kubelet_trio.kube import API_ERRORS, KubeApi
from kubelet_trio.model import (
    Backoff,
    EventSink,
    Latest,
    ObjectRef,
    Offload,
    PodUid,
    about_pod,
    get_logger,
    pod_key,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.sources.adoption.compare import (
    ForeignPod,
    file_difference,
    foreign_pods,
    metadata_difference,
    mirror_difference,
    same_name,
)
from kubelet_trio.sources.adoption.store import (
    Adoption,
    adoption_key,
    as_adopted,
    with_uid,
    write_adopted,
)
from kubelet_trio.sources.manifest.static import manifest_of
from kubelet_trio.sources.source import Source, SourceProblem, SourceSnapshot

log = get_logger()

_FIRST, _CAP = 0.5, 10.0  # seconds between questions to a runtime that is away
_MIRRORS = 10.0  # seconds for the API server's answers about mirror pods, all together


@dataclass(slots=True)
class Takeover:
    """What a node's earlier kubelet has left, and what was adopted of it.

    Attributes:
        root_dir: where the adopted UIDs are kept.
        adopted: by source and name, as `load_adopted` returns them; changed as pods are adopted.
        foreign: UIDs of pods with a directory but without a record of this agent.
    """

    root_dir: Path
    adopted: dict[str, Adoption]
    foreign: frozenset[PodUid] = frozenset()


class Adopter:
    """Decides which pods are adopted."""

    def __init__(
        self,
        takeover: Takeover,
        runtime: Runtime,
        api: KubeApi | None,
        events: EventSink,
        offload: Offload,
    ) -> None:
        """Args:
        takeover: what was left.
        runtime: holds the pods.
        api: has their mirror pods; None on a standalone node.
        events: told of each pod that was adopted, or was not.
        offload: for blocking work on files.
        """
        self._takeover = takeover
        self._runtime = runtime
        self._api = api
        self._events = events
        self._offload = offload
        self._found: list[ForeignPod] | None = None
        self._open: dict[str, list[ForeignPod]] = {}  # by source: not decided on yet
        self._told_kept: set[PodUid] = set()

    def known(self, pods: Collection[Pod]) -> tuple[Pod, ...]:
        """Return pods of manifests with the UIDs under which they were adopted."""
        return tuple(as_adopted(pod, self._takeover.adopted) for pod in pods)

    def is_open(self, source: str) -> bool:
        """Whether pods may run that a source delivers later."""
        return bool(self._takeover.foreign) and self._open.get(source) != []

    async def adopt(
        self, source: str, pods: Collection[Pod], problems: Collection[SourceProblem] = ()
    ) -> frozenset[PodUid]:
        """Adopt what runs of the pods that a source delivers.

        Returns the pods that are kept: the source may want them once its problems are solved.
        """
        if not self.is_open(source):
            return frozenset()
        if self._found is None:
            self._found = await self._survey()
        pairs = self._pairs(pods, self._open.get(source, self._found))
        with trio.move_on_after(_MIRRORS) as asking:
            mirrors: dict[PodUid, Pod | None] = {}
            for pod, found in pairs:
                mirrors[found.uid] = await self._mirror(pod)
        if asking.cancelled_caught:
            log.info("pod.mirrors_unknown", error=f"no answer within {_MIRRORS:g} s")
        changed = False
        for pod, found in pairs:
            why, proof = await self._judge(pod, found, mirrors.get(found.uid))
            if why:
                self._tell_replaced(pod, found, why)
                continue
            entry = Adoption(pod_uid(pod), found.uid)
            self._takeover.adopted[adoption_key(pod)] = entry
            self._tell_adopted(with_uid(pod, found.uid), proof)
            changed = True
        if changed:
            await self._keep()
        return self._kept(source, pods, problems)

    def _kept(
        self, source: str, pods: Collection[Pod], problems: Collection[SourceProblem]
    ) -> frozenset[PodUid]:
        """Note which pods stay undecided, and return them."""
        names = {pod_key(pod) for pod in pods}
        kept = [
            found
            for found in self._open.get(source, self._found or [])
            if problems and found.source == source and found.key not in names
        ]
        self._open[source] = kept
        for found in kept:
            if found.uid not in self._told_kept:
                self._told_kept.add(found.uid)
                self._tell_kept(found, "; ".join(map(str, problems)))
        return frozenset(found.uid for found in kept)

    def _pairs(
        self, pods: Collection[Pod], undecided: Collection[ForeignPod]
    ) -> list[tuple[Pod, ForeignPod]]:
        adopted = self.known(pods)
        return [
            (pod, found)
            for pod, now in zip(pods, adopted, strict=True)
            for found in undecided
            if same_name(pod, found) and found.uid != pod_uid(now)
        ]

    async def _survey(self) -> list[ForeignPod]:
        """Return the static pods of another kubelet, once the runtime answers."""
        backoff = Backoff(_FIRST, _CAP)
        while True:
            try:
                sandboxes = await self._runtime.list_pod_sandboxes()
                containers = await self._runtime.list_containers()
            except RuntimeCallError as exc:
                delay = backoff.next_delay()
                log.info("pod.adoption_waits", error=str(exc), retry_in=delay)
                await trio.sleep(delay)
            else:
                return list(foreign_pods([*sandboxes], [*containers], self._takeover.foreign))

    async def _mirror(self, pod: Pod) -> Pod | None:
        if self._api is None:
            return None
        key = pod_key(pod)
        try:
            return await self._api.get(Pod, key.name, namespace=key.namespace)
        except API_ERRORS as exc:
            log.info("pod.mirror_unknown", pod=str(key), error=str(exc))
            return None

    async def _judge(self, pod: Pod, found: ForeignPod, mirror: Pod | None) -> tuple[str, str]:
        """Return why a pod is not adopted, "" if it is; and what shows that it may be."""
        why = metadata_difference(pod, found)
        if why:
            return why, ""
        no_mirror = mirror_difference(pod, found, mirror)
        if not no_mirror:
            return "", "its mirror pod shows the same spec"
        path = manifest_of(pod)
        changed_at = await self._offload(_changed_at, path) if path else None
        no_file = file_difference(found, changed_at)
        if not no_file:
            return "", "its file is older than the pod"
        return f"{no_mirror}, and {no_file}", ""

    def _tell_adopted(self, pod: Pod, proof: str) -> None:
        log.info("pod.adopted", **about_pod(pod), why=proof)
        message = f"Taken over from another kubelet with its UID and containers: {proof}"
        self._events.emit(pod_object_ref(pod), "Normal", "Adopted", message)

    def _tell_replaced(self, pod: Pod, found: ForeignPod, why: str) -> None:
        log.warning("pod.not_adopted", pod=str(pod_key(pod)), podUID=found.uid, why=why)
        message = f"Replaces pod {found.uid} of another kubelet: {why}"
        self._events.emit(pod_object_ref(pod), "Warning", "NotAdopted", message)

    def _tell_kept(self, found: ForeignPod, problems: str) -> None:
        log.warning("pod.kept", pod=str(found.key), podUID=found.uid, problems=problems)
        message = (
            "Runs on as another kubelet has started it: no manifest has it, but its source has "
            f"problems. Mend or remove what is named: {problems}"
        )
        ref = ObjectRef("Pod", found.key.name, found.key.namespace, found.uid)
        self._events.emit(ref, "Warning", "NotAdopted", message)

    async def _keep(self) -> None:
        takeover = self._takeover
        try:
            await self._offload(write_adopted, takeover.root_dir, dict(takeover.adopted))
        except OSError as exc:
            # The pods run on; the next agent decides again if they have no records then.
            log.error("pod.adoption_not_kept", error=str(exc))


def _changed_at(path: str) -> float | None:
    """Return when a file was last changed or moved, in Unix seconds. Blocks.

    None for a path with links: what they lead to may be older than the links.
    """
    try:
        if os.path.realpath(path) != path:
            return None
        # No program can set the ctime back, and a rename sets it (inode(7)).
        return os.stat(path).st_ctime
    except OSError:
        return None


class AdoptingSource:
    """A source whose pods keep the UIDs that they run under. Implements `Source`."""

    def __init__(self, inner: Source, adopter: Adopter) -> None:
        self.name = inner.name
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = inner.problems
        self._inner = inner
        self._adopter = adopter
        self._passing = trio.Lock()

    @property
    def origin(self) -> str:
        return self._inner.origin

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the source, and deliver what it delivers, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._inner.run)
            nursery.start_soon(self._follow_problems)
            task_status.started()
            await self._pass_on()  # what came before a crash, maybe not passed on
            while True:
                await self._inner.snapshots.wait_there()
                passed = await self._pass_on()
                # The inner source may wait until a snapshot is taken: then it has been passed on.
                await self.snapshots.wait_taken()
                if self._inner.delivered is passed:
                    await self._inner.snapshots.wait_value()

    async def _follow_problems(self) -> None:
        # A manifest that did not parse and was removed changes no snapshot.
        async for _ in self._inner.problems.eventual_values():
            if self._adopter.is_open(self.name):
                await self._pass_on()

    async def _pass_on(self) -> SourceSnapshot | None:
        """Pass on what the inner source has delivered last, and return that."""
        async with self._passing:
            # With the problems of the same moment: a pod is kept by one or the other.
            snapshot = self._inner.delivered
            if snapshot is None:
                return None
            problems = self._inner.problems.value
            kept = await self._adopter.adopt(self.name, snapshot.pods, problems)
            passed = replace(snapshot, pods=self._adopter.known(snapshot.pods), kept=kept)
            if passed != self.delivered:
                self.delivered = passed
                self.snapshots.put(passed)
            return snapshot
