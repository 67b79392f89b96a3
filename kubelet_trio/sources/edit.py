"""An edit of the manifest directory that has not been made: what its source would deliver then.

Each object of the edit replaces the one of its kind and name, in the file that has it, as
`kubelet-trio apply` writes it; a new object gets a file of its own. Pure, but slow for many
manifests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import metadata, pod_uid
from kubelet_trio.objects import object_key
from kubelet_trio.sources.errors import FieldError, ManifestError
from kubelet_trio.sources.manifest.decode import RawObject, decode
from kubelet_trio.sources.manifest.load import load_manifest
from kubelet_trio.sources.manifest.static import manifest_name, manifest_of, mark_seen, seen_at
from kubelet_trio.sources.source import SourceSnapshot


@dataclass(frozen=True, slots=True)
class Edit:
    """Manifests as somebody would apply them.

    Attributes:
        documents: text by origin, the name for errors.
        prune: whether nothing else is in the directory afterwards.
    """

    documents: Mapping[str, str]
    prune: bool = False


def edited(snapshot: SourceSnapshot, edit: Edit, directory: str, node_name: str) -> SourceSnapshot:
    """Return what the source of a manifest directory would deliver after an edit.

    Args:
        snapshot: its last one.
        edit: the edit.
        directory: its path.
        node_name: of this node.

    Raises:
        ManifestError: a manifest is not valid; or two of them have one object.
    """
    before = {_pod_key(pod, node_name): pod for pod in snapshot.pods}
    known = frozenset(pod_uid(pod) for pod in snapshot.pods)
    pods = {} if edit.prune else dict(before)
    objects = {} if edit.prune else {object_key(each): each for each in snapshot.objects}
    given: dict[object, str] = {}
    for origin, text in edit.documents.items():
        data = text.encode()
        load_manifest(data, origin, node_name=node_name, is_known=known.__contains__)
        for raw in decode(data).objects:
            single = json.dumps({"kind": raw.kind, "apiVersion": "v1", **raw.value}).encode()
            key = (raw.kind, *_name(raw))
            if key in given:
                why = f"{raw.kind} {key[-1]} is in {given[key]}, too"
                raise ManifestError(origin, [FieldError("", why, raw.document)])
            given[key] = origin
            path = _path(before.get(key[1:]), raw, key, directory)
            made = load_manifest(single, path, node_name=node_name, is_known=known.__contains__)
            for pod in made.pods:
                pods[_pod_key(pod, node_name)] = _as_known(pod, before.get(key[1:]))
            objects |= {object_key(each): each for each in made.objects}
    return SourceSnapshot(
        snapshot.source, tuple(_in_order(pods)), tuple(objects.values()), kept=snapshot.kept
    )


def _pod_key(pod: Pod, node_name: str) -> tuple[str, str]:
    return metadata(pod).namespace or "default", manifest_name(pod, node_name)


def _name(raw: RawObject) -> tuple[str, str]:
    meta: Mapping[str, Any] = raw.value.get("metadata") or {}
    return str(meta.get("namespace") or "default"), str(meta.get("name") or "")


def _path(pod: Pod | None, raw: RawObject, key: tuple[str, ...], directory: str) -> str:
    """Return the file that has an object, or would have it: it is part of a pod's identity."""
    if raw.kind == "Pod" and pod is not None:
        return manifest_of(pod)
    words = ["kubelet-trio", *(word.lower() if i == 0 else word for i, word in enumerate(key))]
    return os.path.join(directory, ".".join([*words, "yaml"]))


def _as_known(pod: Pod, before: Pod | None) -> Pod:
    """Return a pod with the time at which it was first seen, if it is the same pod."""
    if before is None or pod_uid(before) != pod_uid(pod):
        return pod
    marked = mark_seen(pod, seen_at(before))
    return before if marked == before else marked


def _in_order(pods: Mapping[tuple[str, str], Pod]) -> Iterator[Pod]:
    # As the source: by the lexical order of their files.
    yield from sorted(pods.values(), key=manifest_of)
