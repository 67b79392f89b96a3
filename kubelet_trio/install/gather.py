"""Reads the facts of a machine. Everything here blocks, and only reads."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from kubelet_trio.cgroups import CgroupHost, cgroup_host, find_delegation
from kubelet_trio.config import (
    ConfigError,
    Settings,
    parse_flags,
    parse_swaps,
    settle,
)
from kubelet_trio.install.checks import BIN_DIRS, MODULES, SYSCTLS
from kubelet_trio.install.cni import parse_routes
from kubelet_trio.install.containerd import (
    CONFIG,
    ContainerdConfigError,
    ContainerdFiles,
    effective,
    imported_patterns,
)
from kubelet_trio.install.facts import (
    CniFacts,
    Facts,
    NamespaceFacts,
    Process,
    Security,
    UserFacts,
    Wanted,
)
from kubelet_trio.install.findings import OsRelease, parse_os_release
from kubelet_trio.install.rootless import NAMESPACE_SYSCTLS
from kubelet_trio.install.runtime import ask_runtime
from kubelet_trio.model import in_user_namespace, mapped_ids
from kubelet_trio.server import LOCK_NAME, find_holder

_PROGRAMS = (
    *("mount", "umount", "iptables", "modprobe", "systemctl", "containerd", "sysctl"),
    *("rootlesskit", "newuidmap", "newgidmap", "slirp4netns", "pasta"),
)
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX = 512  # bytes, more than struct timex has
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+\S*)")


def load_wanted(flags: Iterable[str], root: Path, *, systemd: bool) -> Wanted:
    """Return what the configuration that the flags name asks of the machine.

    Without `--config` it is the file of an installation; without that file, what `install` writes.
    """
    argv = list(flags)
    installed = root / "var/lib/kubelet/config.yaml"
    has_config = any(flag.startswith("--config=") for flag in argv)
    if not has_config and installed.exists():
        argv = [f"--config={installed}", *argv]
        has_config = True
    try:
        settings = settle(parse_flags(argv))
    except ConfigError as exc:
        return Wanted(exc.problems)
    wanted = _wanted(settings)
    if has_config:
        return wanted
    # As `contents.kubelet_config` writes it.
    return _as_installed(wanted, systemd=systemd)


def _as_installed(wanted: Wanted, *, systemd: bool) -> Wanted:
    return replace(
        wanted,
        cgroup_driver="systemd" if systemd else "cgroupfs",
        fail_cgroup_v1=cgroup_host().version == 2,
        static_pod_path=wanted.static_pod_path or "/etc/kubernetes/manifests",
    )


def _wanted(settings: Settings) -> Wanted:
    config, flags = settings.config, settings.flags
    ports = (
        ("healthzPort", config.healthz_bind_address, config.healthz_port),
        ("port", config.address, config.port),
        ("readOnlyPort", config.address, config.read_only_port),
        ("--ui-port", "127.0.0.1", flags.ui_port),
    )
    return Wanted(
        endpoint=config.container_runtime_endpoint,
        cgroup_driver=config.cgroup_driver,
        fail_swap_on=config.fail_swap_on,
        fail_cgroup_v1=config.fail_cgroup_v1,
        static_pod_path=config.static_pod_path,
        root_dir=flags.root_dir,
        pod_logs_dir=config.pod_logs_dir,
        cgroup_root=config.cgroup_root,
        hostname_override=flags.hostname_override,
        has_user_namespace_gate=config.feature_gates.get("KubeletInUserNamespace", False),
        ports=tuple(entry for entry in ports if entry[2] > 0),
    )


def has_systemd() -> bool:
    """Whether systemd is process 1, as sd_booted(3) decides."""
    return Path("/run/systemd/system").is_dir()


def gather(wanted: Wanted, root: Path = Path("/")) -> Facts:
    """Return the facts. Files are read below `root`; the kernel's are those of this machine."""
    host = cgroup_host()
    hostname = socket.gethostname()
    containerd = containerd_files(root, _containerd_version())
    agent = agent_pid(Path(wanted.root_dir))
    processes = tuple(_processes())
    return Facts(
        wanted,
        os=_os_release(root),
        is_root=os.geteuid() == 0,
        namespace=_namespace(host, wanted),
        user=_user(host, root),
        systemd=has_systemd(),
        hostname=hostname,
        is_hostname_resolved=_is_resolved(hostname),
        machine_id=_text(root / "etc/machine-id").strip(),
        cgroup_version=host.version,
        controllers=_controllers(host),
        swaps=parse_swaps(_text(Path("/proc/swaps"))),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        free=dict(_free(Path(wanted.root_dir), Path("/var/lib/containerd"))),
        programs=frozenset(p for p in _PROGRAMS if _which(p)),
        missing_modules=tuple(m for m in MODULES if not _has_module(m)),
        sysctls=dict(_sysctls()),
        busy_ports=dict(_busy_ports(wanted, agent)),
        is_clock_synchronised=_is_clock_synchronised(),
        processes=processes,
        agent_pid=agent,
        security=_security(root),
        runtime=ask_runtime(wanted.endpoint),
        cni=cni_facts(root, containerd),
        containerd=containerd,
    )


def _namespace(host: CgroupHost, wanted: Wanted) -> NamespaceFacts | None:
    if not in_user_namespace():
        return None
    return NamespaceFacts(mapped_ids(), find_delegation(host, wanted.cgroup_root, "cgroupfs"))


def _user(host: CgroupHost, root: Path) -> UserFacts | None:
    uid = os.getuid()
    if uid == 0 or in_user_namespace():
        return None
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    subuids, subgids = (
        subordinate_ids(_text(root / "etc" / file), name, uid) for file in ("subuid", "subgid")
    )
    delegated = None
    service = f"user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers"
    if host.version == 2 and (host.mounts[""] / service).exists():
        delegated = frozenset(_text(host.mounts[""] / service).split())
    sysctls = dict(_sysctls(NAMESPACE_SYSCTLS))
    return UserFacts(name, subuids, subgids, delegated, sysctls)


def subordinate_ids(text: str, name: str, uid: int) -> int:
    """Return how many IDs subuid(5) gives to a user: the sum of the lines of name or number."""
    total = 0
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if owner in (name, str(uid)) and owner and first.isdecimal() and count.isdecimal():
            total += int(count)
    return total


def containerd_files(root: Path, version: str) -> ContainerdFiles:
    """Read the configuration below `root` of a containerd of this version."""
    main = root / CONFIG.lstrip("/")
    text = _text(main) if main.exists() else None
    imported: list[tuple[str, str]] = []
    try:
        patterns = imported_patterns(text or "")
    except ContainerdConfigError:
        patterns = []
    for pattern in patterns:
        # A relative path is relative to the file that imports it.
        below = root / os.path.join(os.path.dirname(CONFIG), pattern).lstrip("/")
        found = map(Path, sorted(glob.glob(str(below))))
        imported += [(f"/{path.relative_to(root)}", _text(path)) for path in found]
    return ContainerdFiles(version, text, tuple(imported))


def _containerd_version() -> str:
    program = _which("containerd")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _VERSION.search(done.stdout)
    return found[1] if found else ""


def cni_facts(root: Path, containerd: ContainerdFiles) -> CniFacts:
    """Return the pod network's configuration and plugins below `root`."""
    try:
        cri = effective(containerd)
    except ContainerdConfigError:
        cri = effective(ContainerdFiles())
    conf_dir = root / cri.conf_dir.lstrip("/")
    # As libcni's ConfFiles, which the runtimes use.
    names = sorted(_entries(conf_dir))
    configs = [n for n in names if n.endswith((".conf", ".conflist", ".json"))]
    return CniFacts(
        tuple(f"{cri.conf_dir}/{name}" for name in configs),
        {d: _entries(root / d.lstrip("/")) for d in {cri.bin_dir, *BIN_DIRS}},
        parse_routes(_text(Path("/proc/net/route"))),
    )


def agent_pid(root_dir: Path) -> int:
    """Return the PID of the agent that runs on a root directory; 0 if none does."""
    path = root_dir / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else -1
    finally:
        os.close(descriptor)
    return 0


def _os_release(root: Path) -> OsRelease:
    found = _text(root / "etc/os-release") or _text(root / "usr/lib/os-release")
    return parse_os_release(found)


def _is_resolved(hostname: str) -> bool:
    try:
        socket.getaddrinfo(hostname, None)
    except OSError:
        return False
    return True


def _controllers(host: CgroupHost) -> frozenset[str]:
    if host.version == 2:
        return frozenset(_text(host.mounts[""] / "cgroup.controllers").split())
    return frozenset(host.mounts) - {""}


def _free(*paths: Path) -> Iterator[tuple[str, int]]:
    for path in paths:
        there = next(p for p in (path, *path.parents) if p.is_dir())
        try:
            yield str(path), shutil.disk_usage(there).free
        except OSError:
            continue


def _has_module(name: str) -> bool:
    # overlay is a file system, and shows in /proc/filesystems if it is built in.
    if f"\t{name}\n" in _text(Path("/proc/filesystems")) or Path(f"/sys/module/{name}").is_dir():
        return True
    builtin = _text(Path("/lib/modules") / os.uname().release / "modules.builtin")
    return f"/{name}.ko" in builtin


def _sysctls(names: Iterable[str] = SYSCTLS) -> Iterator[tuple[str, str]]:
    for name in names:
        value = _text(Path("/proc/sys") / name.replace(".", "/")).strip()
        if value:
            yield name, value


def _busy_ports(wanted: Wanted, agent: int) -> Iterator[tuple[int, str]]:
    for _, host, port in wanted.ports:
        if not _is_busy(host, port):
            continue
        holder = find_holder(host, port)
        if holder is None or not agent or holder.pid != agent:
            yield port, str(holder or "a program that cannot be found")


def _is_busy(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        # As Trio's listeners: a connection in TIME_WAIT keeps nobody from listening.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as exc:
            return exc.errno == errno.EADDRINUSE
    return False


def _is_clock_synchronised() -> bool | None:
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX))
    return None if state < 0 else state != _TIME_ERROR


def _processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        directory = Path("/proc") / entry
        try:
            name = (directory / "comm").read_text(errors="replace").strip()
            line = (directory / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended
        yield Process(int(entry), name, tuple(line.rstrip("\0").split("\0")))


def _security(root: Path) -> Security:
    enforcing = _text(Path("/sys/fs/selinux/enforce")).strip()
    return Security(
        apparmor=_text(Path("/sys/module/apparmor/parameters/enabled")).strip() == "Y",
        apparmor_parser=_which("apparmor_parser") is not None,
        selinux={"1": "enforcing", "0": "permissive"}.get(enforcing, ""),
        container_selinux=(root / "usr/share/containers/selinux/contexts").exists(),
    )


def _which(program: str) -> str | None:
    # A user's PATH lacks the sbin directories on Debian.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _entries(directory: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
