"""Manifests and small stand-ins for the tests of this room."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import FileChange, WatchPoints
from kubelet_trio.sources import ManifestError
from tests.harness.pod_files import load_pods

NODE = "Node1"


def manifest(name: str = "web", **spec: Any) -> dict[str, Any]:
    """Return a raw Pod of one container, with further fields of the spec."""
    body = {"containers": [container()], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox:1.36", **fields}


def encoded(*documents: Any) -> bytes:
    """Return documents as one file of YAML (JSON being YAML)."""
    return "\n---\n".join(json.dumps(document) for document in documents).encode()


def load(*documents: Any, origin: str = "/m/web.yaml", source: str = "file") -> tuple[Pod, ...]:
    return load_pods(encoded(*documents), origin, node_name=NODE, source=source)


def problems(*documents: Any) -> list[str]:
    """Return what is wrong with documents, as `field: message`; nothing if they load."""
    try:
        load(*documents)
    except ManifestError as exc:
        return [f"{error.field}: {error.message}" for error in exc.errors]
    return []


class FakeWatcher:
    """Tells what a test says, when it says it."""

    def __init__(self) -> None:
        self.points: WatchPoints = {}
        self.closed = False
        self._send, self._receive = trio.open_memory_channel[FileChange](math.inf)

    def tell(
        self,
        path: object,
        *,
        finished: bool = True,
        removed: bool = False,
        moved: bool = False,
    ) -> None:
        self._send.send_nowait(FileChange(str(path), finished, removed, moved))

    def watch(self, points: WatchPoints) -> bool:
        changed = points != self.points
        self.points = points
        return changed

    async def wait_changes(self) -> list[FileChange]:
        return [await self._receive.receive()]

    def close(self) -> None:
        self.closed = True


class FixedClock:
    """Wall time far from the files' own, so that every file counts as just written."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def time(self) -> float:
        return self.now


def names(pods: Sequence[Pod]) -> list[str]:
    return [pod.metadata.name or "" for pod in pods if pod.metadata is not None]
