"""Removing what a private containerd leaves on the machine, and nothing of anyone else's."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.harness.machine import CGROUP_DRIVER

CGROUPS = Path("/sys/fs/cgroup")
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
CNI_RESULTS = Path("/var/lib/cni/results")
SHIM_SOCKETS = Path("/run/containerd/s")
_PORTMAP = ("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK")


def note_before(base: Path) -> None:
    """Write down what of the machine's network a run may change.

    Where another run is going on, it is what that one found: the last to end puts it back.
    """
    for other in base.parent.glob("*/before.json"):
        shutil.copy(other, base / other.name)
        return
    before = {"ip_forward": IP_FORWARD.read_text().strip(), "portmap": _has_chain(_PORTMAP[0])}
    (base / "before.json").write_text(json.dumps(before))


def shims_of(socket: Path) -> list[tuple[int, list[str]]]:
    """Return PID and command line of the shims that serve the containerd at `socket`."""
    return [
        (pid, command)
        for pid, command in _commands()
        if command[0].endswith("containerd-shim-runc-v2") and str(socket) in command
    ]


def remove_shims(socket: Path) -> None:
    """Kill the shims of the containerd at `socket` and remove the sockets that they serve."""
    shims = shims_of(socket)
    addresses = [SHIM_SOCKETS / _shim_digest(socket, command) for _, command in shims]
    kill([pid for pid, _ in shims])
    for address in addresses:
        address.unlink(missing_ok=True)


def _shim_digest(socket: Path, command: list[str]) -> str:
    named = dict(zip(command[1::2], command[2::2], strict=False))
    place = socket / named.get("-namespace", "") / named.get("-id", "")
    return hashlib.sha256(str(place).encode()).hexdigest()


def daemons_of(base: Path) -> list[int]:
    """Return the PIDs of containerds that run with the configuration in `base`."""
    config = str(base / "config.toml")
    return [
        pid
        for pid, command in _commands()
        if Path(command[0]).name == "containerd" and config in command
    ]


def kill(pids: list[int]) -> None:
    """Kill the processes and wait until they are gone, or dead and unreaped."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(_alive(pid) for pid in pids):
        time.sleep(0.02)


def hierarchies() -> list[Path]:
    """Return the mount points of cgroups: one on v2, one a controller on v1."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [d for d in sorted(CGROUPS.iterdir()) if d.is_dir() and (d / "cgroup.procs").exists()]


def make_cgroups(name: str) -> None:
    """Make the cgroup in every hierarchy; on v2 its controllers are handed down."""
    if CGROUP_DRIVER == "systemd":
        subprocess.run(["systemctl", "start", _slice(name)], check=True)
        return
    for root in hierarchies():
        cgroup = root / name.lstrip("/")
        cgroup.mkdir(exist_ok=True)
        for knob in ("cpuset.cpus", "cpuset.mems"):
            parent = root / knob
            if parent.exists() and (cgroup / knob).exists():  # v1 only: empty means unusable
                (cgroup / knob).write_text(parent.read_text())


def remove_cgroups(name: str) -> None:
    """Kill what still runs in the cgroup and remove it with all below it."""
    if CGROUP_DRIVER == "systemd":  # which stops all units of a slice with it
        subprocess.run(["systemctl", "stop", _slice(name)], check=False, capture_output=True)
        return
    for root in hierarchies():
        top = root / name.lstrip("/")
        if not top.is_dir():
            continue
        below = [Path(path) for path, _, _ in os.walk(top, topdown=False)]
        kill([int(p) for cgroup in below for p in _read(cgroup / "cgroup.procs").split()])
        for cgroup in below:
            _rmdir(cgroup)


def _slice(name: str) -> str:
    return f"{name.lstrip('/')}.slice"


def mounts_under(base: Path) -> list[str]:
    """Return the mount points at and below `base`, the last made first."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [p for p in points if f"{p}/".startswith(f"{base}/")][::-1]


def unmount_under(base: Path) -> None:
    """Unmount all at and below `base`; what follows may then remove it."""
    for point in mounts_under(base):
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    if still := mounts_under(base):
        raise RuntimeError(f"still mounted: {still}")


@contextmanager
def left_unmounted(base: Path) -> Iterator[None]:
    """Fail where a mount is left at or below `base` in the end, and unmount it all the same."""
    try:
        yield
    finally:
        left = mounts_under(base)
        unmount_under(base)
        assert not left, f"left mounted: {left}"


def loops_under(base: Path) -> list[str]:
    """Return the loop devices whose backing files are below `base`."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [f"/dev/{file.parts[3]}" for file in files if _read(file).startswith(f"{base}/")]


def detach_loops_under(base: Path) -> None:
    """Detach the loop devices whose backing files are below `base`."""
    for device in loops_under(base):
        subprocess.run(["losetup", "-d", device], check=False, capture_output=True)


def remove_traces(state: Path) -> None:
    """Remove what shims and CNI plugins keep, outside `state`, of the tasks named in there."""
    for task in state.glob("io.containerd.runtime.v2.task/*/*"):
        address = _read(task / "address").removeprefix("unix://")
        if address:
            Path(address).unlink(missing_ok=True)
        for result in CNI_RESULTS.glob(f"*-{task.name}-*"):
            result.unlink(missing_ok=True)


def remove_bridge(bridge: str) -> None:
    if Path("/sys/class/net", bridge).exists():
        subprocess.run(["ip", "link", "delete", bridge], check=True)


def remove_network(base: Path, bridge: str, network: str) -> None:
    """Remove the bridge and the plugins' rules, and put ip_forward back."""
    remove_bridge(bridge)
    try:
        before = json.loads((base / "before.json").read_text())
    except FileNotFoundError:
        return
    _remove_rules(network)
    if any(d != base and (d / "before.json").exists() for d in base.parent.iterdir()):
        return
    if not before["portmap"]:
        _remove_portmap()
    IP_FORWARD.write_text(before["ip_forward"])


def _remove_rules(network: str) -> None:
    """Drop the hostPort rules whose comment names our network."""
    for rule in _rules():
        if f'name: \\"{network}\\"' in rule:
            chain = rule.split(" -j ")[-1].split()[0]
            _iptables(rule.replace("-A ", "-D ", 1))
            _iptables(f"-F {chain}")
            _iptables(f"-X {chain}")


def _remove_portmap() -> None:
    if any(rule.startswith(f"-A {_PORTMAP[0]} ") for rule in _rules()):
        return  # in use by someone else
    for rule in _rules():
        if any(rule.endswith(f"-j {chain}") for chain in _PORTMAP):
            _iptables(rule.replace("-A ", "-D ", 1))
    for chain in _PORTMAP:
        if _has_chain(chain):
            _iptables(f"-F {chain}")
            _iptables(f"-X {chain}")


def _rules() -> list[str]:
    listed = subprocess.run(
        ["iptables", "-w", "-t", "nat", "-S"], check=False, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


def _has_chain(chain: str) -> bool:
    return f"-N {chain}" in _rules()


def _iptables(rule: str) -> None:
    arguments = ["iptables", "-w", "-t", "nat", *shlex.split(rule)]
    subprocess.run(arguments, check=False, capture_output=True)


def _commands() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            command = _read(entry / "cmdline").split("\0")
            if command[0]:
                yield int(entry.name), command


def _alive(pid: int) -> bool:
    state = _read(Path("/proc", str(pid), "stat")).rpartition(")")[2].split()
    return bool(state) and state[0] not in ("Z", "X")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _rmdir(cgroup: Path) -> None:
    """Remove a cgroup; a process just killed may hold it for a moment."""
    deadline = time.monotonic() + 5
    while True:
        try:
            cgroup.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
