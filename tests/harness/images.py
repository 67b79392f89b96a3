"""Images made here, from the host's busybox and a few lines of C: no registry is asked.

Each is an OCI archive with one layer. Times, owners and order are fixed, so the same
inputs give the same digests.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pack import oci
from tests.harness import machine

PAUSE = "localhost/kubelet-trio/pause:1"
BUSYBOX = "localhost/kubelet-trio/busybox:1"


_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its reference, its single layer, and what its config says."""

    name: str
    files: Mapping[str, tuple[int, bytes]]  # path -> (mode, content)
    links: Mapping[str, str] = field(default_factory=dict)  # path -> target
    directories: Iterable[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def pause_image(workdir: Path) -> Image:
    """Compile the pause program in `workdir` and return its image."""
    program = workdir / "pause"
    source = Path(__file__).with_name("pause.c")
    subprocess.run(
        ["gcc", "-static", "-Os", "-s", "-Wall", "-Werror", "-o", program, source], check=True
    )
    return Image(PAUSE, {"pause": (0o755, program.read_bytes())}, config={"Entrypoint": ["/pause"]})


def busybox_image(program: Path) -> Image:
    """Return an image of the host's busybox with a link for every applet."""
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True)
    applets = (name for name in listed.stdout.split() if name != "busybox")
    return Image(
        BUSYBOX,
        {
            "bin/busybox": (0o755, program.read_bytes()),
            "etc/passwd": (0o644, _PASSWD.encode()),
            "etc/group": (0o644, _GROUP.encode()),
        },
        links={f"bin/{name}": "busybox" for name in applets},
        directories=("bin", "dev", "etc", "proc", "root", "sys", "tmp", "var"),
        config={"Cmd": ["sh"], "Env": ["PATH=/bin"]},
    )


def renamed(image: Image, name: str) -> Image:
    """Return an image by another name."""
    return replace(image, name=name)


class Blobs(NamedTuple):
    """An image as registries and archives hold it."""

    manifest: bytes
    config: bytes
    layer: bytes


def encode(image: Image) -> Blobs:
    """Return the image's blobs, the same ones for the same image."""
    layer = _layer(image)
    layers = [oci.layer_of(layer)]
    config = oci.config_of(layers, image.config, "kubelet-trio tests")
    return Blobs(oci.manifest_of(layers, config), config, layer)


def write_archive(image: Image, path: Path) -> None:
    """Write the image as an OCI archive that `ctr images import` reads."""
    blobs = encode(image)
    layers = [oci.layer_of(blobs.layer)]
    oci.write_archive(image.name, blobs.manifest, blobs.config, layers, path)


def _layer(image: Image) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for name in sorted(image.directories):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            layer.addfile(entry)
        for name, (mode, content) in sorted(image.files.items()):
            _add_file(layer, name, mode, content)
        for name, target in sorted(image.links.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            layer.addfile(entry)
    return out.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, mode: int, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = mode, len(content)
    archive.addfile(entry, io.BytesIO(content))


def _main() -> None:
    """`python -m tests.harness.images FILE`: the image of the tests' containers, as an archive."""
    program = machine.busybox()
    if program is None:
        sys.exit("no static busybox here: apt-get install busybox-static")
    write_archive(busybox_image(program), Path(sys.argv[1]))


if __name__ == "__main__":
    _main()
