"""OCI image archives, written without a registry, Docker or a build tool.

The same inputs give the same digests: the time is the epoch, and JSON keys are sorted.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"


class Layer(NamedTuple):
    """One uncompressed layer: its digest, its size, and where its bytes are."""

    digest: str
    size: int
    content: bytes | Path


def layer_of(content: bytes | Path) -> Layer:
    """Return a tar archive, in memory or a file, as a layer."""
    if isinstance(content, bytes):
        return Layer(digest(content), len(content), content)
    with content.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return Layer(f"sha256:{found}", content.stat().st_size, content)


def config_of(layers: Sequence[Layer], config: Mapping[str, Any], created_by: str) -> bytes:
    """Return the image's configuration: what it runs, and its layers."""
    one = {"created": _EPOCH, "created_by": created_by}
    return _json(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "created": _EPOCH,
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [one for _ in layers],
        }
    )


def manifest_of(layers: Sequence[Layer], config: bytes) -> bytes:
    """Return the image's manifest."""
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(_CONFIG_TYPE, digest(config), len(config)),
            "layers": [_descriptor(_LAYER_TYPE, one.digest, one.size) for one in layers],
        }
    )


def write_archive(
    name: str, manifest: bytes, config: bytes, layers: Iterable[Layer], path: Path
) -> None:
    """Write the image as an archive that `ctr images import` and `podman load` read."""
    top = _descriptor(MANIFEST_TYPE, digest(manifest), len(manifest))
    top["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name,
    }
    index = _json({"schemaVersion": 2, "manifests": [top]})
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", index)
        for blob in (manifest, config):
            _add(archive, "blobs/" + digest(blob).replace(":", "/"), blob)
        for layer in layers:
            _add(archive, "blobs/" + layer.digest.replace(":", "/"), layer.content)


def write_layer(source: Path, out: Path) -> None:
    """Write the files and links below a directory as a layer, owned by root."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(source.rglob("*")):
            if path.is_symlink() or not path.is_dir():
                layer.add(path, str(path.relative_to(source)), recursive=False, filter=owned)


def digest(blob: bytes) -> str:
    """Return what a blob is known by: `sha256:...`."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o644
    if isinstance(content, bytes):
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
        return
    entry.size = content.stat().st_size
    with content.open("rb") as file:
        archive.addfile(entry, file)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _descriptor(media_type: str, name: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": name, "size": size}
