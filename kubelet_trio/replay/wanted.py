"""The pods and objects that a recorded agent was to run, as a source of a replayed one.

What would reach out of the replay is changed on the way: paths of the host become paths in the
replay's directory, and volumes that need a daemon or a token of the cluster become empty ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Latest, PodUid
from kubelet_trio.objects import KINDS, ApiObject
from kubelet_trio.recorder import Entry, read_body
from kubelet_trio.replay.mounts import CSI
from kubelet_trio.sources import SourceProblem, SourceSnapshot

# What needs nothing but the agent, its mounts and its objects.
_PLAIN = frozenset(
    {
        *("emptyDir", "configMap", "secret", "projected", "downwardAPI", "hostPath", "nfs"),
        *("persistentVolumeClaim", "ephemeral", "image"),
    }
)
# Of projected volumes: the API server issues them.
_ISSUED = ("serviceAccountToken", "clusterTrustBundle", "podCertificate")


class ReplaySource:
    """One source of the recorded agent. `deliver` puts a snapshot into effect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    @property
    def origin(self) -> str:
        return "recording"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until cancelled: `deliver` does the work."""
        task_status.started()
        await trio.sleep_forever()

    def deliver(self, snapshot: SourceSnapshot) -> None:
        self.delivered = snapshot
        self.snapshots.put(snapshot)


class Wanted:
    """What is wanted as of now; `apply` takes an entry, `deliver` passes all of it on."""

    def __init__(self, names: Sequence[str], top: Path) -> None:
        """Args:
        names: of the sources.
        top: the replay's directory.
        """
        # Of two pods with one UID the first source's runs; the API server is the last.
        ordered = sorted(names or ["file"], key=lambda name: (name == "api", name))
        self.sources = tuple(ReplaySource(name) for name in ordered)
        self.notes: dict[str, None] = {}  # in order, each once
        self._top = top
        self._pods: dict[str, dict[str, Pod]] = {name: {} for name in ordered}
        self._objects: dict[str, ApiObject] = {}
        self._all_ready = False
        self._kept: frozenset[PodUid] = frozenset()
        self._has_pods = False

    def wanted(self, entry: Entry) -> str:
        """Take a WANTED entry; return what it means in a few words."""
        source, _, uid = entry.key.rpartition("/")
        pods = self._pods.setdefault(source, {})
        if not entry.body:
            pods.pop(uid, None)
            return "not wanted any more"
        was, pods[uid] = pods.get(uid), self._pod(read_body(entry.body))
        self._has_pods = True
        meta = pods[uid].metadata
        if meta is not None and meta.deletionTimestamp:
            return "its deletion is asked for"
        return "wanted" if was is None else "wanted in another form"

    def settled(self, entry: Entry) -> None:
        """Take a SOURCES entry."""
        body = read_body(entry.body)
        self._all_ready = bool(body.get("all_ready"))
        self._kept = frozenset(PodUid(uid) for uid in body.get("kept") or ())

    def known(self, entry: Entry) -> None:
        """Take an OBJECT entry. One of a kind that pods do not refer to is left out."""
        kind = entry.key.partition("/")[0]
        if not entry.body:
            self._objects.pop(entry.key, None)
        elif kind in KINDS:
            body = read_body(entry.body)
            if kind == "PersistentVolume":
                self._volume(body.get("metadata", {}).get("name", ""), body.get("spec") or {})
            self._objects[entry.key] = msgspec.convert(body, KINDS[kind], strict=False)

    def deliver(self) -> None:
        """Pass on what is wanted now."""
        objects = tuple(self._objects.values())
        for index, source in enumerate(self.sources):
            pods = tuple(self._pods[source.name].values())
            if not (self._all_ready or pods or source.delivered is not None):
                continue
            source.deliver(
                SourceSnapshot(
                    source.name,
                    pods,
                    objects if index == 0 else (),
                    is_complete=self._all_ready,
                    kept=self._kept if index == 0 else frozenset(),
                )
            )

    # What would reach out of the replay

    def _pod(self, content: dict[str, Any]) -> Pod:
        body = content.get("spec") or {}
        # Only root may give files to other groups.
        (body.get("securityContext") or {}).pop("fsGroup", None)
        for volume in body.get("volumes") or ():
            self._volume(volume["name"], volume)
        return msgspec.convert(content, Pod, strict=False)

    def _volume(self, name: str, volume: dict[str, Any]) -> None:
        """Change a volume of a pod, or the spec of a PersistentVolume, in place."""
        if (path := volume.pop("local", None) or volume.get("hostPath")) is not None:
            volume["hostPath"] = self._host_path(path)
        for part in (volume.get("projected") or {}).get("sources") or ():
            for issued in _ISSUED:
                part.pop(issued, None)
        if (driven := volume.pop("csi", None)) is not None:
            handle = driven.get("volumeHandle") or ""
            volume["nfs"] = {"server": f"{CSI}{driven.get('driver')}", "path": f"/{handle}"}
        for kind in _foreign(volume):
            volume.pop(kind)
            if "persistentVolumeReclaimPolicy" in volume:
                volume["hostPath"] = self._host_path({"path": f"/{name}"})
            else:
                volume["emptyDir"] = {}
            self.notes[f"volume {name} ({kind}) is taken as set up"] = None

    def _host_path(self, host_path: dict[str, Any]) -> dict[str, Any]:
        path = self._top / "host" / str(host_path.get("path", "")).lstrip("/")
        kind = host_path.get("type") or ""
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind.startswith("File"):
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)
        is_plain = kind.startswith(("File", "Directory"))
        return {"path": str(path), "type": kind if is_plain else ""}


def _foreign(volume: dict[str, Any]) -> Iterator[str]:
    """Yield the kind of a volume if it needs what a replay does not have."""
    settings = ("name", "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity")
    rest = ("persistentVolumeReclaimPolicy", "storageClassName", "volumeMode")
    for kind, value in list(volume.items()):
        is_kind = isinstance(value, dict) and kind not in (*settings, *rest)
        if is_kind and kind not in _PLAIN and kind != "volumeAttributesClassName":
            yield kind
