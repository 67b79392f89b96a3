"""What of a recorded pod would reach out of the replay, changed: paths and volumes.

Paths of the host become paths in the replay's directory, and volumes that need a daemon or a token
of the cluster become empty ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubelet_trio.replay.mounts import CSI

# What needs nothing but the agent, its mounts and its objects.
_PLAIN = frozenset(
    {
        *("emptyDir", "configMap", "secret", "projected", "downwardAPI", "hostPath", "nfs"),
        *("persistentVolumeClaim", "ephemeral", "image"),
    }
)
# Of projected volumes: the API server issues them.
_ISSUED = ("serviceAccountToken", "clusterTrustBundle", "podCertificate")
_LOG_PARTS = 3  # pod, container, file


class Places:
    """Changes pods and volumes, as dicts, in place; `notes` say what was changed for good."""

    def __init__(self, top: Path) -> None:
        """`top` is the replay's directory."""
        self.notes: dict[str, None] = {}  # in order, each once
        self._top = top

    def pod(self, content: dict[str, Any]) -> dict[str, Any]:
        """Change a pod, which has passed `checks`, and return it. Raises OSError."""
        body = content.get("spec") or {}
        # Only root may give files to other groups.
        (body.get("securityContext") or {}).pop("fsGroup", None)
        for volume in body.get("volumes") or ():
            self.volume(volume["name"], volume)
        return content

    def record(self, content: dict[str, Any]) -> dict[str, Any]:
        """Change the pods in a pod's record, likewise."""
        for name in ("pod", "returns"):
            if content.get(name):
                self.pod(content[name])
        return content

    def volume(self, name: str, volume: dict[str, Any]) -> None:
        """Change a volume of a pod, or the spec of a PersistentVolume. Raises OSError."""
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
        told = Path(str(host_path.get("path", "")))
        # Whatever has been checked before: nothing outside of the replay's directory.
        if ".." in told.parts:
            raise ValueError(f"path {told}: it leads out of the replay")
        path = self._top / "host" / str(told).lstrip("/")
        kind = host_path.get("type") or ""
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind.startswith("File"):
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)
        is_plain = kind.startswith(("File", "Directory"))
        return {"path": str(path), "type": kind if is_plain else ""}


def log_place(logs: Path, recorded: str) -> Path | None:
    """Return where a container's log is in a replay; None if its recorded path is none of a log.

    Args:
        logs: the replay's directory of pods' logs.
        recorded: the path on the recorded node.
    """
    parts = Path(recorded).parts[-_LOG_PARTS:]
    is_log = len(parts) == _LOG_PARTS and ".." not in parts and parts[0] != "/"
    return logs.joinpath(*parts) if is_log and "\0" not in recorded else None


def touch_log(path: Path) -> None:
    """Make the log of a container: the files say how often it has started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _foreign(volume: dict[str, Any]) -> Iterator[str]:
    """Yield the kind of a volume if it needs what a replay does not have."""
    settings = ("name", "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity")
    rest = ("persistentVolumeReclaimPolicy", "storageClassName", "volumeMode")
    for kind, value in list(volume.items()):
        is_kind = isinstance(value, dict) and kind not in (*settings, *rest)
        if is_kind and kind not in _PLAIN and kind != "volumeAttributesClassName":
            yield kind
