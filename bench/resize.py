"""The load `resize`: many pods change size at once, and the floor that the runtime sets.

The floor is the same work without an agent: a thread for each pod writes the pod's cgroup and calls
the runtime, in the order that an agent must keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from bench.contender import Meter
from kubelet_trio.cri import v1
from tests.harness import container, container_status, eventually, forever, live_containers, pod
from tests.harness.cgroups import PERIOD, V1, Cgroup, Limits, container_cgroup, limits_of
from tests.harness.pods import Json

if TYPE_CHECKING:
    from bench.loads import Bench

_ROUNDS = 5
_MI = 1 << 20


@dataclass(frozen=True, slots=True)
class _Size:
    """The resources of a pod of one container, and the limits that they stand for."""

    resources: Json
    limits: Limits


_SMALL = _Size(
    {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}},
    limits_of(10, 100, 32 * _MI),
)
_LARGE = _Size(
    {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}},
    limits_of(20, 200, 64 * _MI),
)
_SIZES = {"larger": _LARGE, "smaller": _SMALL}


@dataclass(frozen=True, slots=True)
class _Running:
    """The container of a pod."""

    id: str
    cgroup: Cgroup

    def has(self, size: _Size) -> bool:
        return self.cgroup.has(size.limits) and self.cgroup.parent.has(size.limits)


def resize(bench: Bench) -> None:
    """30 pods' resources double and halve again, all at once; then the same without the agent."""
    if not bench.contender.resizes_static_pods:
        return
    made = [_manifest(n, _SMALL) for n in range(bench.many(30))]
    with bench.pods(made):
        live = []
        for number in range(len(made)):
            found = live_containers(bench.cri, f"bench-{number}-node")["main"]
            live.append(_Running(found, container_cgroup(bench.cri, found)))
        found_by_agent = _medians(lambda size: _by_agent(bench, live, size))
        bench.contender.stop()
        with ThreadPoolExecutor(len(live)) as threads:
            floor = _medians(lambda size: _without_agent(bench, live, size, threads))
        bench.contender.start()
    for size, figures in found_by_agent.items():
        label = f"{len(made)} pods {size}"
        for figure, value in figures.items():
            bench.results[f"{label}, {figure}"] = value
        for figure, value in floor[size].items():
            bench.results[f"{label} by bare calls, {figure}"] = value
        ratio = figures["limits s"] / floor[size]["limits s"]
        bench.results[f"{label}, limits to those by bare calls"] = ratio
        ratio = figures["shown s"] / floor[size]["limits s"]
        bench.results[f"{label}, shown to limits by bare calls"] = ratio


def _manifest(number: int, size: _Size) -> Json:
    main = container("main", forever(), resources=size.resources)
    return pod(f"bench-{number}", main, terminationGracePeriodSeconds=1)


def _medians(change: Callable[[_Size], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Change to each size in turn, some rounds long; return the medians of each size's figures."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in _SIZES}
    for _ in range(_ROUNDS):
        for name, size in _SIZES.items():
            taken[name].append(change(size))
            time.sleep(1)  # until everything is quiet again
    return {
        name: {figure: median(one[figure] for one in figures) for figure in figures[0]}
        for name, figures in taken.items()
    }


def _by_agent(bench: Bench, live: list[_Running], size: _Size) -> dict[str, float]:
    """Return how long until the kernel has the limits, and until the statuses show them."""
    agent, containerd = Meter(bench.contender.pid), bench.runtime.meter
    cpu, runtime_cpu, began = agent.cpu(), containerd.cpu(), time.monotonic()
    for number in range(len(live)):
        bench.contender.put(_manifest(number, size))
    eventually(lambda: all(one.has(size) for one in live), within=120, what="all limits are there")
    limits = time.monotonic() - began
    eventually(partial(_is_shown, bench, size), within=120, what="all are shown as resized")
    return {
        "limits s": limits,
        "shown s": time.monotonic() - began,
        "agent CPU s": agent.cpu() - cpu,
        "containerd CPU s": containerd.cpu() - runtime_cpu,
    }


def _is_shown(bench: Bench, size: _Size) -> bool:
    def is_resized(pod: Json) -> bool:
        conditions = {c["type"] for c in pod["status"].get("conditions", ())}
        shown = container_status(pod, "main").get("resources")
        return shown == size.resources and "PodResizeInProgress" not in conditions

    return all(is_resized(pod) for pod in bench.contender.pods())


def _without_agent(
    bench: Bench, live: list[_Running], size: _Size, threads: ThreadPoolExecutor
) -> dict[str, float]:
    began, cpu = time.monotonic(), bench.runtime.meter.cpu()
    list(threads.map(partial(_change, bench, size), live))
    took, used = time.monotonic() - began, bench.runtime.meter.cpu() - cpu
    assert all(one.has(size) for one in live)
    return {"limits s": took, "containerd CPU s": used}


def _change(bench: Bench, size: _Size, one: _Running) -> None:
    """Change memory, then CPU: the pod first if they grow, the container first if they shrink."""
    limits, pod = size.limits, one.cgroup.parent
    memory = v1.LinuxContainerResources(memory_limit_in_bytes=limits.memory or 0)
    cpu = v1.LinuxContainerResources(
        cpu_period=PERIOD, cpu_quota=limits.quota or 0, cpu_shares=limits.shares
    )
    steps: list[tuple[v1.LinuxContainerResources, Callable[[Cgroup, Limits], None]]]
    steps = [(memory, _write_memory), (cpu, _write_cpu)]
    for asked, write in steps:
        if size is _LARGE:
            write(pod, limits)
        bench.cri.update_container(one.id, asked)
        if size is _SMALL:
            write(pod, limits)


def _write_memory(pod: Cgroup, limits: Limits) -> None:
    file = "memory.limit_in_bytes" if V1 else "memory.max"
    (pod.memory / file).write_text(str(limits.memory))


def _write_cpu(pod: Cgroup, limits: Limits) -> None:
    if V1:
        (pod.cpu / "cpu.shares").write_text(str(limits.shares))
        (pod.cpu / "cpu.cfs_quota_us").write_text(str(limits.quota))
    else:
        (pod.cpu / "cpu.weight").write_text(str(1 + (limits.shares - 2) * 9999 // 262142))
        (pod.cpu / "cpu.max").write_text(f"{limits.quota} {PERIOD}")
