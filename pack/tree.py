"""The agent and everything that it imports, as one directory that works at one place.

The directory has the form of a virtual environment, so that `sys.executable` finds the packages
by itself: the agent starts other Python programs with it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]

# Below the packages of others: what only their developers, compilers and type checkers read.
_LEFT_OUT = ("tests", "_tests", "test", "docs", "__pycache__")
_LEFT_OUT_FILES = (".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".pyc")
# pip's notes on an installation that this directory is not any more.
_OF_PIP = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


class BuildError(Exception):
    """A package cannot be built here; the message says what to do."""


@dataclass(frozen=True)
class Python:
    """The Python that a build is for: the one that runs it, or `--python`."""

    program: Path
    version: str  # "3.11"

    @classmethod
    def of(cls, program: str | None) -> Python:
        """Ask an interpreter for its version.

        Raises:
            BuildError: It cannot be run, or is too old.
        """
        path = program or sys.executable
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            said = subprocess.run([path, "-I", "-c", ask], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as exc:
            raise BuildError(f"{path} is no Python: {exc}") from exc
        version = said.stdout.decode().strip()
        if tuple(map(int, version.split("."))) < (3, 11):
            raise BuildError(f"{path} is Python {version}; kubelet-trio needs 3.11 or later")
        return cls(Path(path), version)


@dataclass(frozen=True)
class Tree:
    """A built directory: where it is, and where it will be."""

    root: Path
    prefix: Path
    python: Python

    @property
    def packages(self) -> Path:
        """The directory of the Python packages."""
        return self.root / "lib" / f"python{self.python.version}" / "site-packages"

    def run(self, *arguments: str) -> str:
        """Return what the agent's command prints when it is run here.

        Raises:
            BuildError: It failed.
        """
        program = "import sys; sys.path.insert(0, sys.argv.pop(1)); " + _MAIN
        # -S: what is installed for this interpreter is not in the tree.
        options = ["-I", "-S", "-c", program, str(self.packages)]
        command = [str(self.python.program), *options, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"kubelet-trio {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def distributions(self) -> list[importlib.metadata.Distribution]:
        """Return the packages in it, by name."""
        found = importlib.metadata.distributions(path=[str(self.packages)])
        return sorted(found, key=lambda one: one.name.lower())

    def glibc(self) -> str:
        """Return the lowest version of glibc that all native modules run with (PEP 600)."""
        needed = [_oldest(one.read_text("WHEEL") or "") for one in self.distributions()]
        return ".".join(map(str, max(needed)))


_MAIN = "from kubelet_trio.cli import main; sys.argv[0] = 'kubelet-trio'; main()"
_LAUNCHER = """#!{python} -I
import sys
from kubelet_trio.cli import main
if __name__ == "__main__":
    sys.argv[0] = "kubelet-trio"
    sys.exit(main())
"""


def epoch() -> int:
    """Return the time that all files get: SOURCE_DATE_EPOCH, else that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(REPO), "log", "-1", "--format=%ct"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0  # an unpacked archive of the sources
    return int(said)


def version() -> str:
    """Return the version in pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (REPO / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def install(packages: Path, python: Python) -> None:
    """Install the agent and all that it needs into a new directory, without what nobody runs.

    Raises:
        BuildError: pip failed.
    """
    packages.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        program = str(python.program)
        if subprocess.run([program, "-m", "pip", "--version"], capture_output=True).returncode:
            # Debian's own Python comes without pip.
            made = subprocess.run([program, "-m", "venv", scratch], capture_output=True, text=True)
            if made.returncode:
                raise BuildError(f"{program} has no pip: install python3-venv\n{made.stdout}")
            program = f"{scratch}/bin/python"
        pip = [
            program,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--root-user-action=ignore",
        ]
        # Binary packages only: what a compiler makes of this machine runs on no older one.
        wheels = ["--only-binary=:all:", "--target", str(packages), str(REPO)]
        done = subprocess.run([*pip, *wheels], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise BuildError(f"pip could not install the agent:\n{done.stderr}")
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for path in list(_left_out(packages)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if shutil.which("strip"):
        for path in packages.rglob("*.so"):  # symbols are a fifth of them
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def build(
    root: Path, prefix: Path, python: Python, *, interpreter: str, installed: Path | None = None
) -> Tree:
    """Make the directory `root`, to be moved to `prefix`.

    `interpreter` is what its `bin/python3` links to, `installed` what `install` has made before.

    Raises:
        BuildError: pip failed, or a module does not compile.
    """
    tree = Tree(root, prefix, python)
    if installed is None:
        install(tree.packages, python)
    else:
        shutil.copytree(installed, tree.packages)
    _write_environment(tree, interpreter)
    _compile(tree)
    set_times(root)
    return tree


def _left_out(packages: Path) -> Iterator[Path]:
    for directory, inner, files in os.walk(packages):
        is_ours = Path(directory).is_relative_to(packages / "kubelet_trio")
        for name in list(inner):
            if name == "__pycache__" or (name in _LEFT_OUT and not is_ours):
                inner.remove(name)
                yield Path(directory, name)
        in_metadata = directory.endswith(".dist-info")
        for name in files:
            is_pip = in_metadata and name in _OF_PIP
            if is_pip or (name.endswith(_LEFT_OUT_FILES) and not is_ours):
                yield Path(directory, name)


def _write_environment(tree: Tree, interpreter: str) -> None:
    programs = tree.root / "bin"
    programs.mkdir()
    # `home` is the directory of the interpreter behind the link (PEP 405).
    home = os.path.dirname(interpreter)
    lines = [f"home = {home}", "include-system-site-packages = false"]
    (tree.root / "pyvenv.cfg").write_text("\n".join(lines) + "\n")
    (programs / "python3").symlink_to(interpreter)
    launcher = programs / "kubelet-trio"
    launcher.write_text(_LAUNCHER.format(python=tree.prefix / "bin" / "python3"))
    launcher.chmod(0o755)


def _compile(tree: Tree) -> None:
    # Unchecked: whoever replaces a source replaces its bytecode too, and no start reads both.
    program = (
        "import compileall, py_compile, sys; sys.exit(not compileall.compile_dir("
        "sys.argv[1], maxlevels=99, quiet=2, stripdir=sys.argv[2], prependdir=sys.argv[3], "
        "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH))"
    )
    paths = [str(tree.packages), str(tree.root), str(tree.prefix)]
    done = subprocess.run([str(tree.python.program), "-I", "-c", program, *paths])
    if done.returncode:
        raise BuildError("a module does not compile")


def set_times(root: Path) -> None:
    """Give all files below a directory the build's time, and rights that all may read."""
    moment = epoch()
    for directory, inner, files in os.walk(root, topdown=False):
        for name in [*inner, *files]:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
            os.utime(path, (moment, moment), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (moment, moment))


def license_of(one: importlib.metadata.Distribution) -> str:
    """Return what a distribution says of its license, in one line."""
    metadata = one.metadata
    for field in ("License-Expression", "License"):
        said = "".join(metadata.get_all(field, [])).strip()
        if said and "\n" not in said and said != "UNKNOWN":
            return said
    named = [str(line) for line in metadata.get_all("Classifier", [])]
    return ", ".join(line.split(" :: ")[-1] for line in named if line.startswith("License ::"))


def _oldest(wheel: str) -> tuple[int, ...]:
    """Return the lowest glibc of one wheel's tags; (2, 17) for one without native code."""
    named = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    tags = re.findall(r"^Tag: \S+-(\w+)$", wheel, re.MULTILINE)
    found = [
        tuple(map(int, match.groups()))
        if (match := re.match(r"manylinux_(\d+)_(\d+)_", tag))
        else named.get(tag.split("_")[0], (2, 17))
        for tag in tags
    ]
    return min(found, default=(2, 17))


def size(root: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())


def check(programs: Sequence[str], package: str) -> None:
    """Raise BuildError where a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            raise BuildError(f"{program} is missing: apt-get install {package}")
