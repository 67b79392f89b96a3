"""Build an OCI image archive with the agent in it: `scripts/build-image`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pack import command, oci, rootfs, tree

NAME = "localhost/kubelet-trio/kubelet-trio"
_PREFIX = Path("/opt/kubelet-trio")
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build(
    out: Path, python: tree.Python, base: Path | None = None, installed: Path | None = None
) -> Path:
    """Write `kubelet-trio-VERSION.oci.tar` into `out` and return its path.

    `base` is the root file system below the agent, a directory or a tar archive, which has the
    Python that `python` is; None: a Debian made here.

    Raises:
        BuildError: pip failed, or no root file system can be made here.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-image-", dir=out) as work:
        archive = base or rootfs.cached(python)
        if archive.is_dir():
            archive = Path(work, "base.tar")
            rootfs.from_directory(base or archive, archive)
        root = Path(work, "root")
        interpreter = f"/usr/bin/python{python.version}"
        here = root / str(_PREFIX)[1:]
        tree.build(here, _PREFIX, python, interpreter=interpreter, installed=installed)
        link = root / "usr/bin/kubelet-trio"
        link.parent.mkdir(parents=True)
        link.symlink_to(_PREFIX / "bin/kubelet-trio")
        # Files alone: a directory's entry would replace the link that the base has at its place.
        top = Path(work, "agent.tar")
        oci.write_layer(root, top)
        layers = [oci.layer_of(archive), oci.layer_of(top)]
        started = {"Entrypoint": ["/usr/bin/kubelet-trio"], "Cmd": ["--help"], "Env": [_PATH]}
        config = oci.config_of(layers, started, "scripts/build-image")
        path = out / f"kubelet-trio-{tree.version()}.oci.tar"
        name = f"{NAME}:{tree.version()}"
        oci.write_archive(name, oci.manifest_of(layers, config), config, layers, path)
        return path


def main() -> int:
    """Run `scripts/build-image`."""
    parser = argparse.ArgumentParser(prog="scripts/build-image", description=__doc__)
    command.add_options(parser, "dist")
    parser.add_argument(
        "--rootfs",
        type=Path,
        metavar="DIR|TAR",
        help="the root file system below the agent [a Debian, made once with mmdebstrap]",
    )
    options = parser.parse_args()
    return command.run(lambda python: build(options.out, python, options.rootfs), options)
