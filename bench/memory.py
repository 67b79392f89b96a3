"""`python -m bench.memory`: what the memory manager's decisions cost, no runtime needed.

Eight NUMA nodes with 250 containers, half of them in groups of two nodes: hints and allocation of
one more container, as admission asks for them, and the checkpoint of all. Medians; CPU time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.managers import Hint, Machine, NumaNode
from kubelet_trio.managers.memory import (
    MemoryManager,
    MemoryState,
    encode_checkpoint,
    restore_state,
)
from kubelet_trio.model import PodUid

GI, MI = 1 << 30, 1 << 20
NODES, CONTAINERS = 8, 250
LIMIT = 20.0  # ms, of the whole admission


@click.command()
@click.option("--rounds", default=200, help="How often to measure each figure.")
def main(rounds: int) -> None:
    """Measure the memory manager."""
    rules = _rules()
    state = _filled(rules)
    new = _pod(CONTAINERS)
    container = _main(new)
    written = encode_checkpoint(state)
    figures: dict[str, Callable[[], object]] = {
        "hints": lambda: rules.hints(state, new, container),
        "hints of an empty node": lambda: rules.hints(rules.empty(), new, container),
        "allocate": lambda: rules.allocate(state, new, container, Hint(None, preferred=False)),
        "release": lambda: rules.release(state, _uid(0)),
        "write the checkpoint": lambda: encode_checkpoint(state),
        "restore the checkpoint": lambda: restore_state(rules, written, "memory_manager_state"),
    }
    click.echo(f"{NODES} nodes, {CONTAINERS} containers, checkpoint of {len(written)} bytes")
    click.echo("| | ms |\n| --- | --- |")
    for name, run in figures.items():
        click.echo(f"| {name} | {_median(run, rounds):.2f} |")
    admission = sum(_median(figures[name], rounds) for name in ("hints", "allocate"))
    click.echo(f"hints and allocate: {admission:.2f} ms, limit of an admission {LIMIT:.0f} ms")


def _rules() -> MemoryManager:
    nodes = tuple(
        NumaNode(n, frozenset({n}), 128 * GI, {2 * MI: 8 * 1024, GI: 16}) for n in range(NODES)
    )
    return MemoryManager(Machine((), nodes), {n.id: {"memory": GI} for n in nodes})


def _filled(rules: MemoryManager) -> MemoryState:
    """Return nodes 0 and 1, 2 and 3 as groups, 4 and 5 with blocks of their own, 6 and 7 free."""
    state = rules.empty()
    places = (0b11, 0b1100, 1 << 4, 1 << 5)
    for number in range(CONTAINERS):
        one = _pod(number)
        affinity = Hint(places[number % len(places)], preferred=False)
        found = rules.allocate(state, one, _main(one), affinity)
        assert isinstance(found, MemoryState), found
        state = found
    return state


def _pod(number: int) -> Pod:
    amounts: dict[str, object] = {"cpu": "1", "memory": "512Mi", "hugepages-2Mi": "64Mi"}
    resources = ResourceRequirements(requests=amounts, limits=dict(amounts))
    return Pod(
        metadata=ObjectMeta(name=f"pod{number}", namespace="default", uid=_uid(number)),
        spec=PodSpec(containers=[Container(name="main", resources=resources)]),
    )


def _uid(number: int) -> PodUid:
    return PodUid(f"{number:08}-0000-4000-8000-000000000000")


def _main(pod: Pod) -> Container:
    assert pod.spec is not None
    return pod.spec.containers[0]


def _median(run: Callable[[], object], rounds: int) -> float:
    """Return milliseconds of CPU."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
