"""Turns a container's config into the process to start: arguments, environment, limits.

Nothing is mounted. Instead the environment holds the host path of every mount
(`docs/process-runtime.md`), and `$(KUBELET_TRIO_…)` in the command, its arguments, other
variables and the working directory is replaced by it.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.identity import Account, Identity, RefusedError

MOUNT_PREFIX = "KUBELET_TRIO_MOUNT_"
MOUNTS = "KUBELET_TRIO_MOUNTS"
TERMINATION_LOG = "KUBELET_TRIO_TERMINATION_LOG"
CONTAINER_ID = "KUBELET_TRIO_CONTAINER_ID"
RLIMITS = "process.kubelet-trio.io/rlimits"

# The only variables of the agent's own environment that a container inherits.
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_TERMINATION_PATH = "io.kubernetes.container.terminationMessagePath"
_REFERENCE = re.compile(r"\$\((KUBELET_TRIO_[A-Z0-9_]+)\)")
_UNLIMITED = ("unlimited", "-1")
_REAL_TIME = re.compile(r"SIGRT(MIN|MAX)(?:(PLUS|MINUS)(\d+))?")


class Spec(msgspec.Struct, frozen=True):
    """The content of `spec.json`, which `shim.job` and `shim.container` read."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    uid: int | None = None  # None: the agent's user
    gid: int | None = None
    groups: list[int] = []
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    no_new_privs: bool = False
    oom_score_adj: int = 0
    rlimits: dict[str, tuple[int, int]] = {}  # by RLIMIT number, as text for JSON
    cgroup_procs: list[str] = []
    cgroup_kill: str = ""
    oom_file: str = ""


def security_of(config: v1.ContainerConfig) -> v1.LinuxContainerSecurityContext:
    linux = config.linux or v1.LinuxContainerConfig()
    return linux.security_context or v1.LinuxContainerSecurityContext()


def resources_of(config: v1.ContainerConfig) -> v1.LinuxContainerResources:
    linux = config.linux or v1.LinuxContainerConfig()
    return linux.resources or v1.LinuxContainerResources()


def make_spec(
    container_id: str,
    config: v1.ContainerConfig,
    sandbox: v1.PodSandboxConfig,
    identity: Identity,
    account: Account | None,
    *,
    workdir: str,
    switch_user: bool,
    environ: Mapping[str, str] = os.environ,
) -> Spec:
    """Return the spec of a container's process. Raises `RefusedError`.

    Args:
        container_id: goes into the environment, which marks the container's processes.
        config: the container's CRI config.
        sandbox: the sandbox's config, for the log directory and the annotations.
        identity: the user and groups to run as.
        account: that user's account, if it has one.
        workdir: the working directory if the config names none.
        switch_user: whether the shim has to change the user.
        environ: the agent's own environment.
    """
    if not config.command:
        given = f"args {config.args!r} but no command" if config.args else "no command"
        raise RefusedError(
            f"it has {given}: there are no images here whose entrypoint could be run, so "
            "expected `command` in its spec: a program of this host"
        )
    if config.devices:
        paths = ", ".join(device.container_path for device in config.devices)
        raise RefusedError(
            f"it has the devices {paths}: containers here are processes of this host, which get no "
            "devices of their own, so block volumes need a container runtime"
        )
    if _joins_another(config):
        raise RefusedError(
            "it has targetContainerName: containers here are processes of this host, which have no "
            "PID namespaces to share, and see all others"
        )
    places = mount_variables(config)
    security = security_of(config)
    env = _environment(config, sandbox, account, places, environ)
    env[CONTAINER_ID] = container_id
    return Spec(
        argv=[_replace(word, places) for word in (*config.command, *config.args)],
        env=env,
        cwd=_working_dir(config, places) or workdir,
        log=log_path(sandbox, config),
        uid=identity.uid if switch_user else None,
        gid=identity.gid if switch_user else None,
        groups=list(identity.groups),
        tty=config.tty,
        stdin=config.stdin,
        stdin_once=config.stdin_once,
        no_new_privs=security.no_new_privs,
        oom_score_adj=resources_of(config).oom_score_adj,
        rlimits=parse_rlimits(sandbox.annotations.get(RLIMITS, "")),
    )


def _joins_another(config: v1.ContainerConfig) -> bool:
    namespaces = security_of(config).namespace_options or v1.NamespaceOption()
    return namespaces.pid == v1.NamespaceMode.TARGET


def log_path(sandbox: v1.PodSandboxConfig, config: v1.ContainerConfig) -> str:
    """Return a container's log file on the host; "" if the configs name none."""
    if not sandbox.log_directory or not config.log_path:
        return ""
    return os.path.join(sandbox.log_directory, config.log_path)


def mount_variables(config: v1.ContainerConfig) -> dict[str, str]:
    """Return the variables that hold the host paths of a container's mounts.

    The mount at `/var/lib/data` is `KUBELET_TRIO_MOUNT_VAR_LIB_DATA`; if two paths give the same
    name, the later ones get `_2`, `_3`, ... `KUBELET_TRIO_MOUNTS` holds all as a JSON object,
    container path to host path.
    """
    variables: dict[str, str] = {}
    paths: dict[str, str] = {}
    for mount in config.mounts:
        name = base = MOUNT_PREFIX + _variable_name(mount.container_path)
        number = 1
        while name in variables:
            number += 1
            name = f"{base}_{number}"
        variables[name] = mount.host_path
        paths[mount.container_path] = mount.host_path
    variables[MOUNTS] = msgspec.json.encode(paths).decode()
    message_file = paths.get(config.annotations.get(_TERMINATION_PATH, ""))
    if message_file is not None:
        variables[TERMINATION_LOG] = message_file
    return variables


def _variable_name(path: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", path.upper()).strip("_") or "ROOT"


def _environment(
    config: v1.ContainerConfig,
    sandbox: v1.PodSandboxConfig,
    account: Account | None,
    places: Mapping[str, str],
    environ: Mapping[str, str],
) -> dict[str, str]:
    env = {name: environ[name] for name in _INHERITED if name in environ}
    env["HOME"] = account.home if account is not None else "/"
    env["HOSTNAME"] = sandbox.hostname or socket.gethostname()
    if config.tty:
        env["TERM"] = "xterm"
    env.update(places)
    # Last, so that the pod's own variables win.
    env.update({e.key: _replace(os.fsdecode(e.value), places) for e in config.envs})
    return env


def _replace(text: str, places: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: places.get(match[1], match[0]), text)


def _working_dir(config: v1.ContainerConfig, places: Mapping[str, str]) -> str:
    """Return the working directory on the host; one inside a mount is in its host path."""
    wanted = _replace(config.working_dir, places)
    best: v1.Mount | None = None
    for mount in config.mounts:
        inside = wanted == mount.container_path or wanted.startswith(
            mount.container_path.rstrip("/") + "/"
        )
        if inside and (best is None or len(mount.container_path) > len(best.container_path)):
            best = mount
    if best is None:
        return wanted
    return os.path.normpath(best.host_path + "/" + wanted.removeprefix(best.container_path))


def parse_rlimits(text: str) -> dict[str, tuple[int, int]]:
    """Parse an annotation such as `nofile=1024:4096,core=0` into limits by RLIMIT number.

    Raises `RefusedError` for an unknown name and for a value that is not a number.
    """
    limits: dict[str, tuple[int, int]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, values = item.partition("=")
        number = getattr(resource, f"RLIMIT_{name.strip().upper()}", None)
        soft, _, hard = values.partition(":")
        try:
            parsed = _rlimit(soft), _rlimit(hard or soft)
        except ValueError:
            number = None
        if number is None:
            raise RefusedError(f"annotation {RLIMITS}: {item!r} is no limit (name=soft:hard)")
        limits[str(number)] = parsed
    return limits


def _rlimit(text: str) -> int:
    text = text.strip()
    if text in _UNLIMITED:
        return resource.RLIM_INFINITY
    return int(text)


def unapplied(config: v1.ContainerConfig) -> Iterable[str]:
    """Return the settings of a container that a process of the host cannot have."""
    security = security_of(config)
    capabilities = security.capabilities or v1.Capability()
    asked: dict[str, Any] = {
        "capabilities": capabilities.add_capabilities or capabilities.drop_capabilities,
        "a read-only root filesystem": security.readonly_rootfs,
        "a seccomp profile": security.seccomp is not None
        and security.seccomp.profile_type != v1.SecurityProfileProfileType.Unconfined,
        "SELinux options": security.selinux_options,
        "an AppArmor profile": security.apparmor is not None
        and security.apparmor.profile_type != v1.SecurityProfileProfileType.Unconfined,
        "read-only mounts": any(mount.readonly for mount in config.mounts),
    }
    return (name for name, value in asked.items() if value)


def effective_stop_signal(config: v1.ContainerConfig) -> v1.Signal:
    """Return the signal that stops a container: SIGTERM if its config names none."""
    return config.stop_signal or v1.Signal.SIGTERM


def stop_signal(config: v1.ContainerConfig) -> int:
    """Return the number of a container's stop signal; SIGTERM if this system has no such signal."""
    name = effective_stop_signal(config).name or ""
    # CRI names real-time signals SIGRTMINPLUS3; Python has names for the first and last only.
    if match := _REAL_TIME.fullmatch(name):
        base = signal.SIGRTMIN if match[1] == "MIN" else signal.SIGRTMAX
        offset = int(match[3] or 0)
        return base + (offset if match[2] == "PLUS" else -offset)
    return signal.Signals.__members__.get(name, signal.SIGTERM)
