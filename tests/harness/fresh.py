"""A fresh Debian as a machine of its own, on which a stranger follows docs/install.md.

A chroot with processes, mounts, network, host name and cgroups of its own. Its process 1 is not
systemd but a shell, and `systemctl` is the stand-in. What is downloaded is kept in the user's
cache, and reaches the machine where apt and pip keep it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pack import rootfs, tree
from tests.harness import images, leftovers, systemctl
from tests.harness.chroot import Chroot, chroot
from tests.harness.containerd import snapshotter_of
from tests.harness.machine import busybox
from tests.harness.transcript import Terminal

REPO = Path(__file__).parents[2]
CLONE = "/root/kubelet-trio"
HOSTNAME = "node1"
BOOKWORM = tree.Python(Path("/usr/bin/python3"), "3.11")
# What containerd and the agent cannot do on this machine, and do otherwise for that reason alone:
# systemd's cgroups need systemd, and a root without CAP_SYS_RESOURCE lowers no oom_score_adj.
_CONTAINERD = """[Service]
ExecStart=
ExecStart=/usr/local/sbin/containerd-here
"""
_CONTAINERD_HERE = """#!/bin/sh
# With all that `kubelet-trio install` has set, but for these. The dump has the imports in it.
containerd config dump | sed -e '/^imports = /d' \
    -e 's/SystemdCgroup = true/SystemdCgroup = false/' \
    -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
    -e 's/^\\( *snapshotter = \\).*/\\1"{snapshotter}"/' >/run/containerd-here.toml
exec containerd --config /run/containerd-here.toml
"""
_AGENT_FLAGS = "KUBELET_TRIO_ARGS=--cgroup-driver=cgroupfs\n"


class FreshDebian:
    """The machine, and the terminals of who sits at it: one is online, the other needs no network.

    Services are in the machine's own network, whoever starts them, as with systemd.
    """

    def __init__(self, inside: Chroot, environment: dict[str, str]) -> None:
        self.inside, self.began = inside, time.monotonic()
        shell = ("env", f"--chdir={CLONE}", *(f"{k}={v}" for k, v in environment.items()), "sh")
        self.online = Terminal(inside.command(*shell, "-e", online=True))
        self.offline = Terminal(inside.command(*shell, "-e"))

    def run(self, script: str) -> str:
        """Run a block of the page where it has what it needs."""
        is_online = re.search(r"\b(apt-get|pip) ", script)
        return (self.online if is_online else self.offline).run(script, within=300)

    def size(self, path: str) -> int:
        """Return what a directory takes, in bytes."""
        told = self.inside.run("du", "--summarize", "--block-size=1", path)
        return int(told.split()[0])

    def close(self) -> None:
        self.online.close()
        self.offline.close()


@contextmanager
def fresh_debian(base: Path) -> Iterator[FreshDebian]:
    """Run the machine for as long as the block lasts; nothing of it outlives that."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    downloads = cache / "kubelet-trio" / "install"
    for name in ("apt", "pip"):
        (downloads / name).mkdir(parents=True, exist_ok=True)
    settings, places = _pip_settings()
    binds = {downloads / "apt": "/var/cache/apt/archives", downloads / "pip": "/var/cache/pip"}
    binds |= {place: str(place) for place in places}
    cgroup = f"/ktfresh{os.getpid()}"
    archive = rootfs.cached(BOOKWORM, with_apt=True)
    with (downloads / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt and pip each have their cache to themselves
        leftovers.make_cgroups(cgroup)
        try:
            with chroot(archive, base, _setup(cgroup, binds)) as inside:
                _prepare(inside.root)
                snapshotter = snapshotter_of(inside.root / "root")
                _write_services(inside.root, snapshotter)
                settings |= {
                    "PIP_CACHE_DIR": "/var/cache/pip",
                    "CONTAINERD_SNAPSHOTTER": snapshotter,
                }
                machine = FreshDebian(inside, settings)
                try:
                    yield machine
                finally:
                    machine.close()
        finally:
            leftovers.remove_cgroups(cgroup)


def _setup(cgroup: str, binds: dict[Path, str]) -> str:
    lines = [
        f"hostname {HOSTNAME}",
        # Of the new network, and with cgroups of its own.
        'umount --recursive "$1/sys"; mount -t sysfs sysfs "$1/sys"',
    ]
    hierarchies = leftovers.hierarchies()
    if hierarchies != [leftovers.CGROUPS]:
        lines.append('mount -t tmpfs tmpfs "$1/sys/fs/cgroup"')
    lines += [
        f'mkdir -p "$1{place}"; mount --bind {place}{cgroup} "$1{place}"' for place in hierarchies
    ]
    for source, place in binds.items():
        make = "mkdir -p" if source.is_dir() else "install -D /dev/null"
        there, here = f'"$1{place}"', shlex.quote(str(source))
        lines.append(f"{make} {there}; mount --bind {here} {there}")
    # A cable to nowhere, so that the machine has an address and a route.
    lines.append("ip link add eth0 type veth peer name cable")
    lines.append("ip addr add 192.0.2.10/24 dev eth0; ip link set eth0 up; ip link set cable up")
    lines.append("ip route add default dev eth0")
    return "\n".join(lines)


def _prepare(root: Path) -> None:
    """Bring what the machine has before anything is installed."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n192.0.2.10 {HOSTNAME}\n")
    (root / "etc/machine-id").write_text(f"{os.getpid():032x}\n")
    (root / "run/systemd/system").mkdir(parents=True)  # sd_booted(3)
    program = root / "usr/local/sbin/systemctl"
    program.write_text(f"#!{BOOKWORM.program}\n{Path(systemctl.__file__).read_text()}")
    program.chmod(0o755)
    (root / systemctl.STATE.relative_to("/")).mkdir()
    clone = root / CLONE.lstrip("/")
    for name in _sources():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, clone / name, follow_symlinks=False)
    _write_images(clone)


def _sources() -> list[str]:
    """Return the files of a clone: those of git, with what is not committed yet."""
    command = ["git", "-C", str(REPO), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*command, "--exclude-standard"], check=True, capture_output=True)
    names = listed.stdout.decode().rstrip("\0").split("\0")
    return [name for name in names if (REPO / name).exists()]


def _write_images(place: Path) -> None:
    """Write the archives that the page imports where no registry is reached."""
    program = busybox()
    assert program is not None
    pause = images.renamed(images.pause_image(place), "registry.example.org/pause:3.10")
    images.write_archive(pause, place / "pause.tar")
    (place / "pause").unlink()
    web = images.renamed(images.busybox_image(program), "docker.io/library/busybox:1.36")
    images.write_archive(web, place / "busybox.tar")


def _write_services(root: Path, snapshotter: str) -> None:
    program = root / "usr/local/sbin/containerd-here"
    program.write_text(_CONTAINERD_HERE.format(snapshotter=snapshotter))
    program.chmod(0o755)
    drop_in = root / "etc/systemd/system/containerd.service.d/here.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(_CONTAINERD)
    (root / "etc/default/kubelet-trio").write_text(_AGENT_FLAGS)


def _pip_settings() -> tuple[dict[str, str], list[Path]]:
    """Return how pip reaches its index here, as variables, and the files that these name."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    variables, places = {}, []
    # Variables of the environment are listed first, and win.
    for line in reversed(listed.splitlines()):
        key, _, value = line.partition("=")
        value = value.strip("'")
        name = key.rpartition(".")[2].upper().replace("-", "_")
        variables[f"PIP_{name}"] = value
        paths = (Path(word.removeprefix("file://")) for word in value.split())
        places += [path for path in paths if path.is_absolute() and path.exists()]
    # The directory of an index is below that of its files.
    return variables, sorted({p.parent if p.name == "simple" else p for p in places})
