"""Removes what an agent has made on a machine: pods, mounts, cgroups, state, logs, leases.

Only what is a kubelet's: sandboxes with the labels of one and no instance of an embedded agent,
the root directory, the cgroup of all pods. Images, other containers, manifests and the files of an
installation stay.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from kubelet_trio.cgroups import (
    CGROUP_ERRORS,
    CgroupDriver,
    CgroupHost,
    cgroup_path,
    parse_cgroup,
    qos_cgroup,
    remove_cgroup,
)
from kubelet_trio.containers import container_info, owned_by, pod_identity, remove_links
from kubelet_trio.cri import Runtime, RuntimeCallError
from kubelet_trio.install.cni import BRIDGE, NETWORK
from kubelet_trio.install.facts import Wanted
from kubelet_trio.install.gather import agent_pid
from kubelet_trio.install.system import run_commands
from kubelet_trio.model import ContainerId, SandboxId, remove_empty, remove_tree
from kubelet_trio.runtimes import make_runtime
from kubelet_trio.volumes import MountPoint, is_bound_to_itself, read_mountinfo

T = TypeVar("T")

# The agent's drop-in of logind, and what it begins with.
LOGIND = "/etc/systemd/logind.conf.d/99-kubelet.conf"
_LOGIND_MARK = "# Kubelet logind override"
_LEASES = Path("/var/lib/cni/networks")
# Configuration, which is `uninstall`'s or the user's.
_KEPT = frozenset({"config.yaml", "kubeadm-flags.env"})
_CALL_LIMIT = 60.0  # seconds for a call of the runtime, beside a grace period
_STOP_LIMIT = 90.0  # seconds for an agent to end
_AT_ONCE = 10  # pods that are ended at a time


@dataclass(frozen=True, slots=True)
class LeftPod:
    """A pod that the runtime holds."""

    sandbox: SandboxId
    uid: str
    name: str  # namespace/name
    # Running containers, with the seconds that each may take to end.
    running: Mapping[ContainerId, int]


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset removes."""

    pods: Sequence[LeftPod]
    mounts: Sequence[str]  # at and below the root directory, deepest first
    cgroups: Sequence[Path]
    paths: Sequence[Path]  # files and directory trees
    bridge: bool  # whether the bridge of our network is there

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield a verb and its object for each step."""
        yield from (("end", f"pod {pod.name} ({len(pod.running)} running)") for pod in self.pods)
        yield from (("unmount", path) for path in self.mounts)
        yield from (("remove", f"cgroup {path}") for path in self.cgroups)
        yield from (("remove", str(path)) for path in self.paths)
        if self.bridge:
            yield "remove", f"bridge {BRIDGE}, if no pod uses it"


async def list_pods(runtime: Runtime, grace_limit: int) -> list[LeftPod]:
    """Return the pods of the daemon and of a Go kubelet. Raises `RuntimeCallError`."""
    is_own = owned_by("")
    containers = [c for c in await runtime.list_containers() if is_own(c.annotations)]
    found = []
    for sandbox in await runtime.list_pod_sandboxes():
        identity = pod_identity(sandbox.labels)
        if identity is None or not is_own(sandbox.annotations):
            continue
        running = {}
        for container in containers:
            if (
                container.pod_sandbox_id == sandbox.id
                and container.state.name == "CONTAINER_RUNNING"
            ):
                told = container_info(container.annotations)
                grace = told.termination_grace_period
                running[ContainerId(container.id)] = min(
                    grace_limit if grace is None else grace, grace_limit
                )
        name = f"{identity.namespace}/{identity.name}"
        found.append(LeftPod(SandboxId(sandbox.id), identity.uid, name, running))
    return found


async def end_pods(runtime: Runtime, pods: Iterable[LeftPod]) -> list[str]:
    """Stop and remove pods; return why some could not be."""
    failed: list[str] = []
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def end(pod: LeftPod) -> None:
        async with limit:
            try:
                async with trio.open_nursery() as stops:
                    for container, grace in pod.running.items():
                        stops.start_soon(runtime.stop_container, container, grace)
                await runtime.stop_pod_sandbox(pod.sandbox)
                await runtime.remove_pod_sandbox(pod.sandbox)
            except* RuntimeCallError as errors:
                failed.append(f"pod {pod.name}: {errors.exceptions[0]}")

    async with trio.open_nursery() as nursery:
        for pod in pods:
            nursery.start_soon(end, pod)
    return failed


def ask_pods(wanted: Wanted, grace_limit: int) -> list[LeftPod]:
    """Return the pods that the configured runtime holds. Blocks; raises `RuntimeCallError`."""

    async def ask(runtime: Runtime) -> list[LeftPod]:
        return await list_pods(runtime, grace_limit)

    return trio.run(_with_runtime, wanted, ask)


def run_end(wanted: Wanted, pods: Sequence[LeftPod]) -> list[str]:
    """End pods in the configured runtime; return why some could not be. Blocks."""

    async def end(runtime: Runtime) -> list[str]:
        return await end_pods(runtime, pods)

    return trio.run(_with_runtime, wanted, end) if pods else []


async def _with_runtime(wanted: Wanted, act: Callable[[Runtime], Awaitable[list[T]]]) -> list[T]:
    seam = make_runtime(
        wanted.endpoint, Path(wanted.root_dir), request_timeout=_CALL_LIMIT, allow_root=True
    )
    found: list[T] = []
    failure: RuntimeCallError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(seam.connection.run)
        try:
            found = await act(seam.runtime)
        except RuntimeCallError as exc:  # raised below: a nursery would wrap it in a group
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found


def plan_reset(
    wanted: Wanted,
    pods: Sequence[LeftPod],
    host: CgroupHost,
    mountinfo: Path = Path("/proc/self/mountinfo"),
    root: Path = Path("/"),
) -> ResetPlan:
    """Return what is there to remove. Blocks; only reads. Raises OSError."""
    base = Path(wanted.root_dir)
    uids = {pod.uid for pod in pods} | _names(base / "pods")
    mounts = _mounts(base, read_mountinfo(mountinfo))
    paths = [base / name for name in sorted(_names(base) - _KEPT)]
    logs = Path(wanted.pod_logs_dir)
    paths += [logs / name for name in sorted(_names(logs)) if name.rpartition("_")[2] in uids]
    logind = root / LOGIND.lstrip("/")
    if logind.is_file() and logind.read_text(errors="replace").startswith(_LOGIND_MARK):
        paths.append(logind)
    paths += _leases({pod.sandbox for pod in pods}, root / str(_LEASES).lstrip("/"))
    return ResetPlan(
        pods,
        mounts,
        [path for path in _cgroups(wanted, host) if path.is_dir()],
        paths,
        Path(f"/sys/class/net/{BRIDGE}").exists() and root == Path("/"),
    )


def _mounts(base: Path, mounts: Sequence[MountPoint]) -> list[str]:
    """Return what to unmount, deepest first: the root directory too if an agent has bound it."""
    inside = [m for m in mounts if base in Path(m.path).parents]
    paths = sorted((m.path for m in inside), key=len, reverse=True)
    rest = [m for m in mounts if m not in inside]
    return [*paths, str(base)] if is_bound_to_itself(base, rest) else paths


def _leases(sandboxes: set[SandboxId], networks: Path) -> Iterator[Path]:
    """Yield the addresses that host-local keeps for these sandboxes: files with their ID."""
    for network in sorted(_names(networks)):
        for name in sorted(_names(networks / network)):
            path = networks / network / name
            with suppress(OSError):
                owner = path.read_text(errors="replace").split(maxsplit=1)[:1]
                if owner and owner[0] in sandboxes:
                    yield path


def _cgroups(wanted: Wanted, host: CgroupHost) -> list[Path]:
    name = qos_cgroup("Guaranteed", parse_cgroup(wanted.cgroup_root))
    drivers: tuple[CgroupDriver, ...] = ("cgroupfs", "systemd")
    paths = [cgroup_path(name, driver).lstrip("/") for driver in drivers]
    return [mount / path for mount in host.hierarchies() for path in paths]


def carry_out(
    wanted: Wanted, plan: ResetPlan, *, systemd: bool, root: Path = Path("/")
) -> list[str]:
    """Remove everything but the pods, which have been ended; return what could not be. Blocks."""
    problems = [
        f"{' '.join(command)}: {error}"
        for command, error in run_commands([["umount", path] for path in plan.mounts])
        if error
    ]
    for path in plan.cgroups:
        try:
            remove_cgroup(path)
        except CGROUP_ERRORS as exc:
            problems.append(str(exc))
    if systemd and not problems:
        # systemd forgets the slices, whose cgroups are gone.
        problems += [
            f"{' '.join(command)}: {error}"
            for command, error in run_commands([["systemctl", "stop", "kubepods.slice"]])
            if error and "not loaded" not in error
        ]
    for path in plan.paths:
        try:
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                missing_ok=True
            )
        except OSError as exc:
            problems.append(f"{path}: {exc.strerror or exc}")
    problems += _remove_emptied(Path(wanted.pod_logs_dir), root)
    if plan.bridge and not _names(Path(f"/sys/class/net/{BRIDGE}/brif")):
        problems += [
            f"{' '.join(command)}: {error}"
            for command, error in run_commands([["ip", "link", "delete", BRIDGE]])
            if error
        ]
    return problems


def _remove_emptied(pod_logs: Path, root: Path) -> list[str]:
    """Remove links without a log, and the directories that are empty then; return problems."""
    links = root / "var/log/containers"
    network = root / str(_LEASES).lstrip("/") / NETWORK
    problems = []
    try:
        if links.is_dir():
            remove_links(links)
        remove_empty(links)
        remove_empty(pod_logs)
        # host-local's own two files remain after the last address.
        if _names(network) <= {"lock", "last_reserved_ip.0", "last_reserved_ip.1"}:
            remove_tree(network)
    except OSError as exc:
        problems.append(str(exc))
    return problems


def stop_agent(wanted: Wanted, *, systemd: bool) -> str:
    """Stop the agent of the root directory; return why it did not end, "" if it did. Blocks."""
    if systemd:
        for _, error in run_commands([["systemctl", "stop", "kubelet-trio.service"]]):
            if error and "not loaded" not in error:
                return error
    pid = agent_pid(Path(wanted.root_dir))
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_LIMIT
    while agent_pid(Path(wanted.root_dir)):
        if time.monotonic() > end:
            return f"the agent (pid {pid}) did not end within {_STOP_LIMIT:g} s"
        time.sleep(0.1)
    return ""


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()
