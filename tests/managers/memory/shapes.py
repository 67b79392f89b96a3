"""Machines, containers and states for the tests of the memory manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.managers import Hint, Machine, NumaNode, Refusal, mask_of
from kubelet_trio.managers.memory import (
    Block,
    MemoryManager,
    MemoryState,
    container_blocks,
)
from kubelet_trio.managers.memory.state import Blocks
from kubelet_trio.model import PodUid, pod_containers, pod_uid
from tests.managers.pods import pod

MI, GI = 1 << 20, 1 << 30
HUGE = "hugepages-1Gi"
NO_AFFINITY = Hint(None, preferred=False)  # of the topology manager's policy none


def numa(id_: int, memory: int, huge: int = 0) -> NumaNode:
    """Return a node with `memory` bytes besides `huge` pages of 1 GiB."""
    return NumaNode(id_, frozenset({id_}), memory + huge * GI, {GI: huge})


def manager(*memory: int, huge: int = 0) -> MemoryManager:
    """Return the rules of a machine whose nodes have so much allocatable, and 512 MiB reserved."""
    nodes = tuple(numa(index, size + 512 * MI, huge) for index, size in enumerate(memory))
    reserved = {node.id: {"memory": 512 * MI} for node in nodes}
    return MemoryManager(Machine((), nodes), reserved)


def wanting(name: str, memory: object, huge: object = None, *, restart: str = "") -> Container:
    """Return a container of a Guaranteed pod."""
    amounts: dict[str, object] = {"cpu": "1", "memory": memory}
    if huge is not None:
        amounts[HUGE] = huge
    return Container(
        name=name,
        restartPolicy=restart or None,
        resources=ResourceRequirements(requests=dict(amounts), limits=dict(amounts)),
    )


def placed(
    rules: MemoryManager, state: MemoryState, wanted: Pod, affinity: Hint = NO_AFFINITY
) -> MemoryState:
    """Return the state with all containers of a pod, which must fit."""
    found = tried(rules, state, wanted, affinity)
    assert isinstance(found, MemoryState), found
    return found


def tried(
    rules: MemoryManager, state: MemoryState, wanted: Pod, affinity: Hint = NO_AFFINITY
) -> MemoryState | Refusal:
    for _, container in pod_containers(wanted):
        found = rules.allocate(state, wanted, container, affinity)
        if isinstance(found, Refusal):
            return found
        state = found
    return state


def holding(
    rules: MemoryManager, *holders: tuple[Sequence[int], int] | tuple[Sequence[int], int, int]
) -> MemoryState:
    """Return a state with a pod for each holder: nodes, bytes of memory, huge pages of 1 GiB."""
    state = rules.empty()
    for index, (nodes, memory, *huge) in enumerate(holders):
        one = pod(wanting("main", memory, huge[0] * GI if huge else None), uid=f"holder{index}")
        state = placed(rules, state, one, Hint(mask_of(nodes), preferred=False))
    return state


def held(state: MemoryState, wanted: Pod) -> Mapping[str, Blocks | None]:
    """Return the blocks of a pod's containers."""
    uid = pod_uid(wanted)
    return {c.name: container_blocks(state, uid, c.name) for _, c in pod_containers(wanted)}


def block(nodes: Sequence[int], size: int, type_: str = "memory") -> Block:
    return Block(mask_of(nodes), type_, size)


def free(state: MemoryState, name: str = "memory") -> list[int]:
    return [memory.tables[name].free for memory in state.nodes.values()]


def groups(state: MemoryState) -> list[tuple[int, int]]:
    """Return the nodes' groups as masks, and their number of blocks."""
    return [(memory.cells, memory.assignments) for memory in state.nodes.values()]


def uid(text: str) -> PodUid:
    return PodUid(text)
