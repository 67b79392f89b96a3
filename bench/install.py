"""The agent as a user installs it.

Some of its libraries look for other packages when they are imported (structlog for rich), and
what helps to develop it brings those: a development environment takes 4 MB more.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

REPO = Path(__file__).parents[1]
# What an installation has beside the packages: programs, bytecode, the way to this checkout.
_LEFT_OUT = {"..", "__pycache__", "_editable_impl_kubelet_trio.pth", "kubelet_trio"}


def install(directory: Path) -> Path:
    """Install this checkout without extras into a new virtual environment; return its command."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    programs = directory / "bin"
    subprocess.run(
        [str(programs / "pip"), "install", "-qq", "--compile", str(REPO)],
        check=True,
    )
    return programs / "kubelet-trio"


def link(directory: Path) -> Path:
    """Do what `install` does from the packages that this interpreter has: a second, no network.

    Only what the agent requires is linked into the new virtual environment. Raises
    PackageNotFoundError if this interpreter lacks any of it.
    """
    venv.create(directory, with_pip=False)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    for one in _required("kubelet-trio", {}).values():
        for name in {file.parts[0] for file in one.files or ()} - _LEFT_OUT:
            # Two of them share the directory lightkube.
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(one.locate_file(name))))
    (packages / "kubelet_trio").symlink_to(REPO / "kubelet_trio")
    program = directory / "bin" / "kubelet-trio"
    python = directory / "bin" / "python"
    program.write_text(
        f"#!{python}\nimport sys\nfrom kubelet_trio.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return program


def _required(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return a distribution and all that it requires without extras, by name."""
    name = name.lower().replace("_", "-")
    if name in found:
        return found
    found[name] = distribution(name)
    for text in found[name].requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            _required(wanted.name, found)
    return found
