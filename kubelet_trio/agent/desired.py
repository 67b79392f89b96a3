"""What the sources want, on its way to the workers, and what is told of the sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from kubelet_trio.model import INSTANCE, metadata, pod_annotations
from kubelet_trio.server import ProblemInfo, SourceInfo
from kubelet_trio.sources import Desired, Source


def marked(desired: Desired, instance: str) -> Desired:
    """Mark the pods of an embedded agent: the runtime's objects carry it on (`owned_by`)."""
    pods = {}
    for uid, pod in desired.pods.items():
        annotations = {**pod_annotations(pod), INSTANCE: instance}
        meta = msgspec.structs.replace(metadata(pod), annotations=annotations)
        pods[uid] = msgspec.structs.replace(pod, metadata=meta)
    return replace(desired, pods=pods)


def source_infos(sources: Iterable[Source], desired: Desired) -> Iterator[SourceInfo]:
    """Yield how each source does: its own problems, and the pods that give way to others."""
    for source in sources:
        given_way = [p for p in desired.problems if p.source == source.name]
        problems = tuple(
            ProblemInfo(str(p).removesuffix(f": {p.message}"), p.message)
            for p in (*source.problems.value, *given_way)
        )
        delivered = source.delivered
        yield SourceInfo(
            f"{source.name}:{source.origin}",
            delivered is not None and delivered.is_complete,
            len(delivered.pods) - len(given_way) if delivered is not None else 0,
            problems,
        )
