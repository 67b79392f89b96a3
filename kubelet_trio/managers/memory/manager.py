"""The memory manager's Static policy: memory and huge pages of Guaranteed pods on chosen nodes.

Source: KEP-1769, pkg/kubelet/cm/memorymanager/policy_static.go. Where upstream differs from itself
between runs (blocks of one container come in random order), blocks are sorted by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.memory.ledger import give_back, reserve
from kubelet_trio.managers.memory.placement import (
    breaks_groups,
    fewest_nodes,
    has_free,
    in_group,
    placements,
)
from kubelet_trio.managers.memory.requests import (
    RequestError,
    Sizes,
    container_sizes,
    is_pinned,
    pod_sizes,
)
from kubelet_trio.managers.memory.reserved import Reserved, empty_state
from kubelet_trio.managers.memory.reuse import init_blocks_left, reusable_after, reusable_of
from kubelet_trio.managers.memory.state import Block, Blocks, MemoryState, Nodes, container_blocks
from kubelet_trio.managers.types import Hint, Hints, Machine, Refusal
from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.model import spec as pod_spec


class _NoPlaceError(Exception):
    """No nodes for a request; the message is upstream's."""


@dataclass(frozen=True, slots=True)
class MemoryManager:
    """The rules for one machine; see `Manager`.

    Attributes:
        machine: the NUMA nodes with their memory.
        reserved: what `parse_reserved_memory` gives.
    """

    machine: Machine
    reserved: Reserved

    def empty(self) -> MemoryState:
        """Return the state without containers. Raises `ReservedMemoryError`."""
        return empty_state(self.machine, self.reserved)

    def hints(self, state: MemoryState, pod: Pod, container: Container) -> Hints:
        if not is_pinned(pod):
            return {}
        try:
            wanted = _existing(state, container_sizes(container))
        except RequestError:
            return {}  # `allocate` refuses it
        blocks = container_blocks(state, pod_uid(pod), container.name)
        if blocks is not None:
            return _hints_of(blocks, wanted)
        return _new_hints(state, pod_uid(pod), wanted)

    def pod_hints(self, state: MemoryState, pod: Pod) -> Hints:
        if not is_pinned(pod):
            return {}
        try:
            wanted = _existing(state, pod_sizes(pod))
        except RequestError:
            return {}
        held = state.blocks.get(pod_uid(pod), {})
        for container in (*(pod_spec(pod).initContainers or ()), *(pod_spec(pod).containers or ())):
            if container.name in held:
                return _hints_of(held[container.name], wanted)
        return _new_hints(state, pod_uid(pod), wanted)

    def allocate(
        self, state: MemoryState, pod: Pod, container: Container, affinity: Hint
    ) -> MemoryState | Refusal:
        if not is_pinned(pod):
            return state
        uid = pod_uid(pod)
        blocks = container_blocks(state, uid, container.name)
        if blocks is not None:
            return replace(state, reusable=reusable_after(state, pod, container, blocks))
        try:
            wanted = _existing(state, container_sizes(container))
            mask = _choose(state, uid, wanted, affinity) if wanted else 0
        except (RequestError, _NoPlaceError) as exc:
            return _refusal(exc)
        blocks = tuple(Block(mask, name, size) for name, size in wanted.items())
        return _with_blocks(state, pod, container, blocks) if blocks else state

    def release(self, state: MemoryState, uid: PodUid) -> MemoryState:
        for name in state.blocks.get(uid, {}):
            state = release_container(state, uid, name)
        if uid in state.blocks:  # a checkpoint may have a pod without containers
            state = replace(state, blocks={u: held for u, held in state.blocks.items() if u != uid})
        if state.reusable is not None and state.reusable.uid == uid:
            state = replace(state, reusable=None)
        return state


def release_container(state: MemoryState, uid: PodUid, container: str) -> MemoryState:
    """Return the state without the blocks of one container; the same state if it has none.

    Upstream gives back those of init containers when the next container starts.
    """
    blocks = container_blocks(state, uid, container)
    if blocks is None:
        return state
    nodes = state.nodes
    for block in blocks:
        nodes = give_back(nodes, block)
    left = {name: held for name, held in state.blocks[uid].items() if name != container}
    others = {u: held for u, held in state.blocks.items() if u != uid}
    return replace(state, nodes=nodes, blocks={**others, uid: left} if left else others)


def _new_hints(state: MemoryState, uid: PodUid, wanted: Sizes) -> Hints:
    """Return the hints of a request; {} also if it fits nowhere, as upstream."""
    fewest = fewest_nodes(state.nodes, wanted)
    found = tuple(
        Hint(mask, preferred=mask.bit_count() == fewest)
        for mask in placements(state.nodes, wanted, reusable_of(state, uid))
    )
    return dict.fromkeys(wanted, found) if found else {}


def _hints_of(blocks: Blocks, wanted: Sizes) -> Hints:
    """Return the hints that describe existing blocks; {} if the request is another one by now."""
    if len(blocks) != len(wanted) or any(wanted.get(b.type) != b.size for b in blocks):
        return {}
    return {block.type: (Hint(block.nodes, preferred=True),) for block in blocks}


def _existing(state: MemoryState, wanted: Sizes) -> Sizes:
    """Drop requests for 0 bytes of what the machine does not have: they need no block."""
    kinds = {name for memory in state.nodes.values() for name in memory.tables}
    return {name: size for name, size in wanted.items() if size or name in kinds}


def _choose(state: MemoryState, uid: PodUid, wanted: Sizes, affinity: Hint) -> int:
    """Return the nodes for a request. Raises `_NoPlaceError`."""
    nodes = state.nodes
    reusable = reusable_of(state, uid)
    mask, preferred = affinity.nodes, affinity.preferred
    if mask is None:
        found = next(placements(nodes, wanted, reusable), None)
        if found is None:
            raise _NoPlaceError(
                "failed to get the default NUMA affinity, no NUMA nodes with enough memory is "
                "available"
            )
        mask, preferred = found, _prefers(nodes, wanted, found, preferred, "default")
    # The merged hint may be narrower than each that the manager gave. Upstream also takes a single
    # node out of a group when the node has enough; the group's other nodes then know nothing of it.
    if not has_free(nodes, mask, wanted) or in_group(nodes, mask):
        wider = _including(placements(nodes, wanted, reusable), mask)
        found = next(wider, None)
        if found is None:
            raise _NoPlaceError("failed to find NUMA nodes to extend the current topology hint")
        _prefers(nodes, wanted, found, preferred, "extended")
        mask = found
    if breaks_groups(nodes, mask):
        raise _NoPlaceError("preferred hint violates NUMA node allocation")
    return mask


def _prefers(nodes: Nodes, wanted: Sizes, mask: int, required: bool, which: str) -> bool:
    """Return whether nodes are a preferred place. Raises `_NoPlaceError` if it must be one."""
    preferred = mask.bit_count() == fewest_nodes(nodes, wanted)
    if required and not preferred:
        raise _NoPlaceError(f"failed to find the {which} preferred hint")
    return preferred


def _including(masks: Iterator[int], mask: int) -> Iterator[int]:
    return (m for m in masks if m & mask == mask)


def _with_blocks(state: MemoryState, pod: Pod, container: Container, blocks: Blocks) -> MemoryState:
    uid = pod_uid(pod)
    reusable = reusable_of(state, uid)
    nodes = state.nodes
    for block in blocks:
        again = reusable.get((block.nodes, block.type), 0)
        nodes = reserve(nodes, block, max(block.size - again, 0))
    held = {**state.blocks.get(uid, {}), container.name: blocks}
    return MemoryState(
        nodes,
        {**state.blocks, uid: {**held, **init_blocks_left(pod, container, blocks, held)}},
        reusable_after(state, pod, container, blocks),
    )


def _refusal(problem: Exception) -> Refusal:
    return Refusal(
        "UnexpectedAdmissionError",
        f"Allocate failed due to [memorymanager] {problem}, which is unexpected",
    )
