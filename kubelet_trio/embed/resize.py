"""Changes the CPU and memory of an embedded pod: pure."""

from __future__ import annotations

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import resizable_amounts
from kubelet_trio.model import metadata, parse_quantity


def with_spec_of(before: Pod, pod: Pod) -> Pod:
    """Return `before` with the spec of `pod` as its next generation, or itself if none is needed.

    The status shows by its `observedGeneration` that the kubelet has taken the new spec.
    """
    if same_amounts(before, pod):
        return before
    meta = metadata(before)
    # The first generation at an API server is 1.
    meta = msgspec.structs.replace(meta, generation=(meta.generation or 1) + 1)
    return msgspec.structs.replace(before, spec=pod.spec, metadata=meta)


def same_amounts(first: Pod, second: Pod) -> bool:
    """Return whether two states of a pod have the same CPU and memory. Raises ValueError."""
    mine, others = ([(*at, parse_quantity(q)) for *at, q in resizable_amounts(p)]
                    for p in (first, second))  # fmt: skip
    return mine == others
