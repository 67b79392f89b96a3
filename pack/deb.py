"""Build the Debian package with dpkg-deb: `scripts/build-deb`."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from pack import command, tree

NAME = "kubelet-trio"
PREFIX = Path("/opt/kubelet-trio")
_SOURCES = Path(__file__).parent / "debian"
_CONFFILES = {"default": "etc/default/kubelet-trio"}
_UNIT = "usr/lib/systemd/system/kubelet-trio.service"
_AUTHORS = "The kubelet-trio authors <maintainers@kubelet-trio.example>"
# Where each shell looks for what distributions bring.
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/kubelet-trio",
    "zsh": "usr/share/zsh/vendor-completions/_kubelet-trio",
    "fish": "usr/share/fish/vendor_completions.d/kubelet-trio.fish",
}


def build(
    out: Path,
    python: tree.Python,
    *,
    version: str,
    compression: str,
    installed: Path | None = None,
) -> Path:
    """Write `kubelet-trio_VERSION_ARCH.deb` into `out` and return its path.

    Raises:
        BuildError: A program is missing, or one failed.
    """
    tree.check(["dpkg-deb", "dpkg"], "dpkg")
    with tempfile.TemporaryDirectory(prefix="build-deb-") as work:
        root = Path(work, "root")
        interpreter = f"/usr/bin/python{python.version}"
        here = root / str(PREFIX)[1:]
        made = tree.build(here, PREFIX, python, interpreter=interpreter, installed=installed)
        _add_files(root)
        _add_unit(root, made)
        _add_documents(root, made, version)
        _add_completions(root, made)
        tree.set_times(root)
        architecture = _architecture()
        _add_control(root, made, version, architecture)
        tree.set_times(root / "DEBIAN")
        path = out / f"{NAME}_{version}_{architecture}.deb"
        out.mkdir(parents=True, exist_ok=True)
        pack = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", str(root)]
        os.environ["SOURCE_DATE_EPOCH"] = str(tree.epoch())
        done = subprocess.run([*pack, str(path)], capture_output=True, text=True)
        if done.returncode:
            raise tree.BuildError(f"dpkg-deb: {done.stderr}")
        return path


def repack(deb: Path, version: str, out: Path) -> Path:
    """Write the same package with another version, for tests of an upgrade."""
    with tempfile.TemporaryDirectory(prefix="build-deb-") as work:
        subprocess.run(["dpkg-deb", "-R", str(deb), f"{work}/root"], check=True)
        control = Path(work, "root/DEBIAN/control")
        lines = control.read_text().splitlines(keepends=True)
        changed = [f"Version: {version}\n" if one.startswith("Version:") else one for one in lines]
        control.write_text("".join(changed))
        path = out / f"{NAME}_{version}.deb"
        pack = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", f"{work}/root"]
        subprocess.run([*pack, str(path)], check=True, capture_output=True)
        return path


def _architecture() -> str:
    told = ["dpkg", "--print-architecture"]
    return subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()


def _add_files(root: Path) -> None:
    for source, target in _CONFFILES.items():
        _copy(_SOURCES / source, root / target)
    _copy(_SOURCES / "lintian-overrides", root / "usr/share/lintian/overrides" / NAME)
    link = root / "usr/bin" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(PREFIX / "bin" / NAME)


def _add_unit(root: Path, made: tree.Tree) -> None:
    path = root / _UNIT
    path.parent.mkdir(parents=True)
    path.write_text(made.run("install", "--print-unit", f"--program=/usr/bin/{NAME}"))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _add_documents(root: Path, made: tree.Tree, version: str) -> None:
    documents = root / "usr/share/doc" / NAME
    documents.mkdir(parents=True)
    moment = format_datetime(datetime.fromtimestamp(tree.epoch(), UTC))
    changes = f"{NAME} ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n"
    changes += f" -- {_AUTHORS}  {moment}\n"
    _write_zipped(documents / "changelog.gz", changes.encode())
    _write_zipped(documents / "CHANGELOG.md.gz", (tree.REPO / "CHANGELOG.md").read_bytes())
    _copy(tree.REPO / "examples/web.yaml", documents / "examples/web.yaml")
    _copy(tree.REPO / "examples/crash.yaml", documents / "examples/crash.yaml")
    # What each package brings as its license stays in its dist-info.
    lines = (_SOURCES / "copyright").read_text()
    for one in made.distributions():
        if one.name != NAME:
            license_name = tree.license_of(one) or "see its dist-info"
            lines += f" {one.name} {one.version}: {license_name}\n"
    (documents / "copyright").write_text(lines)


def _add_completions(root: Path, made: tree.Tree) -> None:
    """Add what the command itself writes for shells and man."""
    for shell, place in COMPLETIONS.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.run("completion", shell))
    with tempfile.TemporaryDirectory(prefix="build-deb-") as pages:
        made.run("man", pages)
        for page in sorted(Path(pages).rglob("*.[1-8]")):
            target = root / f"usr/share/man/man{page.suffix[1:]}" / f"{page.name}.gz"
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_zipped(target, page.read_bytes())
    if not (main := root / f"usr/share/man/man1/{NAME}.1.gz").exists():
        raise tree.BuildError(f"`{NAME} man` wrote no /{main.relative_to(root)}")


def _write_zipped(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def _add_control(root: Path, made: tree.Tree, version: str, architecture: str) -> None:
    kilobytes = tree.size(root) // 1024
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  "
        f"{path.relative_to(root)}\n"
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    ]
    control = root / "DEBIAN"
    control.mkdir()
    values = {
        "version": version,
        "architecture": architecture,
        "size": str(kilobytes),
        "python": f"python{made.python.version}",
        "glibc": made.glibc(),
        "authors": _AUTHORS,
    }
    (control / "control").write_text((_SOURCES / "control").read_text().format(**values))
    (control / "md5sums").write_text("".join(sums))
    (control / "conffiles").write_text("".join(f"/{path}\n" for path in _CONFFILES.values()))
    for script in ("postinst", "prerm", "postrm"):
        _copy(_SOURCES / script, control / script)
        (control / script).chmod(0o755)


def main() -> int:
    """Run `scripts/build-deb`."""
    parser = argparse.ArgumentParser(prog="scripts/build-deb", description=__doc__)
    command.add_options(parser, "dist")
    parser.add_argument("--deb-version", default=tree.version(), help="its version [%(default)s]")
    parser.add_argument(
        "--compression", default="xz", choices=["xz", "gzip", "zstd", "none"], help="[%(default)s]"
    )
    options = parser.parse_args()
    return command.run(
        lambda python: build(
            options.out, python, version=options.deb_version, compression=options.compression
        ),
        options,
    )
