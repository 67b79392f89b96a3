"""The manifest directory of an agent, as `apply` and `delete` change it: one object, one file.

Files are replaced atomically. A file is only overwritten or removed if it holds nothing else than
the objects in question; links are left to whoever made them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.sources import ManifestError, decode_manifest, is_ignored, load_manifest

_CLUSTER_WIDE = ("PersistentVolume", "RuntimeClass", "CSIDriver", "StorageClass")


class Key(NamedTuple):
    """What identifies an object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True, slots=True)
class Given:
    """An object of a manifest that was given, and the content of a file for it alone."""

    key: Key
    value: dict[str, Any]
    content: bytes


class ManifestDirectory:
    """The directory from which an agent takes its static pods."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_agent(cls, status: Json) -> ManifestDirectory:
        """Return the directory that an agent names. Raises `ClientError` if it has none."""
        names = [str(s.get("name", "")) for s in items(status, "sources")]
        paths = [Path(n.removeprefix("file:")) for n in names if n.startswith("file:")]
        if not paths:
            raise ClientError(
                "the agent reads no manifest directory: set staticPodPath in its configuration"
            )
        if not paths[0].is_dir():
            raise ClientError(f"staticPodPath {paths[0]} is no directory: nothing can be added")
        return cls(paths[0])

    def find(self, key: Key) -> tuple[Path, dict[str, Any], frozenset[Key]] | None:
        """Return the file of an object, the object, and all that the file holds."""
        for path in sorted(self.path.iterdir()):
            held = dict(_read(path))
            if key in held:
                return path, held[key], frozenset(held)
        return None

    def put(self, given: Given, *, writes: bool) -> tuple[str, Path]:
        """Write an object; return `created`, `configured` or `unchanged`, and the file.

        Raises `ClientError` if the object is in a file with others, or its name is taken.
        """
        found = self.find(given.key)
        if found is None:
            path = self.path / _file_name(given.key)
            if os.path.lexists(path):
                raise ClientError(f"{path} exists and holds something else: it is not overwritten")
            verb = "created"
        else:
            path, value, held = found
            if value == given.value:
                return "unchanged", path
            _check_alone(path, given.key, held, {given.key})
            verb = "configured"
        if writes:
            _replace(path, given.content)
        return verb, path

    def remove(self, key: Key, others: Collection[Key], *, writes: bool) -> bool:
        """Remove an object's file; return whether there is one.

        The file may hold `others`, too. Raises `ClientError` if it holds more than that.
        """
        found = self.find(key)
        if found is None:
            return False
        path, _, held = found
        _check_alone(path, key, held, {key, *others})
        if writes:
            path.unlink()
        return True


def read_given(text: bytes, origin: str, node_name: str) -> list[Given]:
    """Return the objects of a manifest, validated as the agent does. Raises `ClientError`."""
    try:
        load_manifest(text, origin, node_name=node_name)
    except ManifestError as exc:
        raise ClientError(str(exc)) from exc
    raws = decode_manifest(text).objects
    found = [(_key(raw.kind, raw.value), raw.value) for raw in raws]
    for number, (key, _) in enumerate(found):
        if key in [other for other, _ in found[:number]]:
            raise ClientError(f"{origin}: {key} is in it twice")
    if len(raws) == 1 and not raws[0].path:
        return [Given(*found[0], text)]  # as written, with its comments
    return [
        Given(key, value, json.dumps({"kind": key.kind, "apiVersion": "v1", **value}).encode())
        for key, value in found
    ]


def _key(kind: str, value: Json) -> Key:
    meta = part(value, "metadata")
    namespace = "" if kind in _CLUSTER_WIDE else str(meta.get("namespace") or "default")
    return Key(kind, namespace, str(meta.get("name", "")))


def _read(path: Path) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield what a file of the directory holds; nothing if the agent cannot read it either."""
    if is_ignored(path.name) or not path.is_file():
        return
    decoded = decode_manifest(path.read_bytes())
    if decoded.errors:
        return  # the agent reports it; it holds no object
    for raw in decoded.objects:
        yield _key(raw.kind, raw.value), raw.value


def _file_name(key: Key) -> str:
    words = [key.kind.lower(), key.namespace, key.name]
    return ".".join(["kubelet-trio", *(word for word in words if word), "yaml"])


def _check_alone(path: Path, key: Key, held: Collection[Key], allowed: Collection[Key]) -> None:
    if path.is_symlink():
        raise ClientError(f"{key} is in {path}, a link: change what it leads to")
    if more := sorted(str(other) for other in held if other not in allowed):
        raise ClientError(f"{key} is in {path} together with {', '.join(more)}: edit that file")


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step. Hidden until it is complete: the agent ignores such names."""
    descriptor, aside = tempfile.mkstemp(prefix=".kubelet-trio-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as exc:
        Path(aside).unlink(missing_ok=True)
        raise ClientError(f"cannot write {path}: {exc.strerror}") from exc
