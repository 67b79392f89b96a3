"""Acts on the running machine after files have changed: systemd, kernel modules and settings."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from kubelet_trio.install.checks import SYSCTLS
from kubelet_trio.install.containerd import CONFIG, DROP_IN
from kubelet_trio.install.contents import KUBELET_CONFIG, UNIT
from kubelet_trio.install.facts import Facts

SERVICE = "kubelet-trio.service"
_LIMIT = 180.0  # seconds for a command


def after_install(facts: Facts, written: Iterable[str], *, now: bool) -> list[list[str]]:
    """Return the commands that make the written files take effect, in order. Pure."""
    paths = set(written)
    commands = [["modprobe", name] for name in facts.missing_modules]
    if not facts.systemd:
        return commands
    if UNIT in paths:
        commands.append(["systemctl", "daemon-reload"])
    if {CONFIG, DROP_IN} & paths:
        # Its containers run on: their shims are no children of containerd.
        commands.append(["systemctl", "try-restart", "containerd.service"])
    commands.append(["systemctl", "enable", SERVICE])
    if now:
        is_changed = {UNIT, KUBELET_CONFIG} & paths
        commands.append(["systemctl", "restart" if is_changed else "start", SERVICE])
    return commands


def before_uninstall(*, systemd: bool) -> list[list[str]]:
    """Return the commands that stop the agent; its pods run on. Pure."""
    return [["systemctl", "disable", "--now", SERVICE]] if systemd else []


def after_uninstall(undone: Iterable[str], *, systemd: bool) -> list[list[str]]:
    """Return the commands that make the removal of these files take effect. Pure."""
    if not systemd:
        return []
    commands = [["systemctl", "daemon-reload"]]
    if {CONFIG, DROP_IN} & set(undone):
        commands.append(["systemctl", "try-restart", "containerd.service"])
    return commands


def run_commands(commands: Iterable[list[str]]) -> Iterator[tuple[list[str], str]]:
    """Run commands one after the other; yield each with its error, empty if it has none. Blocks."""
    for command in commands:
        program = shutil.which(command[0], path="/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin")
        if program is None:
            yield command, "not found"
            continue
        try:
            done = subprocess.run(
                [program, *command[1:]],
                capture_output=True,
                text=True,
                timeout=_LIMIT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            yield command, str(exc)
            continue
        yield (
            command,
            done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else "",
        )


def set_sysctls(proc_sys: Path = Path("/proc/sys")) -> list[str]:
    """Set the kernel settings of pod networks now; return what could not be set. Blocks."""
    refused = []
    for name, value in SYSCTLS.items():
        path = proc_sys / name.replace(".", "/")
        try:
            if path.read_text().strip() != value:
                path.write_text(value)
        except FileNotFoundError:
            continue  # without br_netfilter, or without IPv6
        except OSError as exc:
            refused.append(f"{name} cannot be set: {exc.strerror}")
    return refused
