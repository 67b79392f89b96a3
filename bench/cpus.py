"""`python -m bench.cpus`: what an admission costs the CPU manager on a large machine.

8 NUMA nodes with 512 CPUs and 250 containers, of which two thirds have two CPUs of their own each,
scattered. To be met by all managers together: 20 ms for a pod. No runtime is needed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median

import click
from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.managers import Cpu, Hint, Machine, NumaNode, Refusal
from kubelet_trio.managers.cpus import (
    CpuManager,
    CpuOptions,
    CpuState,
    cpusets,
    encode_checkpoint,
    restore,
)
from kubelet_trio.model import PodUid, metadata, spec

LIMIT = 20.0  # ms, of an admission by all managers
CONTAINERS = 250
_CORES, _NODES, _CACHES, _RESERVED = 256, 8, 32, frozenset({0, 256})
_ASKED = (2, 16, 100)
_POLICIES = {
    "none": CpuOptions(),
    "full-pcpus-only": CpuOptions(full_cores=True),
    "prefer-align-cpus-by-uncorecache": CpuOptions(by_cache=True),
    "distribute-cpus-across-numa": CpuOptions(across_nodes=True),
    "distribute-cpus-across-cores": CpuOptions(across_cores=True),
    "align-by-socket": CpuOptions(by_socket=True),
}


@click.command()
@click.option("--rounds", default=20, show_default=True, help="How often each pod is admitted.")
def main(rounds: int) -> None:
    """Measure admissions, and what is done after each."""
    machine = _machine()
    pods = [_pod(str(number), 2) for number in range(CONTAINERS)]
    click.echo("| option | CPUs asked for | hints and CPUs, median ms | most | limit |")
    click.echo("| --- | ---: | ---: | ---: | ---: |")
    for name, options in _POLICIES.items():
        rules = CpuManager(machine, _RESERVED, options)
        busy = _scattered(rules, pods)
        for asked in _ASKED:
            taken = _times(rounds, lambda: _admit(rules, busy, _pod("new", asked)))  # noqa: B023
            met = "met" if taken[-1] < LIMIT else "missed"
            click.echo(f"| {name} | {asked} | {median(taken):.2f} | {taken[-1]:.2f} | {met} |")
    rules = CpuManager(machine, _RESERVED)
    busy = _scattered(rules, pods)
    written = encode_checkpoint(busy)
    others: dict[str, Callable[[], object]] = {
        "the file written": lambda: encode_checkpoint(busy),
        "the file read": lambda: restore(written, rules),
        "the CPU sets of all containers": lambda: [cpusets(busy, pod) for pod in pods],
    }
    for what, work in others.items():
        click.echo(f"\n{what}: {median(_times(rounds, work)):.2f} ms")


def _times(rounds: int, work: Callable[[], object]) -> list[float]:
    """Return the milliseconds of CPU of each round, ascending."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append(1000 * (time.process_time() - began))
    return sorted(taken)


def _machine() -> Machine:
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
    nodes = (
        NumaNode(node, frozenset(cpu.id for cpu in cpus if cpu.node == node), 64 << 30)
        for node in range(_NODES)
    )
    return Machine(cpus, tuple(nodes))


def _pod(uid: str, cpus: int) -> Pod:
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    main = Container(name="main", resources=ResourceRequirements(requests=amounts, limits=amounts))
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid),
        spec=PodSpec(containers=[main]),
    )


def _scattered(rules: CpuManager, pods: list[Pod]) -> CpuState:
    """Return the state after all pods were admitted and a third has given its CPUs back."""
    state = rules.initial()
    for pod in pods:
        state = _admit(rules, state, pod)
    gone = random.Random(1).sample(pods, len(pods) // 3)
    for pod in gone:
        state = rules.release(state, PodUid(metadata(pod).uid or ""))
    return state


def _admit(rules: CpuManager, state: CpuState, pod: Pod) -> CpuState:
    """Admit a pod as the topology manager does that has no other resource to look at."""
    container = spec(pod).containers[0]
    hints = rules.hints(state, pod, container)["cpu"]
    assert hints
    best = min(hints, key=lambda hint: (not hint.preferred, (hint.nodes or 0).bit_count()))
    after = rules.allocate(state, pod, container, Hint(best.nodes, best.preferred))
    assert not isinstance(after, Refusal), after
    return after


if __name__ == "__main__":
    main()
