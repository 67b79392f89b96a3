"""The agent as a process of its own, on containerd or on the embedded runtime.

What really runs is looked up in /proc by a mark in the environment, the same way for both
runtimes and past the agent's word.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import (
    BUSYBOX,
    Agent,
    Containerd,
    Json,
    WaitTimeoutError,
    eventually,
    leftovers,
)

MakeBed = Callable[..., "Bed"]

_LOST = re.compile("cannot delete running task ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class NoCgroup:
    cgroup: str = ""


class HostProcesses:
    """What stands where tests have a private containerd: nothing to start, nothing to clean."""

    endpoint = "process"
    layout = NoCgroup()


class Marked:
    """Pods whose processes bear a mark, and what runs of them."""

    def __init__(self) -> None:
        self.mark = f"KT_BED={uuid.uuid4().hex}"

    def pod(self, name: str, edit: int = 0, *, stop_takes: int = 0) -> Json:
        """Return a pod of one process, which bears the bed's mark and the pod's name."""
        loop = "while :; do sleep 1 & wait $!; done"
        key, _, value = self.mark.partition("=")
        env = [{"name": key, "value": value}, {"name": "KT_POD", "value": name}]
        main = {
            "name": "main",
            "image": BUSYBOX,
            "command": ["sh", "-c", f"trap 'sleep {stop_takes}; exit 0' TERM; {loop}"],
            "env": [*env, {"name": "KT_EDIT", "value": str(edit)}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 5, "containers": [main]},
        }

    def shells(self) -> dict[int, tuple[str, int]]:
        """Return the first processes of what runs: PID -> (pod's name, edit)."""
        found = {}
        for pid, environ, command in _processes():
            if self.mark.encode() in environ and command.startswith(b"sh\0-c\0trap"):
                values = dict(e.split(b"=", 1) for e in environ if b"=" in e)
                found[pid] = (values[b"KT_POD"].decode(), int(values[b"KT_EDIT"]))
        # A shell's child is a copy of it until it has become what the shell runs.
        return {pid: what for pid, what in found.items() if _parent(pid) not in found}

    def runs(self, wanted: dict[str, int]) -> bool:
        """Whether exactly these pods run, each once, with this edit."""
        return Counter(self.shells().values()) == Counter(wanted.items())

    def wait_runs(self, wanted: dict[str, int], within: float) -> None:
        """Wait until just these pods run: a Ready container may still be a process of runc."""
        try:
            eventually(lambda: self.runs(wanted), within, f"{wanted} run")
        except WaitTimeoutError as error:
            raise WaitTimeoutError(f"{error}; found {self.shells()}") from None

    def pid_of(self, name: str) -> int:
        """Return the first process of a pod: runc's own becomes it after the container's start."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [pid for pid, (pod, _) in self.shells().items() if pod == name]
            return bool(found)

        eventually(is_there, what=f"a process of {name}")
        (pid,) = found
        return pid

    def kill_all(self) -> None:
        """End by force what is left."""
        for pid, environ, _ in _processes():
            if self.mark.encode() in environ:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Bed(Marked):
    """An agent on one of the runtimes, and what runs of its pods."""

    def __init__(self, base: Path, containerd: Containerd | None, **settings: Any) -> None:
        super().__init__()
        self.containerd = containerd
        arguments = ("--crash-loop-backoff-base", "1s", *settings.pop("arguments", ()))
        if containerd is None:
            self.agent = Agent(
                base,
                HostProcesses(),  # type: ignore[arg-type]  # has what is asked of it
                arguments=(*arguments, "--process-allow-root"),
                **settings,
            )
        else:
            self.agent = Agent(base, containerd, arguments=arguments, **settings)

    def free_lost_tasks(self) -> None:
        """Do by hand what containerd 1.6 fails to do of itself.

        A StartContainer whose caller is killed at the wrong moment leaves a task behind CRI's back.
        The agent kills its process; where containerd keeps the dead task all the same, nothing but
        its own API, or its restart, lets it remove the container.
        """
        if self.containerd is not None:
            for container in set(_LOST.findall(self.agent.output.read_text(errors="replace"))):
                self.containerd.delete_task(container)

    def close(self) -> None:
        """End the pods in order where that goes, and by force what is left."""
        if self.containerd is None:
            for manifest in self.agent.manifests.iterdir():
                manifest.unlink()
            if self.agent.is_running:
                with suppress(WaitTimeoutError):  # what is left is killed
                    eventually(lambda: not self.shells(), within=20)
            self.agent.end()
            self.kill_all()
            leftovers.unmount_under(self.agent.base)
        else:
            self.agent.close()


def _parent(pid: int) -> int:
    with suppress(OSError):  # it has ended
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _processes() -> Iterator[tuple[int, list[bytes], bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                environ = (entry / "environ").read_bytes().split(b"\0")
                yield int(entry.name), environ, (entry / "cmdline").read_bytes()
