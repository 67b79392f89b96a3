"""`python -m bench.admission`: what a pod's admission costs all managers together.

8 NUMA nodes with 512 CPUs and 250 containers, of which a third has gone again, so that CPUs, memory
and devices are scattered. Each pod is admitted and given back by the node's own `ResourceManagers`,
under every policy and scope of the topology manager. To be met: 20 ms of CPU on the event loop. The
checkpoints are encoded in a thread; they are shown beside. No runtime is needed.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.managers import (
    CheckpointKeeper,
    Cpu,
    DeviceManagers,
    Machine,
    ManagerSettings,
    NumaNode,
    load_managers,
)
from kubelet_trio.managers.devices.types import HEALTHY, Device, DeviceShare, DeviceState
from kubelet_trio.model import Meter, PodUid, inline_offload, pod_uid

LIMIT = 20.0  # ms
CONTAINERS = 250
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
GPU = "example.com/gpu"
GI = 1 << 30
_CORES, _NODES, _CACHES = 256, 8, 32
_GPUS = 400
_ANSWER = b"x" * 200  # bytes of a plugin's ordinary answer


@dataclass(frozen=True, slots=True)
class Asked:
    """What each container of a pod asks for."""

    containers: int
    cpus: int
    gib: int
    devices: int = 0

    def __str__(self) -> str:
        each = f"{self.cpus} CPUs, {self.gib}Gi, {self.devices} devices"
        return f"{self.containers} times ({each})" if self.containers > 1 else each


PODS = (
    Asked(1, 2, 1, 1),
    Asked(1, 16, 8, 4),
    Asked(1, 100, 64, 16),  # more CPUs than a node has
    Asked(4, 4, 2, 1),
    Asked(12, 1, 1, 1),
    Asked(1, 400, 1, 1),  # more than there are
)


@click.command()
@click.option("--rounds", default=20, show_default=True, help="How often each pod is admitted.")
def main(rounds: int) -> None:
    """Measure admissions by all managers."""
    worst = 0.0
    click.echo("| policy, scope | pod | admitted | median ms | most ms |")
    click.echo("| --- | --- | --- | ---: | ---: |")
    for policy in POLICIES:
        for scope in SCOPES:
            with tempfile.TemporaryDirectory() as root:
                managers = _scattered(Path(root), policy, scope)
                for asked in PODS:
                    taken, was_admitted = _admissions(managers, asked, rounds)
                    worst = max(worst, taken[-1])
                    figures = f"{median(taken):.2f} | {taken[-1]:.2f}"
                    answer = "yes" if was_admitted else "no"
                    click.echo(f"| {policy}, {scope} | {asked} | {answer} | {figures} |")
    click.echo(f"\nlongest: {worst:.2f} ms, limit {LIMIT:.0f} ms")
    click.echo("\n| afterwards | where | ms |\n| --- | --- | ---: |")
    for what, where, work in _afterwards(managers):
        click.echo(f"| {what} | {where} | {median(_times(rounds, work)):.2f} |")


def _admissions(managers: DeviceManagers, asked: Asked, rounds: int) -> tuple[list[float], bool]:
    """Return the milliseconds of each admission, ascending, and whether the pod was admitted."""
    taken, new, was_admitted = [], _pod("new", asked), False
    for _ in range(rounds):
        gc.collect()  # of the rounds before: a pod's admission leaves little behind
        began = time.process_time()
        was_admitted = managers.admit(new) is None
        taken.append(1000 * (time.process_time() - began))
        managers.give_back(pod_uid(new))
    return sorted(taken), was_admitted


def _afterwards(managers: DeviceManagers) -> list[tuple[str, str, Callable[[], object]]]:
    found: list[tuple[str, str, Callable[[], object]]] = []
    for name in ("cpu", "memory", "devices"):
        provider, state = managers.provider(name), managers.state(name)
        assert provider is not None
        found.append((f"write {provider.file}", "thread", lambda p=provider, s=state: p.encode(s)))  # type: ignore[misc]
    uids = [PodUid(str(number)) for number in range(CONTAINERS)]
    found.append(
        ("shares of all containers", "loop", lambda: [managers.share(uid, "c0") for uid in uids])
    )
    found.append(("no pod has gone", "loop", lambda: managers.retain(uids)))
    return found


def _times(rounds: int, work: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append(1000 * (time.process_time() - began))
    return taken


def _scattered(root: Path, policy: str, scope: str) -> DeviceManagers:
    """Return the managers after 250 pods were admitted and a third of them has gone."""
    settings = ManagerSettings(
        cpu_policy="static",
        reserved_cpus=frozenset({0, 256}),
        memory_policy="Static",
        reserved_memory=((0, {"memory": "1Gi"}),),
        reserved_memory_bytes={"memory": GI},
        topology_policy=policy,
        topology_scope=scope,
    )
    loaded = load_managers(settings, root, _machine, device_plugins=True)
    assert loaded is not None
    keeper = CheckpointKeeper(root, inline_offload)
    managers = DeviceManagers(loaded, keeper, Meter(), root, inline_offload)
    devices = (Device(f"gpu-{n:03}", HEALTHY, (n % _NODES,)) for n in range(_GPUS))
    managers.plugins.inventory.take(GPU, {device.id: device for device in devices})
    pods = [_pod(str(number), Asked(1, 1 + number % 2, 1, 1)) for number in range(CONTAINERS)]
    for new in pods:
        refusal = managers.admit(new)
        assert refusal is None, refusal
    managers.change("devices", _confirmed)
    for gone in random.Random(1).sample(pods, len(pods) // 3):
        managers.give_back(pod_uid(gone))
    return managers


def _confirmed(state: DeviceState) -> DeviceState:
    """Return the state after the plugin has allocated all devices."""
    for uid, container, resource, share in list(state.each()):
        done = DeviceShare(share.by_node, _ANSWER)
        state = state.with_share(uid, container, resource, done)
    return state


def _machine() -> Machine:
    """Return two sockets with four NUMA nodes each, and two threads a core."""
    cpus = tuple(
        Cpu(
            thread * _CORES + core,
            core,
            core * _CACHES // _CORES,
            core * _NODES // _CORES,
            core * 2 // _CORES,
        )
        for thread in range(2)
        for core in range(_CORES)
    )
    half = _NODES // 2
    nodes = (
        NumaNode(
            node,
            frozenset(cpu.id for cpu in cpus if cpu.node == node),
            128 * GI,
            distances=tuple(
                10 if other == node else 12 if other // half == node // half else 32
                for other in range(_NODES)
            ),
        )
        for node in range(_NODES)
    )
    return Machine(cpus, tuple(nodes))


def _pod(uid: str, asked: Asked) -> Pod:
    amounts = {"cpu": str(asked.cpus), "memory": f"{asked.gib}Gi", GPU: str(asked.devices)}
    containers = [
        Container(
            name=f"c{number}", resources=ResourceRequirements(requests=amounts, limits=amounts)
        )
        for number in range(asked.containers)
    ]
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid),
        spec=PodSpec(containers=containers),
    )


if __name__ == "__main__":
    main()
