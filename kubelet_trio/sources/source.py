"""The seam between sources and the merge: snapshots of wanted pods, and current problems."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Latest, PodUid, get_logger
from kubelet_trio.objects import ApiObject, ObjectKey
from kubelet_trio.sources.errors import ManifestError

log = get_logger()


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Everything that one source wants now: always the full set, never a difference."""

    source: str  # as in annotation kubernetes.io/config.source: file, http, api
    pods: tuple[Pod, ...] = ()
    objects: tuple[ApiObject, ...] = ()  # what its pods may refer to
    # False: the source may want more pods. These run, and no other pod counts as unwanted yet.
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Desired:
    """All pods that this node is to run, and their objects, over all sources."""

    pods: Mapping[PodUid, Pod] = field(default_factory=dict)
    all_ready: bool = False  # every source has delivered once; until then, remove no pod
    objects: Mapping[ObjectKey, ApiObject] = field(default_factory=dict)
    last_known: frozenset[PodUid] = frozenset()  # wanted before this start, not confirmed since
    delivered: frozenset[str] = frozenset()  # the sources whose snapshot is complete
    problems: tuple[SourceProblem, ...] = ()  # pods dropped for others of their name or UID


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
    """A place that pods come from, as the merge and `status` see it."""

    name: str  # the same in each of its snapshots: file, http
    snapshots: Latest[SourceSnapshot]
    delivered: SourceSnapshot | None  # the last snapshot: a merge that restarts reads it again
    problems: AsyncValue[tuple[SourceProblem, ...]]

    @property
    def origin(self) -> str:
        """The path or URL that it reads."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver snapshots until cancelled."""
        ...


class SourceProblems:
    """The current problems of one source: kept for `status`, logged once per change."""

    def __init__(self) -> None:
        self.now: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    def report(self, problems: tuple[SourceProblem, ...]) -> None:
        """Replace the problems; log the new and the solved ones, nothing if they are the same."""
        before = self.now.value
        if problems == before:
            return
        for problem in problems:
            if problem not in before:
                log.warning(
                    "source.problem",
                    source=problem.source,
                    origin=problem.origin,
                    document=problem.document or None,
                    field=problem.field or None,
                    problem=problem.message,
                )
        # Solved only if the file has no problem left: one error often hides the next.
        left = {problem.origin for problem in problems}
        for origin in dict.fromkeys(p.origin for p in before):
            if origin not in left:
                log.info("source.problem_solved", origin=origin)
        self.now.value = problems


def problems_of(error: ManifestError, source: str) -> tuple[SourceProblem, ...]:
    """Return a manifest's errors as problems of its source."""
    return tuple(
        SourceProblem(source, printable_path(error.origin), e.message, e.document, e.field)
        for e in error.errors
    )


def printable_path(path: str) -> str:
    """Return a path as valid Unicode: bytes that are not UTF-8 as `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
