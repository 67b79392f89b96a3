"""The machine that most users have, as a VM: cgroup v2, systemd as process 1, newer runtimes.

`python -m tests.harness.vm [pytest arguments]` boots it, copies the project and its tests in,
runs them there once for each containerd and cgroup driver, prints a table, and stops it again.
`--why-not` prints what is missing for that. The VM's own scripts (`build`, `start`, `stop`) are
those in KUBELET_TRIO_VM, or in ../shared/vm; what they keep is in KT_VM.

The VM has no network: the wheels for its Python and newer Debian packages come in by a share.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.harness.images import pause_image, write_archive

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = Path(os.environ.get("KUBELET_TRIO_VM", REPOSITORY.parent / "shared" / "vm"))
STATE = Path(os.environ.get("KT_VM", Path.home() / ".cache" / "kt-vm"))
SHARE, INSIDE = STATE / "share", "/mnt/share"
HOME = "/opt/kubelet-trio"  # in the VM: what was copied in
PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "ssh")
APT = "qemu-system-x86 qemu-utils mmdebstrap ovmf openssh-client"
PYTHON = "3.13"  # trixie's
# What the tests in the VM and the harness compile, beyond what the VM's scripts install.
EXTRA = ",gcc,libc6-dev,busybox-static"
PATIENCE = "10"  # software emulation is that much slower, and more under load
# Two sockets of one core with two threads, each a NUMA node with half of the memory. Only machine
# types before 5.1 take sizes of nodes beside the one piece of memory that the share needs.
SHAPE = {
    "MEM": "4096",
    "SMP": "4,sockets=2,cores=1,threads=2",
    "MACHINE": "pc-q35-5.0,hpet=off -numa node,cpus=0-1,mem=2048 -numa node,cpus=2-3,mem=2048"
    " -numa dist,src=0,dst=1,val=21",
}
NEWER = ("containerd", "runc")  # from NEWER_SUITE
NEWER_SUITE = "sid"
_NOT_NEEDED = ("mypy", "ruff", "grpcio-tools", "import-linter", "flake8", "betterproto2_compiler")
_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")


@dataclass(frozen=True, slots=True)
class Session:
    """One run of pytest in the VM."""

    runtime: str  # "stable": the VM's own containerd, "newer": that of NEWER_SUITE
    driver: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.runtime}-{self.driver}"


SAME = (
    "tests/containerd/test_oom.py",
    "tests/containerd/test_eviction.py",
    "tests/containerd/test_node_conditions.py",
)
ONCE = ("tests/containerd/test_stats.py", "tests/containerd/test_resize.py")
BOTH = ("tests/vm/test_cgroups.py", "tests/vm/test_cpusets.py", SAME[0])  # drivers
SESSIONS = (
    Session("stable", "systemd", ("tests/vm", *SAME, *ONCE)),
    Session("stable", "cgroupfs", BOTH),
    Session("newer", "systemd", ("tests/vm", *SAME)),
    Session("newer", "cgroupfs", BOTH),
)


def why_not() -> str:
    """Return why there can be no VM here; "" if there can."""
    if not (SCRIPTS / "start").exists():
        return f"there is no VM: no {SCRIPTS / 'start'} (KUBELET_TRIO_VM names its scripts)"
    if lacks := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"no {', '.join(lacks)}: apt-get install -y --no-install-recommends {APT}"
    if os.geteuid() != 0:
        return "needs root"
    return ""


class Machine:
    """The VM, from `open` to `close`."""

    def __init__(self) -> None:
        self._ssh: list[str] = []

    def __enter__(self) -> Machine:
        if not (STATE / "base.img").exists():
            _build()
        for fresh in (["--fresh"], [], []):  # `start` waits 180 s for a VM: too short under load
            started = subprocess.run(
                ["nice", "-n", "10", SCRIPTS / "start", "0", *fresh],
                check=False,
                stdout=subprocess.PIPE,
                text=True,
                env={**SHAPE, **os.environ},
            )
            if started.returncode == 0:
                self._ssh = shlex.split(started.stdout.strip().splitlines()[-1])
                return self
        self.__exit__()
        sys.exit("the VM did not start")

    def __exit__(self, *exc: object) -> None:
        subprocess.run([SCRIPTS / "stop", "0"], check=True)

    def run(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the VM; what it prints on stderr is shown here."""
        return subprocess.run(
            [*self._ssh, f"bash -ec {shlex.quote(script)}"],
            check=check,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def copy_in(self) -> None:
        """Unpack what `prepare` put on the share to the VM's own disk, which is faster."""
        self.run(
            f"rm -rf {HOME}; mkdir -p {HOME}/bin {HOME}/newer;"
            f"ln -s /usr/bin/python3 {HOME}/bin/python;"
            f"tar -xf {INSIDE}/inside.tar -C {HOME};"
            # The agent's program stands beside the interpreter, as in a virtual environment.
            f"printf '#!{HOME}/bin/python\\nfrom kubelet_trio.cli import main\\nmain()\\n'"
            f" > {HOME}/bin/kubelet-trio; chmod +x {HOME}/bin/kubelet-trio;"
            f"for deb in {INSIDE}/newer/*.deb; do dpkg -x $deb {HOME}/newer; done"
        )

    def versions(self, session: Session) -> str:
        """Return what the session runs on, in one line."""
        asked = (
            "source /etc/os-release; echo $PRETTY_NAME; uname -r; systemctl --version | head -1;"
            "containerd --version | cut -d' ' -f3; runc --version | head -1; python3 -V"
        )
        told = self.run(f"export PATH={_path(session)}; {asked}").stdout
        return ", ".join(told.splitlines())

    def test(self, session: Session, arguments: list[str]) -> Path:
        """Run the session's tests and return the file of their results."""
        results = SHARE / "results" / f"{session.name}.xml"
        results.parent.mkdir(exist_ok=True)
        results.unlink(missing_ok=True)
        tests = [a for a in arguments if a.startswith("tests/")] or list(session.tests)
        options = [a for a in arguments if not a.startswith("tests/")]
        environment = {
            "PATH": _path(session),
            "PYTHONPATH": f"{HOME}/site",
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "KUBELET_TRIO_IN_VM": session.runtime,
            "KUBELET_TRIO_TEST_PATIENCE": PATIENCE,
            "KUBELET_TRIO_TEST_CGROUP_DRIVER": session.driver,
        }
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        # Each plugin less is half a minute less.
        pytest = [
            "python",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-v",
            "-p",
            "no:anyio",
            *options,
            *tests,
        ]
        out = f"--junitxml={INSIDE}/results/{results.name}"
        # Its output is for whoever watches: a line a test, as it comes.
        script = f"cd {HOME}/tree && env {exports} {shlex.join([*pytest, out])} >&2"
        self.run(script, check=False)
        return results


def _path(session: Session) -> str:
    usual = f"{HOME}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    newer = f"{HOME}/newer/usr/bin:{HOME}/newer/usr/sbin:"
    return (newer if session.runtime == "newer" else "") + usual


def _build() -> None:
    images = STATE / "images"
    images.mkdir(parents=True, exist_ok=True)
    # The VM's scripts import what is here and take nothing at all for an error.
    write_archive(pause_image(images), images / "pause.tar")
    extra = os.environ.get("EXTRA", "") + EXTRA
    subprocess.run(["nice", SCRIPTS / "build"], check=True, env={**os.environ, "EXTRA": extra})


def prepare() -> None:
    """Put on the share what the VM needs: wheels unpacked, the project, its tests, debs."""
    SHARE.mkdir(parents=True, exist_ok=True)
    _unpack_wheels()
    _pip("install", "-q", "--no-deps", "--upgrade", "--target", str(SHARE / "site"), ".")
    shutil.rmtree(SHARE / "tree", ignore_errors=True)
    caches = shutil.ignore_patterns("__pycache__")
    # Without the package: the tests take the one that was installed.
    for name in ("tests", "pack"):
        shutil.copytree(REPOSITORY / name, SHARE / "tree" / name, ignore=caches)
    shutil.copy(REPOSITORY / "pyproject.toml", SHARE / "tree")
    _compile()
    # One file: thousands of small ones take minutes over the share.
    command = ["tar", "-cf", str(SHARE / "inside.tar"), "-C", str(SHARE), "site", "tree"]
    subprocess.run(command, check=True)
    _download_newer()


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, cwd=REPOSITORY)


def _unpack_wheels() -> None:
    """Unpack the wheels of what the project and its tests import, unless they are there."""
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    wanted = [name for name in wanted if not name.startswith(_NOT_NEEDED)]
    stamp = SHARE / "site" / ".wanted"
    if stamp.exists() and stamp.read_text() == "\n".join(wanted):
        return
    shutil.rmtree(SHARE / "site", ignore_errors=True)
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    kind = ["--only-binary=:all:", f"--python-version={PYTHON}", *platforms]
    _pip("install", "-q", "--target", str(SHARE / "site"), *kind, *wanted)
    stamp.write_text("\n".join(wanted))


def _compile() -> None:
    """Compile what is on the share with the VM's Python, in its root: there it takes minutes."""
    root = STATE / "rootfs"
    if not root.exists():
        return
    script = (
        f"mount --bind {SHARE} {root}{INSIDE} && chroot {root}"
        f" python3 -m compileall -q {INSIDE}/site {INSIDE}/tree >/dev/null || true"
    )
    subprocess.run(["nice", "unshare", "-m", "sh", "-c", script], check=True)


def _mirror() -> str:
    """Return where this machine's own apt has Debian from. Raises StopIteration if nowhere."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    asked += ["Created-By: Packages", "Label: Debian"]
    told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return next(line for line in told.splitlines() if line)


def _download_newer() -> None:
    """Download the newer packages with an apt of its own: this machine's keeps its suites."""
    base = STATE / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (base / name).mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={keyring}] {_mirror()} {NEWER_SUITE} main\n"
    (base / "sources.list").write_text(source)
    (base / "state" / "status").touch()
    options = [
        f"-oDir::Etc::sourcelist={base}/sources.list",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State={base}/state",
        f"-oDir::State::status={base}/state/status",
        f"-oDir::Cache={base}/cache",
        "-oAPT::Sandbox::User=root",
    ]
    target = SHARE / "newer"
    if target.exists() and any(target.iterdir()):
        return
    target.mkdir(exist_ok=True)
    subprocess.run(["apt-get", *options, "update", "-qq"], check=True)
    subprocess.run(["apt-get", *options, "download", "-qq", *NEWER], check=True, cwd=target)


def outcomes(results: Path) -> list[tuple[str, str, str]]:
    """Return test, outcome and the reason of a skip, from a file of results."""
    if not results.exists():
        return [("(pytest ended before it wrote its results)", "failed", "")]
    found = []
    for case in ElementTree.parse(results).iter("testcase"):  # our own file
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        outcome, why = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped" and outcome == "passed":
                outcome, why = "skipped", child.get("message", "")
        found.append((name, outcome, why))
    return found


def _chosen(arguments: list[str]) -> tuple[list[Session], list[str]]:
    """Return the sessions that `--session=NAME` names (all, if none), and the other arguments."""
    named = [a.partition("=")[2] for a in arguments if a.startswith("--session=")]
    rest = [a for a in arguments if not a.startswith("--session=")]
    known = {session.name: session for session in SESSIONS}
    if unknown := set(named) - set(known):
        sys.exit(f"no such session: {sorted(unknown)} (there are: {sorted(known)})")
    return [known[name] for name in named] or list(SESSIONS), rest


def main(arguments: list[str]) -> int:
    if reason := why_not():
        print(reason)
        return 1
    if arguments == ["--why-not"]:
        return 0
    sessions, rest = _chosen(arguments)
    prepare()
    failed = False
    with Machine() as machine:
        machine.copy_in()
        for session in sessions:
            print(f"\n## {session.name}\n\n{machine.versions(session)}\n", flush=True)
            began = time.monotonic()
            results = machine.test(session, rest)
            for test, outcome, why in outcomes(results):
                print(f"| `{test}` | {outcome}{f': {why}' if why else ''} |")
                failed |= outcome == "failed"
            print(f"\n{(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
