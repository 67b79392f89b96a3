"""Compare a pod before and after an edit, with what the planner makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod, Volume

from kubelet_trio.model import ContainerKind, RuntimePod, pod_containers, spec
from kubelet_trio.pods.edits.types import ContainerChange, VolumeChange
from kubelet_trio.pods.plan import PodPlan

_MOST_FIELDS = 30  # of one pod that are named


def new_containers(pod: Pod) -> tuple[ContainerChange, ...]:
    """Return the starts of a pod that starts anew, in their order."""
    return tuple(
        ContainerChange(c.spec.name, "start", "init" if c.kind is ContainerKind.INIT else "")
        for c in pod_containers(pod)
        if c.kind is not ContainerKind.EPHEMERAL
    )


def ended_containers(observed: RuntimePod) -> tuple[ContainerChange, ...]:
    """Return the ends of what runs of a pod that goes."""
    names = dict.fromkeys(record.name for record in observed.running())
    return tuple(ContainerChange(name, "end") for name in sorted(names))


def container_changes(
    now: PodPlan, then: PodPlan, observed: RuntimePod
) -> tuple[ContainerChange, ...]:
    """Return what an edit does to a pod that stays the same pod.

    Args:
        now: what the planner does without the edit: that is not the edit's doing.
        then: what it does with it.
        observed: what runs.
    """
    stopped = {s.name: s.message for s in then.stop_containers}
    before = {s.name for s in now.stop_containers}
    started = [s.container.spec.name for s in then.start]
    waiting = {s.container.spec.name for s in now.start} | set(now.holds)
    resized = [r.container.spec.name for r in (then.resize.containers if then.resize else ())]
    found: dict[str, ContainerChange] = {}
    for name, message in stopped.items():
        if name not in before:
            action = "restart" if name in started else "end"
            found[name] = ContainerChange(name, action, message)
    for name in started:
        if name not in found and name not in waiting and name not in before:
            found[name] = ContainerChange(name, "start")
    for name in resized:
        found.setdefault(name, ContainerChange(name, "resize", "in place"))
    return tuple(found[name] for name in sorted(found))


def volume_changes(before: Pod | None, after: Pod | None) -> tuple[VolumeChange, ...]:
    """Return the volumes that are torn down and set up.

    Without a pod before or after, or with another pod, all of them are.
    """
    gone = [_change(volume, "unmount") for volume in _volumes(before)]
    come = [_change(volume, "mount") for volume in _volumes(after)]
    return (*gone, *come)


def _volumes(pod: Pod | None) -> Iterable[Volume]:
    return (spec(pod).volumes or ()) if pod is not None else ()


def _change(volume: Volume, action: str) -> VolumeChange:
    kinds = (f for f in volume.__struct_fields__ if f != "name")
    kind = next((f for f in kinds if getattr(volume, f) is not None), "emptyDir")
    return VolumeChange(volume.name, kind, action, action == "unmount" and kind == "emptyDir")


def changed_fields(before: object, after: object) -> tuple[str, ...]:
    """Return the paths at which two JSON values differ; items of lists go by their names."""
    found = sorted(_differences(before, after, ""))
    if len(found) > _MOST_FIELDS:
        rest = len(found) - _MOST_FIELDS
        return (*found[:_MOST_FIELDS], f"and {rest} more")
    return tuple(found)


def _differences(before: object, after: object, path: str) -> Iterator[str]:
    if before == after:
        return
    mine, others = _members(before), _members(after)
    if mine is None or others is None or type(before) is not type(after):
        yield path or "."
        return
    for key in mine.keys() | others.keys():
        joined = f"{path}[{key}]" if isinstance(before, list) else f"{path}.{key}".lstrip(".")
        if key not in mine or key not in others:
            yield joined
        else:
            yield from _differences(mine[key], others[key], joined)


def _members(value: object) -> Mapping[str, Any] | None:
    """Return the members of an object, or of a list whose items have names; else None."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(i, dict) and "name" in i for i in value):
        named = {str(item["name"]): item for item in value}
        return named if len(named) == len(value) else None
    return None


def as_json(thing: msgspec.Struct) -> Any:
    """Return an API object as JSON values without nulls."""
    return _present(msgspec.to_builtins(thing))


def _present(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _present(value) for key, value in thing.items() if value is not None}
    if isinstance(thing, list):
        return [_present(item) for item in thing]
    return thing
