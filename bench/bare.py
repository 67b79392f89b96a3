"""The floor: what pods' lives take of the runtime alone.

The calls are those that no node agent can leave out: RunPodSandbox, CreateContainer and
StartContainer; StopContainer, StopPodSandbox and RemovePodSandbox. A thread a pod makes them, with
nothing around them: no image, volume, status, cgroup or file is looked at. A sandbox has the
seccomp profile that every kubelet asks for (`generatePodSandboxLinuxConfig` in
pkg/kubelet/kuberuntime): it takes a quarter of RunPodSandbox, and no agent may leave it out.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import grpc

from bench.runtime import Runtime
from kubelet_trio.cri import v1
from tests.harness import BUSYBOX, container, forever

GRACE = 1  # seconds, as the benchmark's pods have it
_ROUNDS = 3
_RUNTIME_DEFAULT = v1.SecurityProfile(v1.SecurityProfileProfileType.RuntimeDefault)
_ASKING = 8  # threads
# containerd 1.6 says so of a container that ends while its shim is told to kill it.
_SHIM_ENDED = "ttrpc: closed"


@dataclass(frozen=True, slots=True)
class _Bare:
    """A pod of one container at the runtime."""

    sandbox: str
    container: str
    config: v1.PodSandboxConfig


class Floor:
    """Pods by bare CRI calls, on a runtime without an agent."""

    def __init__(self, runtime: Runtime, logs: Path, threads: ThreadPoolExecutor) -> None:
        self._runtime, self._logs, self._threads = runtime, logs, threads
        self._cgroup = f"{runtime.containerd.layout.cgroup}/kubepods/besteffort"
        self._pods: list[_Bare] = []

    def start(self, count: int) -> float:
        """Start pods all at once; return the seconds until the last container has started."""
        began = time.monotonic()
        self._pods = list(self._threads.map(self._start, range(count)))
        return time.monotonic() - began

    def end(self) -> tuple[float, float]:
        """End them all; return the seconds until nothing runs, and until nothing is left."""
        began = time.monotonic()
        list(self._threads.map(self._stop, self._pods))
        still = time.monotonic() - began
        list(self._threads.map(self._remove, self._pods))
        self._pods = []
        return still, time.monotonic() - began

    def replace(self) -> float:
        """Kill the only pod's container; return the seconds until its successor has started."""
        (pod,) = self._pods
        cri = self._runtime.cri
        pid = cri.container_pid(pod.container)
        exits = os.pidfd_open(pid)
        try:
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            select.select([exits], [], [])
        finally:
            os.close(exits)
        made = cri.create_container(pod.sandbox, container_config(1), pod.config)
        cri.start_container(made)
        took = time.monotonic() - began
        self._pods = [_Bare(pod.sandbox, made, pod.config)]
        return took

    def _start(self, number: int) -> _Bare:
        cri, config = self._runtime.cri, self._sandbox(number)
        sandbox = cri.run_sandbox(config)
        made = cri.create_container(sandbox, container_config(0), config)
        cri.start_container(made)
        return _Bare(sandbox, made, config)

    def _stop(self, pod: _Bare) -> None:
        stop = partial(self._runtime.cri.stop_container, pod.container, GRACE)
        try:
            stop()
        except grpc.RpcError as exc:
            if _SHIM_ENDED not in exc.details():
                raise
            stop()  # as any agent does
        self._runtime.cri.stop_sandbox(pod.sandbox)

    def _remove(self, pod: _Bare) -> None:
        self._runtime.cri.remove_stopped_sandbox(pod.sandbox)

    def _sandbox(self, number: int) -> v1.PodSandboxConfig:
        uid = f"00000000-0000-0000-0000-{number:012}"
        return sandbox_config(self._logs, self._cgroup, f"bare-{number}", uid)


def sandbox_config(logs: Path, cgroup: str, name: str, uid: str) -> v1.PodSandboxConfig:
    """Return the sandbox of a pod below the QoS class's `cgroup`, its log directory made."""
    (logs / uid / "main").mkdir(parents=True, exist_ok=True)
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
        hostname=name,
        log_directory=str(logs / uid),
        linux=v1.LinuxPodSandboxConfig(
            cgroup_parent=f"{cgroup}/pod{uid}",
            security_context=v1.LinuxSandboxSecurityContext(seccomp=_RUNTIME_DEFAULT),
        ),
    )


def container_config(attempt: int) -> v1.ContainerConfig:
    """Return the container that runs until it is stopped, in its so many-th instance."""
    main = container("main", forever())
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main", attempt=attempt),
        image=v1.ImageSpec(image=BUSYBOX),
        command=main["command"],
        log_path=f"main/{attempt}.log",
        linux=v1.LinuxContainerConfig(resources=v1.LinuxContainerResources(cpu_shares=2)),
    )


def measure_floor(runtime: Runtime, many: Sequence[int], repeats: int) -> dict[str, float]:
    """Measure the floor of one pod, and of each number of pods; return the figures by name."""
    found: dict[str, float] = {}
    with TemporaryDirectory() as logs, ThreadPoolExecutor(max(many)) as threads:
        floor = Floor(runtime, Path(logs), threads)
        one = [(floor.start(1), floor.replace(), *floor.end()) for _ in range(repeats)]
        for number, figure in enumerate((ONE_STARTED, REPLACED, ONE_STILL, ONE_LEFT)):
            found[figure] = median(taken[number] for taken in one)
        for count in many:
            taken = [(floor.start(count), *floor.end()) for _ in range(_ROUNDS)]
            for number, name in enumerate(("started", "still", "left")):
                found[many_figure(count, name)] = median(each[number] for each in taken)
    return found


def measure_questions(runtime: Runtime) -> float:
    """Return the seconds that it takes to ask for all that runs: two lists, the status of each.

    It is what a node agent cannot leave out before it adopts the pods of its former life.
    """
    cri, took = runtime.cri, []
    with ThreadPoolExecutor(_ASKING) as threads:
        for _ in range(_ROUNDS):
            began = time.monotonic()
            sandboxes, containers = cri.sandboxes(), cri.containers()
            list(threads.map(lambda found: cri.sandbox_status(found.id), sandboxes))
            list(threads.map(lambda found: cri.container_status(found.id), containers))
            took.append(time.monotonic() - began)
    return median(took)


ONE_STARTED = "by bare calls, 1 pod started s"
ONE_STILL = "by bare calls, 1 pod deleted, nothing runs s"
ONE_LEFT = "by bare calls, 1 pod deleted, nothing left s"
REPLACED = "by bare calls, death to restart s"
_MANY = {
    "started": "by bare calls, {} pods started s",
    "still": "by bare calls, {} pods deleted, nothing runs s",
    "left": "by bare calls, {} pods deleted, nothing left s",
}


def many_figure(count: int, name: str) -> str:
    """Return the figure of many pods: `started`, `still` (nothing runs) or `left` (nothing is)."""
    return _MANY[name].format(count)
