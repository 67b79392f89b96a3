"""A containerd of its own: root, state, socket, bridge, subnet, cgroups, all under one number.

The number is claimed by locking `<tmp>/kubelet-trio/<n>/lock`, so that two runs never
share anything and what a killed run left behind is known by its free lock, and removed by
the next. Everything is removed by name, path or PID of ours; nothing global is touched
but the portmap plugin's chains (removed if they were not there before) and ip_forward.

Shims are not containerd's children, so `stop` and `start` are an outage that containers survive.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.harness import images, leftovers
from tests.harness.cri import CriClient
from tests.harness.machine import CGROUP_DRIVER, CONTAINERD, PATIENCE, busybox, cni_bin_dir, ctr
from tests.harness.ports import free_port

NUMBERS = range(200)
NETWORK = "kubelet-trio-test"
_STARTED = re.compile(
    r'^grpc_server_started_total\{grpc_method="(\w+)",grpc_service="runtime\.v1.*\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What belongs to one number, by path and by name."""

    number: int

    @property
    def base(self) -> Path:
        return Path(tempfile.gettempdir()) / "kubelet-trio" / str(self.number)

    @property
    def socket(self) -> Path:
        return self.base / "run" / "containerd.sock"

    @property
    def bridge(self) -> str:
        return f"kt-test{self.number}"

    @property
    def subnet(self) -> str:
        return f"10.231.{self.number}.0/24"

    @property
    def network(self) -> str:
        return f"{NETWORK}{self.number}"

    @property
    def cgroup(self) -> str:
        """The cgroup that agents use as theirs, as `--cgroup-root` takes it."""
        return f"/kttest{self.number}"  # no dash: systemd would nest slices


class Containerd:
    """One private containerd, from `open()` to `close()`, with outages in between."""

    def __init__(self, *, metrics: bool = False) -> None:
        self.layout, self._lock = _claim()
        self.metrics_port = free_port() if metrics else 0  # of its own Prometheus endpoint
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.layout.socket

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """What it says itself, of all its lives."""
        return self.layout.base / "containerd.log"

    @property
    def cdi_dir(self) -> Path | None:
        """Where it looks for CDI specs; None: this containerd has no CDI."""
        return self.layout.base / "cdi" if _has_cdi() else None

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    def open(self) -> None:
        """Write the configuration, start, and import the images."""
        base = self.layout.base
        for name in ("root", "run", "cni", "cdi", "ipam", "images", "work"):
            (base / name).mkdir()
        (base / "cni" / "10-net.conflist").write_text(json.dumps(_conflist(self.layout)))
        (base / "config.toml").write_text(_config(self.layout, self.metrics_port))
        leftovers.note_before(base)
        leftovers.make_cgroups(self.layout.cgroup)
        self.start()
        self._import_images()

    def start(self) -> None:
        """Start containerd and return when it answers."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [CONTAINERD, "--config", self.layout.base / "config.toml"],
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the tests, which then close us
            )
        with CriClient(self.socket, deadline=5) as cri:
            cri.version(wait=30)

    def stop(self) -> None:
        """Stop containerd; what runs in it goes on."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def reboot(self) -> None:
        """Do what a reboot of the machine does to it: its directories outlive it, nothing else.

        Whatever runs in it ends at once, and its mounts, network and cgroups are gone.
        """
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None
        base = self.layout.base
        leftovers.remove_shims(self.socket)
        leftovers.remove_cgroups(self.layout.cgroup)
        leftovers.unmount_under(base)
        leftovers.remove_traces(base / "run")
        leftovers.remove_bridge(self.layout.bridge)
        shutil.rmtree(base / "run")
        (base / "run").mkdir()
        leftovers.make_cgroups(self.layout.cgroup)
        self.start()

    def close(self) -> None:
        """Remove everything: pods, processes, mounts, network, cgroups, files."""
        if self._process is not None:
            with CriClient(self.socket) as cri, suppress(grpc.RpcError):
                cri.remove_all()
        self.stop()
        _remove(self.layout)
        self._lock.close()

    def __enter__(self) -> Containerd:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _ctr(self) -> list[str]:
        return [ctr(), "--address", str(self.socket), "-n", "k8s.io"]

    def calls(self) -> Counter[str]:
        """Return how often each method of CRI was called since it started; it needs its metrics."""
        url = f"http://127.0.0.1:{self.metrics_port}/v1/metrics"
        with urllib.request.urlopen(url, timeout=30 * PATIENCE) as answer:
            found = _STARTED.findall(answer.read().decode())
        calls = Counter[str]()
        for method, count in found:  # a line for each version of CRI
            calls[method] += int(float(count))
        return calls

    def delete_task(self, container: str) -> None:
        """Delete what containerd itself runs of a container, past CRI; nothing if it is gone."""
        command = [*self._ctr, "tasks", "delete", "--force", container]
        subprocess.run(command, capture_output=True, check=False, timeout=60)

    def _import_images(self) -> None:
        program = busybox()
        assert program is not None
        work = self.layout.base / "images"
        for image in (images.pause_image(work), images.busybox_image(program)):
            self.import_image(image)

    def import_image(self, image: images.Image) -> None:
        """Have one more image."""
        archive = self.layout.base / "images" / "archive.tar"
        images.write_archive(image, archive)
        command = [*self._ctr, "images", "import"]
        command += ["--snapshotter", snapshotter_of(self.layout.base), str(archive)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        archive.unlink()

    def container_infos(self) -> list[dict[str, Any]]:
        """Return what containerd itself holds of every container and sandbox: labels, OCI spec."""
        listed = subprocess.run(
            [*self._ctr, "containers", "ls", "-q"], check=True, capture_output=True, text=True
        )
        found = map(self._container_info, listed.stdout.split())
        return [info for info in found if info is not None]

    def _container_info(self, container: str) -> dict[str, Any] | None:
        command = [*self._ctr, "containers", "info", container]
        shown = subprocess.run(command, check=False, capture_output=True, timeout=60)
        if b"not found" in shown.stderr:
            return None  # removed since it was listed
        shown.check_returncode()
        told: dict[str, Any] = json.loads(shown.stdout)
        return told


@functools.cache
def _has_cdi() -> bool:
    """Whether CRI of this containerd knows CDI, which it does since 1.7."""
    shown = subprocess.run([CONTAINERD, "--version"], check=True, capture_output=True, text=True)
    found = re.search(r" v?(\d+)\.(\d+)\.", shown.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 7)


def _claim() -> tuple[Layout, Lock]:
    """Take the lowest free number; a number whose owner died is cleaned and taken."""
    for number in NUMBERS:
        layout = Layout(number)
        layout.base.mkdir(parents=True, exist_ok=True)
        lock = Lock.take(layout.base / "lock")
        if lock is None:
            continue
        _remove(layout, keep_lock=True)
        if layout.subnet not in _networks_in_use():
            return layout, lock
        _remove(layout)
        lock.close()
    raise RuntimeError("no free number for a private containerd")


class Lock:
    """An exclusive lock on a file, held until `close` or death."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, path: Path) -> Lock | None:
        """Return the lock, or None where it is held or was just given up."""
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        # Whoever held it may have removed the file meanwhile: then it locks nothing.
        if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
            return cls(fd)
        os.close(fd)
        return None

    def close(self) -> None:
        os.close(self._fd)


def _remove(layout: Layout, *, keep_lock: bool = False) -> None:
    leftovers.kill(leftovers.daemons_of(layout.base))
    leftovers.remove_shims(layout.socket)
    leftovers.remove_cgroups(layout.cgroup)
    leftovers.unmount_under(layout.base)
    leftovers.remove_traces(layout.base / "run")
    leftovers.remove_network(layout.base, layout.bridge, layout.network)
    for entry in layout.base.iterdir():
        if entry.name == "lock" and keep_lock:
            continue
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    if not keep_lock:
        with suppress(OSError):  # another run may have made it its own already
            layout.base.rmdir()


def _networks_in_use() -> set[str]:
    listed = subprocess.run(["ip", "-j", "route"], check=True, capture_output=True)
    return {route["dst"] for route in json.loads(listed.stdout or b"[]")}


def snapshotter_of(base: Path) -> str:
    """Return overlayfs where a mount of it under `base` works, else native."""
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        parts = {name: f"{scratch}/{name}" for name in ("lower", "upper", "work", "merged")}
        for part in parts.values():
            os.mkdir(part)
        options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        tried = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, parts["merged"]],
            check=False,
            capture_output=True,
        )
        if tried.returncode:
            return "native"
        subprocess.run(["umount", parts["merged"]], check=True)
        return "overlayfs"


def _conflist(layout: Layout) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": layout.bridge,
        "isGateway": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(layout.base / "ipam"),
            "ranges": [[{"subnet": layout.subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    return {"cniVersion": "0.4.0", "name": layout.network, "plugins": [bridge, portmap]}


def _config(layout: Layout, metrics_port: int) -> str:
    base = layout.base
    metrics = f'[metrics]\n  address = "127.0.0.1:{metrics_port}"\n' if metrics_port else ""
    cdi = f'  enable_cdi = true\n  cdi_spec_dirs = ["{base}/cdi"]\n' if _has_cdi() else ""
    # restrict_oom_score_adj: in a container of its own, a root without CAP_SYS_RESOURCE
    # may not lower oom_score_adj, and every start would fail.
    return f"""\
version = 2
root = "{base}/root"
state = "{base}/run"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "{layout.socket}"

[ttrpc]
  address = "{layout.socket}.ttrpc"

{metrics}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
{cdi}  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin_dir()}"
    conf_dir = "{base}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter_of(base)}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{base}/run/runc"
        SystemdCgroup = {str(CGROUP_DRIVER == "systemd").lower()}
"""
