"""An ordinary user with a containerd and an agent in a user namespace, as docs/rootless.md has it.

The user exists only in a mount namespace of its own: there /etc/passwd, /etc/subuid and the like
are copies with one more line, /dev/net/tun and /dev/fuse have the modes that udev gives them, and
this Python can be read by everybody. The page's own blocks write the user's files. What the page
says of cgroup v1 is done here where the machine has that; systemd's part, to start the two units,
is done by hand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kubelet_trio.cgroups import cgroup_version
from tests.harness import images, leftovers
from tests.harness.agent import PROGRAM
from tests.harness.machine import PATIENCE, busybox
from tests.harness.pods import Json

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "rootless.md"
PROGRAMS = ("rootlesskit", "newuidmap", "slirp4netns", "containerd", "iptables")
USER = 61234
_FIRST_ID, _IDS = 700_000_000, 65536
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONTAINERD, _AGENT = "kubelet-trio-containerd.service", "kubelet-trio.service"
_HOLD = """
set -e
base=$1; shift
for name in passwd group subuid subgid; do
    mount --bind "$base/etc/$name" "/etc/$name"
done
mount --bind "$base/dev/tun" /dev/net/tun
mount --bind "$base/dev/fuse" /dev/fuse
# What lies below a directory that is closed to others: all else in there is covered.
number=0
for needed; do
    number=$((number + 1))
    mkdir "$base/keep$number"
    mount --bind "${needed#*:}" "$base/keep$number"
done
number=0
for needed; do
    number=$((number + 1))
    [ "$(stat -c %a "${needed%%:*}")" = 755 ] || mount -t tmpfs -o mode=755 none "${needed%%:*}"
    mkdir -p "${needed#*:}"
    mount --move "$base/keep$number" "${needed#*:}"
done
echo ready
exec sleep infinity
"""


def why_not() -> str:
    """Return why there can be no such user here; "" if there can."""
    if lacks := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"no {', '.join(lacks)}"
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    tried = subprocess.run(
        [*as_user, "unshare", "--user", "--map-root-user", "--net", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"users may not make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Rootless:
    """The user's files and processes, below `base`."""

    def __init__(self, base: Path, holder: int) -> None:
        self.base, self._holder = base, holder
        self.home, self.runtime = base / "home", base / "run"
        self.root = self.home / ".local/state/kubelet-trio"
        self.manifests = self.home / ".config/kubelet-trio/manifests"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # As the user

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs a program as the user, in no namespace of the user's."""
        environment = {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "PATH": f"{PROGRAM.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
        }
        named = [f"{name}={value}" for name, value in environment.items()]
        who = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        enter = ["nsenter", f"--target={self._holder}", "--mount"]
        return [*enter, "setpriv", *who, "env", "-i", "--chdir=/", *named, *arguments]

    def run(self, *arguments: str, check: bool = True) -> str:
        """Run a program as the user to its end, and return what it printed."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=120 * PATIENCE
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def inside(self, *arguments: str, check: bool = True) -> str:
        """Run a program in the user's namespace by the page's script."""
        return self.run(str(self.config("inside")), *arguments, check=check)

    def cli(self, *arguments: str) -> str:
        """Run a command of the agent as the user, outside of the namespace, without flags."""
        return self.run("kubelet-trio", *arguments)

    def config(self, name: str) -> Path:
        """Return the path of one of the page's files."""
        return self.home / ".config/kubelet-trio" / name

    # The page

    def write_files(self) -> None:
        """Run the blocks of the page, and do what it says of cgroup v1."""
        for block in _BLOCK.findall(PAGE.read_text()):
            self.run("sh", "-ec", block)
        if cgroup_version() == 1:
            self.edit("containerd.toml", "disable_cgroup = false", "disable_cgroup = true")
            self.edit("inside", " --cgroup --", " --")
            self.edit(_CONTAINERD, " --cgroupns --evacuate-cgroup2=node", "")
        # The machine's own: an image that is not pulled, a port that another run may have.
        text = f'[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "{images.PAUSE}"'
        self.edit("containerd.toml", '[plugins."io.containerd.grpc.v1.cri"]', text)
        self.edit(_CONTAINERD, "--publish=127.0.0.1:10250:10250/tcp ", "")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text of one of the page's files, which must have it."""
        path = self._unit(name) if name.endswith(".service") else self.config(name)
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))

    def _unit(self, name: str) -> Path:
        return self.home / ".config/systemd/user" / name

    # What systemd does

    def start(self, unit: str) -> None:
        """Start a unit's command."""
        (line,) = re.findall(r"^ExecStart=(.+)$", self._unit(unit).read_text(), re.MULTILINE)
        expanded = line.replace("%h", str(self.home)).replace("%t", str(self.runtime))
        with (self.base / f"{unit}.log").open("ab") as log:
            self._processes[unit] = subprocess.Popen(
                self.command(*shlex.split(expanded)), stdout=log, stderr=log, start_new_session=True
            )

    def start_containerd(self) -> None:
        """Start the namespace, wait for its containerd, and import the images."""
        self.start(_CONTAINERD)
        self.wait(lambda: (self.runtime / "kubelet-trio/child_pid").exists(), _CONTAINERD)
        ctr = ("ctr", "-n", "k8s.io", "images")
        self.wait(lambda: "REF" in self.inside(*ctr, "ls", check=False), _CONTAINERD)
        work, program = self.base / "images", busybox()
        assert program is not None
        work.mkdir()
        for image in (images.pause_image(work), images.busybox_image(program)):
            images.write_archive(image, work / "archive.tar")
            self.inside(*ctr, "import", "--snapshotter", "overlayfs", str(work / "archive.tar"))

    def start_agent(self) -> None:
        """Start the agent and wait until its control socket answers."""
        self.start(_AGENT)
        self.wait(lambda: "Node:" in self.run("kubelet-trio", "status", check=False), _AGENT)

    def stop_agent(self) -> None:
        """End the agent in order: systemd signals all processes of its unit."""
        process = self._processes.pop(_AGENT)
        for child in _children(process.pid):
            os.kill(child, signal.SIGTERM)
        process.wait(60 * PATIENCE)

    @property
    def agent_log(self) -> list[Json]:
        """The lines that the agents have logged."""
        lines = (self.base / f"{_AGENT}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait(self, is_so: Callable[[], bool], unit: str, within: float = 60) -> None:
        """Wait until something is so, while a unit runs."""
        deadline = time.monotonic() + within * PATIENCE
        while not is_so():
            log = (self.base / f"{unit}.log").read_text()[-5000:]
            assert self._processes[unit].poll() is None, f"{unit} has ended:\n{log}"
            assert time.monotonic() < deadline, f"{unit} does not do it:\n{log}"
            time.sleep(0.2)

    def put(self, manifest: Json) -> None:
        """Write a manifest as the user."""
        path = self.manifests / f"{manifest['metadata']['name']}.yaml"
        aside = self.base / "manifest"
        aside.write_text(json.dumps(manifest))
        aside.rename(path)

    def close(self) -> None:
        """End everything: the namespace has PIDs of its own, which end with its first one."""
        if _AGENT in self._processes:
            self.stop_agent()
        for process in self._processes.values():
            process.terminate()
            process.wait(60 * PATIENCE)


def _children(pid: int) -> list[int]:
    """Return a process' descendants, the last ones first."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [*_children(int(child)), int(child)]
    return found


def _closed(path: Path) -> Path | None:
    """Return the topmost directory above a path that is closed to others."""
    above = (p for p in reversed(path.resolve().parents) if not p.stat().st_mode & 0o001)
    return next(above, None)


def _machine_files(base: Path) -> None:
    """Make the user's directories, and what the namespace has in the place of the machine's."""
    base.chmod(0o755)
    for name in ("etc", "dev", "home", "run"):
        (base / name).mkdir()
    home = f"rootless:x:{USER}:{USER}::{base}/home:/bin/sh\n"
    (base / "etc/passwd").write_text(Path("/etc/passwd").read_text() + home)
    (base / "etc/group").write_text(Path("/etc/group").read_text() + f"rootless:x:{USER}:\n")
    for name in ("subuid", "subgid"):
        Path("/etc", name).touch()  # a mount point; Debian's adduser makes it as well
        (base / "etc" / name).write_text(f"rootless:{_FIRST_ID}:{_IDS}\n")
    for name, minor in (("tun", 200), ("fuse", 229)):
        os.mknod(base / "dev" / name, 0o20666, os.makedev(10, minor))
        (base / "dev" / name).chmod(0o666)  # mknod(2) obeys the umask
    for name in ("home", "run"):
        os.chown(base / name, USER, USER)
    (base / "run").chmod(0o700)


@contextmanager
def rootless() -> Iterator[Rootless]:
    """Make the user, write the page's files and start its containerd; remove it all afterwards."""
    # Not below pytest's directories, which are root's alone.
    base = Path(tempfile.mkdtemp(prefix="kt-rootless-"))
    _machine_files(base)
    closed = {path: _closed(path) for path in (Path(sys.base_prefix), REPO)}
    needed = [f"{at}:{path}" for path, at in closed.items() if at is not None]
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", _HOLD, "hold", base, *needed],
        stdout=subprocess.PIPE,
    )
    made = Rootless(base, holder.pid)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", "the user's mount namespace did not come up"
        made.write_files()
        made.start_containerd()
        yield made
    finally:
        made.close()
        holder.kill()
        holder.communicate()
        leftovers.unmount_under(base)
        shutil.rmtree(base)
