"""From a container's config to the process that stands for it: words, variables, limits.

There are no mounts, so a container is told where its files are: every mount's place on the
host is in the environment (`docs/process-runtime.md`), and `$(KUBELET_TRIO_…)` in the
command, its arguments, other variables and the working directory is replaced by it.
"""

from __future__ import annotations

import os
import re
import resource
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

# What a process of this host cannot do without; nothing else of the agent's own is passed on.
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_TERMINATION_PATH = "io.kubernetes.container.terminationMessagePath"
_REFERENCE = re.compile(r"\$\((KUBELET_TRIO_[A-Z0-9_]+)\)")
_UNLIMITED = ("unlimited", "-1")


class Spec(msgspec.Struct, frozen=True):
    """What the shim is told: see `shim.job` and `shim.container`."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    uid: int | None = None  # None: as the agent
    gid: int | None = None
    groups: list[int] = []
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    no_new_privs: bool = False
    oom_score_adj: int = 0
    rlimits: dict[str, tuple[int, int]] = {}  # by the kernel's number
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
    """Return how a container's process is started. Raises `RefusedError`.

    Args:
        container_id: its id, by which its processes can be told.
        config: what CRI asks for.
        sandbox: the sandbox's config, for the log directory and the annotations.
        identity: whom it runs as.
        account: that user's account, if there is one.
        workdir: its own directory, where its config names none.
        switch_user: whether the shim has to change users.
        environ: the agent's own variables.
    """
    if not config.command:
        given = f"args {config.args!r} but no command" if config.args else "no command"
        raise RefusedError(
            f"it has {given}: there are no images here whose entrypoint could be run, so "
            "expected `command` in its spec: a program of this host"
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


def log_path(sandbox: v1.PodSandboxConfig, config: v1.ContainerConfig) -> str:
    """Return a container's log file on the host; "" where the configs name none."""
    if not sandbox.log_directory or not config.log_path:
        return ""
    return os.path.join(sandbox.log_directory, config.log_path)


def mount_variables(config: v1.ContainerConfig) -> dict[str, str]:
    """Return the variables that say where on the host a container's mounts are.

    A mount at `/var/lib/data` is in `KUBELET_TRIO_MOUNT_VAR_LIB_DATA`; where two paths give
    the same name the later ones get `_2`, `_3`, ... All are in `KUBELET_TRIO_MOUNTS` as a JSON
    object, container path to host path.
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
    env.update({e.key: _replace(os.fsdecode(e.value), places) for e in config.envs})
    return env


def _replace(text: str, places: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: places.get(match[1], match[0]), text)


def _working_dir(config: v1.ContainerConfig, places: Mapping[str, str]) -> str:
    """Return where on the host the working directory is: in a mount, if it lies in one."""
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
    """Return the limits of an annotation such as `nofile=1024:4096,core=0`, by number.

    Raises `RefusedError` for a name that the kernel does not have and for what is no number.
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
    """Yield what a container asks for and a process of the host cannot have."""
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
        "devices": config.devices,
    }
    return (name for name, value in asked.items() if value)
