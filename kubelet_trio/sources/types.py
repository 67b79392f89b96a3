"""What sources hand to the merge, the merge to the pods, and both to whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Latest, PodUid
from kubelet_trio.objects import ApiObject, ObjectKey


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Everything that one source wants now: always the full set, never a difference."""

    source: str  # as in annotation kubernetes.io/config.source: file, http, api
    pods: tuple[Pod, ...] = ()
    objects: tuple[ApiObject, ...] = ()  # what its pods may refer to
    # False: there may be more that it wants. Its pods run, and nothing counts as unwanted yet.
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Desired:
    """All pods that this node is to run, and the objects beside them, over all sources."""

    pods: Mapping[PodUid, Pod] = field(default_factory=dict)
    all_ready: bool = False  # whether every source has delivered once: before, remove nothing
    objects: Mapping[ObjectKey, ApiObject] = field(default_factory=dict)
    last_known: frozenset[PodUid] = frozenset()  # wanted before this start; nobody says so now
    delivered: frozenset[str] = frozenset()  # the sources that have said all that they want
    problems: tuple[SourceProblem, ...] = ()  # pods that give way to others of their name or UID


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why something that a source was given does not run (or does not run in its newest form)."""

    source: str  # file, http
    origin: str  # the file's path, the directory's, or the URL
    message: str
    document: int = 0  # 1 for the first in the file; 0: the file as a whole
    field: str = ""  # e.g. spec.containers[0].ports[1].hostPort

    def __str__(self) -> str:
        document = f"document {self.document}" if self.document else ""
        return ": ".join(part for part in (self.origin, document, self.field, self.message) if part)


class Source(Protocol):
    """A place that pods come from: what the merge and `status` need of it."""

    name: str  # the same in each of its snapshots: file, http
    snapshots: Latest[SourceSnapshot]
    delivered: SourceSnapshot | None  # the last one put there: for a merge that starts again
    problems: AsyncValue[tuple[SourceProblem, ...]]

    @property
    def origin(self) -> str:
        """The path or URL that it reads."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver snapshots until cancelled."""
        ...
