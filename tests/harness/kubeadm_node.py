"""A machine for kubeadm, made of namespaces: its own mounts, network, host name and processes.

kubeadm's paths and ports are fixed (/etc/kubernetes, 6443, 10248), so that each node gets them to
itself: what it writes below /etc, /var and /usr/libexec lands in an overlay, and is gone with it.
All its processes end with the holder of its namespaces. The agent is `kubelet` on its PATH, and the
unit that starts it is docs/kubeadm.md's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.harness import images, leftovers, systemctl
from tests.harness.agent import PROGRAM
from tests.harness.containerd import Containerd
from tests.harness.control_plane import find_program
from tests.harness.cri import CriClient
from tests.harness.kubeadm_files import IMAGES
from tests.harness.machine import PATIENCE
from tests.harness.pods import WaitTimeoutError

DOCUMENT = Path(__file__).parents[2] / "docs" / "kubeadm.md"
_OVERLAID = ("/etc", "/var/lib", "/var/log", "/usr/libexec")
_EMPTY = ("/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd", "/var/log/pods")


def missing_programs() -> list[str]:
    """Return what is lacking for kubeadm, one phrase each."""
    names = (*IMAGES, "kubeadm", "kubectl", "openssl")
    return [f"no {name}" for name in names if find_program(name) is None]


class _Inside(Containerd):
    """A containerd within the namespaces of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.enter: list[str] = []

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.enter, "containerd", "--config", self.layout.base / "config.toml"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with CriClient(self.socket, deadline=5) as cri:
            cri.version(wait=30)


class KubeadmNode:
    """A node of its own, from `open()` to `close()`."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.containerd = _Inside()
        self.base = self.containerd.layout.base
        self._holder: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Make the namespaces, install `kubelet` and its unit, start containerd."""
        # A shell as process 1, because it reaps what has lost its parent.
        holder = "setpriv --pdeathsig KILL unshare --mount --net --uts --pid --fork --kill-child"
        self._holder = subprocess.Popen(
            [*holder.split(), "--mount-proc", "sh", "-c", "while sleep 3600; do :; done"]
        )
        self.containerd.enter = ["nsenter", "--target", str(self.pid), "--all", "--"]
        script = ["set -e"]
        for number, place in enumerate(_OVERLAID):
            parts = [self.base / "machine" / str(number) / part for part in ("upper", "work")]
            for part in parts:
                part.mkdir(parents=True)
            options = f"lowerdir={place},upperdir={parts[0]},workdir={parts[1]}"
            script.append(f"mount -t overlay overlay -o {options} {place}")
        for number, place in enumerate(_EMPTY):
            source = self.base / "machine" / f"empty{number}"
            source.mkdir()
            script.append(f"mkdir -p {place} && mount --bind {source} {place}")
        script += [f"hostname {self.name}", "ip link set lo up"]
        # Nobody answers the name otherwise, and each question would take its time.
        script.append(f"echo {self.address} {self.name} >>/etc/hosts")
        script.append("echo 1 >/proc/sys/net/ipv4/ip_forward")
        self.shell("\n".join(script))
        self._install()
        self.containerd.open()

    def _install(self) -> None:
        programs = self.base / "bin"
        programs.mkdir()
        kubeadm = find_program("kubeadm")
        assert kubeadm is not None
        (programs / "kubeadm").symlink_to(kubeadm)
        (programs / "kubelet").symlink_to(PROGRAM)
        stand_in = programs / "systemctl"
        stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {systemctl.__file__} "$@"\n')
        stand_in.chmod(0o755)
        # kubeadm 1.20 asks it whether images are here, and when it resets which pods are.
        crictl = programs / "crictl"
        crictl.write_text("#!/bin/sh\n")
        crictl.chmod(0o755)
        unit, drop_in = re.findall(r"```ini\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[:2]
        place = programs / "kubelet"
        self.write("/etc/systemd/system/kubelet.service", unit)
        self.write(
            "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
            drop_in.replace("/usr/local/bin/kubelet", str(place)),
        )
        cgroup = self.containerd.layout.cgroup
        extra = f"--fail-cgroupv1=false --fail-swap-on=false --cgroup-root={cgroup}"
        self.write("/etc/default/kubelet", f'KUBELET_EXTRA_ARGS="{extra} --keep-kernel-settings"\n')

    def add_images(self) -> None:
        """Have the images of a control plane."""
        for name, reference in IMAGES.items():
            program = find_program(name)
            assert program is not None
            files = {f"bin/{name}": (0o755, program.read_bytes())}
            for library in _libraries(program):
                files[library.lstrip("/")] = (0o755, Path(library).read_bytes())
            config = {"Env": ["PATH=/bin"]}
            self.containerd.import_image(images.Image(reference, files, config=config))

    def connect(self, other: KubeadmNode) -> None:
        """Join the networks of two nodes by a cable."""
        ends = [f"ktn{node.containerd.layout.number}" for node in (self, other)]
        _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for node, end in zip((self, other), ends, strict=True):
            _run("ip", "link", "set", end, "netns", str(node.pid))
            node.shell(
                f"ip link set {end} name eth0 && ip addr add {node.address}/24 dev eth0 "
                "&& ip link set eth0 up && ip route add default dev eth0"
            )

    @property
    def pid(self) -> int:
        """The process that holds the namespaces."""
        assert self._holder is not None
        deadline = time.monotonic() + 10
        listed = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        # Until unshare has forked, and the fork is the shell with its own /proc.
        while time.monotonic() < deadline:
            with suppress(OSError, IndexError):
                child = listed.read_text().split()[0]
                if Path(f"/proc/{child}/comm").read_text().strip() == "sh":
                    return int(child)
            time.sleep(0.02)
        raise WaitTimeoutError("no namespaces")

    # What is done on it

    def command(self, *words: str) -> list[str]:
        """Return a command that runs on this node."""
        path = f"{self.base}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [*self.containerd.enter, "env", f"PATH={path}", *words]

    def run(self, *words: str, within: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command on this node."""
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
            timeout=within * PATIENCE,
        )

    def shell(self, script: str) -> str:
        """Run a script on this node and return what it prints; it must succeed."""
        ran = self.run("sh", "-c", script)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file of this node, by a rename."""
        script = f'mkdir -p "$(dirname {path})" && cat > {path}.tmp && mv {path}.tmp {path}'
        subprocess.run(self.command("sh", "-c", script), input=text, text=True, check=True)

    def read(self, path: str) -> str:
        """Return the text of a file of this node."""
        return self.shell(f"cat {path}")

    def agent_log(self) -> str:
        """Return what the service has printed so far."""
        return self.run("cat", str(systemctl.STATE / "kubelet.log")).stdout

    def containers(self) -> set[str]:
        """Return the IDs of the running containers."""
        with CriClient(self.containerd.socket) as cri:
            return {c.id for c in cri.containers() if c.state == 1}

    def close(self) -> None:
        """End all processes of the node, and remove what they left."""
        if self._holder is not None:
            self._holder.kill()  # --kill-child: process 1 of the namespace, and so all others
            self._holder.wait()
        self.containerd.stop()
        leftovers.unmount_under(self.base)
        self.containerd.close()

    def __enter__(self) -> KubeadmNode:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _libraries(program: Path) -> list[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", told)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
