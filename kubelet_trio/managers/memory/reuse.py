"""Init containers' memory is used again by the containers after them.

An init container is over before the next container starts, so a pod needs the most of them and not
their sum. What the next containers take over is taken off the blocks of the init containers, so
that the blocks of a pod add up to what is reserved for it. Sidecars keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.memory.state import Block, Blocks, MemoryState, Reusable
from kubelet_trio.model import ContainerKind, PodContainer, PodUid, pod_uid
from kubelet_trio.model import spec as pod_spec


def reusable_of(state: MemoryState, uid: PodUid) -> Mapping[tuple[int, str], int]:
    """Return what init containers of a pod left, by mask of nodes and kind of memory."""
    reusable = state.reusable
    return reusable.sizes if reusable is not None and reusable.uid == uid else {}


def reusable_after(state: MemoryState, pod: Pod, container: Container, blocks: Blocks) -> Reusable:
    """Return what is left for the next containers once a container has its blocks."""
    sizes = dict(reusable_of(state, pod_uid(pod)))
    leaves = any(init.name == container.name for init in _regular_init(pod))
    for block in blocks:
        key = block.nodes, block.type
        there = sizes.get(key, 0)
        sizes[key] = max(there, block.size) if leaves else max(there - block.size, 0)
    return Reusable(pod_uid(pod), sizes)


def init_blocks_left(
    pod: Pod, container: Container, blocks: Blocks, held: Mapping[str, Blocks]
) -> dict[str, Blocks]:
    """Return the blocks of earlier init containers, less what a container takes over of them."""
    left: dict[str, Blocks] = {}
    taken = list(blocks)
    for init in _regular_init(pod, before=container.name):
        if init.name not in held:
            continue
        kept = []
        for block in held[init.name]:
            for index, own in enumerate(taken):
                if (own.nodes, own.type) == (block.nodes, block.type):
                    both = min(own.size, block.size)
                    block, taken[index] = _less(block, both), _less(own, both)
            kept.append(block)
        left[init.name] = tuple(kept)
    return left


def _regular_init(pod: Pod, before: str = "") -> Iterator[Container]:
    """Yield init containers that are no sidecars, up to the one named `before`."""
    for init in pod_spec(pod).initContainers or ():
        if init.name == before:
            return
        if not PodContainer(ContainerKind.INIT, init).is_sidecar:
            yield init


def _less(block: Block, size: int) -> Block:
    return replace(block, size=block.size - size) if size else block
