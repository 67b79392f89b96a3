"""The Volumes section of `describe pod`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubelet_trio.cli.podstate import Json, part

_KINDS = {
    "configMap": "ConfigMap (a volume populated by a ConfigMap)",
    "csi": "CSI (a Container Storage Interface (CSI) volume source)",
    "downwardAPI": "DownwardAPI (a volume populated by information about the pod)",
    "emptyDir": "EmptyDir (a temporary directory that shares a pod's lifetime)",
    "hostPath": "HostPath (bare host directory volume)",
    "image": "Image (a container image or OCI artifact)",
    "nfs": "NFS (an NFS mount that lasts the lifetime of a pod)",
    "persistentVolumeClaim": (
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)"
    ),
    "projected": "Projected (a volume that contains injected data from multiple sources)",
    "secret": "Secret (a volume populated by a Secret)",
}


def describe_volumes(volumes: Sequence[Json]) -> Iterator[str]:
    """Yield the lines of the section."""
    if not volumes:
        yield "Volumes:           <none>"
        return
    yield "Volumes:"
    for volume in volumes:
        yield f"  {volume.get('name', '')}:"
        kind = next((name for name in volume if name != "name"), "")
        source = part(volume, kind) if kind else {}
        details = [("Type", _KINDS.get(kind, kind or "<unknown>")), *_details(kind, source)]
        width = max(len(name) for name, _ in details) + 3
        for name, value in details:
            yield f"    {name + ':':<{width}}{value}".rstrip()


def _details(kind: str, source: Json) -> Iterator[tuple[str, str]]:
    if kind == "emptyDir":
        yield "Medium", str(source.get("medium") or "")
        yield "SizeLimit", str(source.get("sizeLimit") or "<unset>")
    elif kind == "hostPath":
        yield "Path", str(source.get("path") or "")
        yield "HostPathType", str(source.get("type") or "")
    else:
        for name, value in source.items():
            if isinstance(value, str | int | bool):
                yield name[:1].upper() + name[1:], str(value)
