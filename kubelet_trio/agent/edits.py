"""What an edit of the manifest directory would do, before it is made.

It takes the way of a real edit: loader, validation, merge, admission, planner. Nothing is written,
reserved or told to a worker. Loaded when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.desired import with_mark
from kubelet_trio.agent.parts import Parts
from kubelet_trio.containers import differs
from kubelet_trio.model import (
    CONFIG_SOURCE,
    JSON_ERRORS,
    PodKey,
    PodUid,
    metadata,
    pod_annotations,
    pod_key,
    pod_uid,
)
from kubelet_trio.objects import ObjectKey, pod_references
from kubelet_trio.pods import (
    Admitted,
    ContainerChange,
    EditPlan,
    ObjectChange,
    PendingResize,
    PodChange,
    PodStage,
    Preempting,
    Rejected,
    Verdict,
    as_json,
    changed_fields,
    container_changes,
    ended_containers,
    new_containers,
    volume_changes,
)
from kubelet_trio.sources import Desired, Edit, SourceSnapshot, edited, manifest_of, merge
from kubelet_trio.sources import with_overhead as overhead_of

_FILE = "file"  # the source of the manifest directory
# What the agent adds to a manifest, and what follows from its content.
_OWN = ("kubernetes.io/config.hash", "kubernetes.io/config.seen", "kubelet-trio/instance")


class NoDirectoryError(ValueError):
    """The agent reads no manifests that could be edited, or has not read them yet."""


def read_edit(given: bytes) -> Edit:
    """Return an edit from its JSON. Raises ValueError."""
    try:
        return msgspec.json.decode(given, type=Edit)
    except JSON_ERRORS as exc:
        raise ValueError(f"the edit does not parse: {exc}") from exc


def without_manifests(plan: EditPlan) -> EditPlan:
    """Return a plan without the manifests that it compares."""
    return replace(
        plan,
        pods=tuple(replace(each, before=None, after=None) for each in plan.pods),
        objects=tuple(replace(each, before=None, after=None) for each in plan.objects),
    )


@dataclass(frozen=True, slots=True)
class EditPlanner:
    """Foresees edits for one agent."""

    parts: Parts

    async def plan(self, edit: Edit) -> EditPlan:
        """Return what an edit would do.

        Raises:
            ManifestError: a manifest is not valid.
            NoDirectoryError: the agent has no manifest directory.
        """
        source = next((s for s in self.parts.pods.desired.sources if s.name == _FILE), None)
        if source is None:
            raise NoDirectoryError("the agent reads no manifest directory: set staticPodPath")
        if source.delivered is None:
            raise NoDirectoryError(f"the agent has not read {source.origin} yet")
        setup = self.parts.setup
        # Many manifests take long to load: in a thread.
        after = await setup.seams.offload(
            edited, source.delivered, edit, source.origin, setup.settings.node.node_name
        )
        before = self.parts.pods.desired.value.value
        return _Comparison(self.parts, before, self._desired(after, before)).plan()

    def _desired(self, snapshot: SourceSnapshot, before: Desired) -> Desired:
        """Return what the merge would make of the edit."""
        desired = self.parts.pods.desired
        delivered = {s.name: s.delivered for s in desired.sources if s.delivered is not None}
        order = [s.name for s in desired.sources]
        # The pods that have their names now keep them.
        holders = {
            (pod_annotations(pod).get(CONFIG_SOURCE, "api"), pod_key(pod)): manifest_of(pod)
            for pod in before.pods.values()
        }
        merged = merge(order, {**delivered, snapshot.source: snapshot}, holders).desired
        merged, instance = overhead_of(merged), self.parts.setup.settings.instance
        return with_mark(merged, instance) if instance else merged


@dataclass(slots=True)
class _Comparison:
    """The desired pods before and after, and what has been decided so far."""

    parts: Parts
    before: Desired
    after: Desired
    beside: list[Pod] = field(default_factory=list)  # that the edit adds, as admission counts them

    def plan(self) -> EditPlan:
        gone = {uid: pod for uid, pod in self.before.pods.items() if uid not in self.after.pods}
        come = {uid: pod for uid, pod in self.after.pods.items() if uid not in self.before.pods}
        pods = [*self._ends(gone, come), *self._starts(gone, come), *self._updates(set(gone))]
        objects = tuple(self._objects())
        problems = tuple(str(p) for p in self.after.problems if p not in self.before.problems)
        return EditPlan(
            pods=tuple(sorted(pods, key=lambda change: (change.namespace, change.name))),
            objects=objects,
            problems=problems,
            changes=bool(pods or objects or problems),
            refused=bool(problems)
            or any(change.verdict is not None and change.verdict.is_refusal for change in pods),
        )

    def _ends(self, gone: Mapping[PodUid, Pod], come: Mapping[PodUid, Pod]) -> Iterator[PodChange]:
        """Yield the pods that go and have no successor."""
        names = {pod_key(pod) for pod in come.values()}
        for uid, pod in gone.items():
            if pod_key(pod) not in names:
                yield replace(
                    _change("remove", pod, None),
                    was_uid=uid,
                    containers=ended_containers(self.parts.runtime.pleg.get(uid)),
                    volumes=volume_changes(pod, None),
                )

    def _starts(
        self, gone: Mapping[PodUid, Pod], come: Mapping[PodUid, Pod]
    ) -> Iterator[PodChange]:
        """Yield the pods that start, in place of others of their names or as new ones."""
        names: dict[PodKey, PodUid] = {pod_key(pod): uid for uid, pod in gone.items()}
        for uid, pod in come.items():
            was_uid = names.get(pod_key(pod))
            was = gone[was_uid] if was_uid is not None else None
            verdict = self._verdict(pod, set(gone), [was_uid] if was_uid is not None else ())
            runs = not verdict.is_refusal
            ended = (
                ended_containers(self.parts.runtime.pleg.get(was_uid))
                if was_uid is not None
                else ()
            )
            yield replace(
                _change("create" if was is None else "replace", was, pod),
                uid=uid,
                was_uid=was_uid or "",
                containers=_together(ended, new_containers(pod) if runs else ()),
                volumes=volume_changes(was, pod if runs else None),
                verdict=verdict,
            )

    def _verdict(self, pod: Pod, gone: set[PodUid], replaces: Iterable[PodUid]) -> Verdict:
        registry = self.parts.pods.registry
        stay, leave = registry.beside(gone)
        decision = registry.admitter.would_admit(pod, [*stay, *self.beside], leave, [*replaces])
        if isinstance(decision, Rejected):
            return Verdict("rejected", decision.reason, decision.message)
        self.beside.append(pod)
        if isinstance(decision, Preempting):
            return Verdict("preempting", victims=_names(decision.victims))
        assert isinstance(decision, Admitted)
        return Verdict("admitted")

    # Pods that stay the same pods

    def _updates(self, gone: set[PodUid]) -> Iterator[PodChange]:
        for uid, pod in self.after.pods.items():
            was = self.before.pods.get(uid)
            if was is None or was == pod:
                continue
            change = _change("update", was, pod)
            if change.fields:
                yield self._update(replace(change, uid=uid, was_uid=uid), was, pod, gone)

    def _update(self, change: PodChange, was: Pod, pod: Pod, gone: set[PodUid]) -> PodChange:
        uid = pod_uid(pod)
        worker = self.parts.workers.get(uid)
        if worker is None:
            return change
        if worker.stage is not PodStage.SYNC:
            if not (worker.is_wanted and differs(worker.allocation.desired, pod)):
                return change  # it has ended, and stays so
            # As any other edit of its manifest it runs again (`PodRegistry`).
            verdict = self._verdict(pod, {*gone, uid}, [uid])
            starts = () if verdict.is_refusal else new_containers(pod)
            volumes = volume_changes(was, None if verdict.is_refusal else pod)
            return replace(
                change, action="replace", containers=starts, volumes=volumes, verdict=verdict
            )
        allocated = worker.allocation.allocated
        verdict_of_resize, after = self._resized(pod, allocated, gone)
        now, then = worker.parts().plans(after)
        return replace(
            change,
            containers=container_changes(now, then, self.parts.runtime.pleg.get(uid)),
            verdict=verdict_of_resize,
        )

    def _resized(self, pod: Pod, allocated: Pod, gone: set[PodUid]) -> tuple[Verdict | None, Pod]:
        """Return the decision on a resize, None without one, and the pod with what it then has."""
        if not differs(pod, allocated):
            return None, pod
        registry = self.parts.pods.registry
        stay, leave = registry.beside({*gone, pod_uid(pod)})
        others = [*stay, *self.beside]
        why = registry.admitter.would_resize(pod, allocated, others, leave)
        if isinstance(why, PendingResize):
            return Verdict(why.reason.lower(), why.detail, why.message), allocated
        if isinstance(why, Preempting):
            return Verdict("preempting", victims=_names(why.victims)), allocated
        return Verdict("admitted"), pod

    # Other objects

    def _objects(self) -> Iterator[ObjectChange]:
        before, after = self.before.objects, self.after.objects
        for key in sorted(before.keys() | after.keys()):
            was, now = before.get(key), after.get(key)
            if was == now:
                continue
            action = "create" if was is None else "remove" if now is None else "update"
            shown = _shown_object(key, was), _shown_object(key, now)
            if key.kind == "Secret":
                shown = _without_values(*shown)
            users = tuple(sorted(self._users(key)))
            yield ObjectChange(key.kind, key.namespace, key.name, action, users, *shown)

    def _users(self, key: ObjectKey) -> Iterator[str]:
        for uid, pod in self.after.pods.items():
            if uid in self.before.pods and key in pod_references(pod):
                yield str(pod_key(pod))


def _together(
    ended: tuple[ContainerChange, ...], started: tuple[ContainerChange, ...]
) -> tuple[ContainerChange, ...]:
    """Return one change for each container: one that ends and starts again restarts."""
    starts = {each.name for each in started}
    ends = {each.name for each in ended}
    again = [
        replace(c, action="restart", why="in a new pod") if c.name in ends else c for c in started
    ]
    return (*(each for each in ended if each.name not in starts), *again)


def _change(action: str, was: Pod | None, pod: Pod | None) -> PodChange:
    either = pod if pod is not None else was
    assert either is not None
    before, after = _shown(was), _shown(pod)
    return PodChange(
        pod_key(either).namespace,
        pod_key(either).name,
        action,
        manifest_of(either),
        fields=changed_fields(before, after) if was is not None and pod is not None else (),
        before=before,
        after=after,
    )


def _shown(pod: Pod | None) -> object:
    """Return a manifest as the agent has it, without what differs in each version of it."""
    if pod is None:
        return None
    meta = metadata(pod)
    own = {k: v for k, v in (meta.annotations or {}).items() if k not in _OWN}
    shown = msgspec.structs.replace(meta, uid=None, annotations=own or None)
    return as_json(msgspec.structs.replace(pod, metadata=shown, status=None))


def _shown_object(key: ObjectKey, thing: msgspec.Struct | None) -> Any:
    return {"kind": key.kind, **as_json(thing)} if thing is not None else None


def _without_values(before: Any, after: Any) -> tuple[Any, Any]:
    """Return two states of a secret that show which values differ, and none of them."""
    # As kubectl diff.
    for values in ("data", "stringData"):
        old, new = ((each or {}).get(values) or {} for each in (before, after))
        same = {name for name in old.keys() & new.keys() if old[name] == new[name]}
        for each, when in ((old, "before"), (new, "after")):
            each.update({n: "***" if n in same else f"*** ({when})" for n in each})
    return before, after


def _names(pods: Iterable[Pod]) -> tuple[str, ...]:
    return tuple(str(pod_key(pod)) for pod in pods)
