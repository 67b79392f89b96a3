"""The seam between sources and the merge: snapshots of wanted pods, and current problems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Latest, PodKey, PodUid, get_logger, pod_key
from kubelet_trio.objects import ApiObject, ObjectKey
from kubelet_trio.sources.errors import FieldError, ManifestError, place

log = get_logger()


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Everything that one source wants now: always the full set, never a difference."""

    source: str  # as in annotation kubernetes.io/config.source: file, http, api
    pods: tuple[Pod, ...] = ()
    objects: tuple[ApiObject, ...] = ()  # what its pods may refer to
    # False: the source may want more pods. These run, and no other pod counts as unwanted yet.
    is_complete: bool = True
    # Of another kubelet, maybe wanted by a manifest that does not parse: they run on as they are.
    kept: frozenset[PodUid] = frozenset()


@dataclass(frozen=True, slots=True)
class Desired:
    """All pods that this node is to run, and their objects, over all sources."""

    pods: Mapping[PodUid, Pod] = field(default_factory=dict)
    all_ready: bool = False  # every source has delivered once
    objects: Mapping[ObjectKey, ApiObject] = field(default_factory=dict)
    last_known: frozenset[PodUid] = frozenset()  # wanted before this start, not confirmed since
    # The sources whose snapshot is complete: of theirs, no other pods are to run.
    delivered: frozenset[str] = frozenset()
    problems: tuple[SourceProblem, ...] = ()  # pods dropped for others of their name or UID
    kept: frozenset[PodUid] = frozenset()  # not wanted, and not to be ended: see `SourceSnapshot`


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why something that a source was given does not run (or does not run in its newest form)."""

    source: str  # file, http
    origin: str  # the file's path, the directory's, or the URL
    message: str
    document: int = 0  # 1 for the first in the file; 0: the file as a whole
    field: str = ""  # e.g. spec.containers[0].ports[1].hostPort
    line: int = 0  # 1 for the first of the file; 0: not known
    column: int = 0  # in characters, 1 for the first of the line
    pods: tuple[PodKey, ...] = ()  # that run on as the file had them before

    @property
    def place(self) -> str:
        """Where it is: `web.yaml:8:7: spec.containers[0].image`."""
        error = FieldError(self.field, self.message, self.document, self.line, self.column)
        return place(self.origin, error)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


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
                    line=problem.line or None,
                    column=problem.column or None,
                    field=problem.field or None,
                    problem=problem.message,
                )
        # Solved only if the file has no problem left: one error often hides the next.
        left = {problem.origin for problem in problems}
        for origin in dict.fromkeys(p.origin for p in before):
            if origin not in left:
                log.info("source.problem_solved", origin=origin)
        self.now.value = problems


def problems_of(
    error: ManifestError, source: str, pods: Iterable[Pod] = ()
) -> tuple[SourceProblem, ...]:
    """Return a manifest's errors as problems of its source; `pods` run on as they were."""
    kept = tuple(pod_key(pod) for pod in pods)
    return tuple(
        SourceProblem(
            source,
            printable_path(error.origin),
            e.message,
            e.document,
            e.field,
            e.line,
            e.column,
            kept,
        )
        for e in error.errors
    )


def printable_path(path: str) -> str:
    """Return a path as valid Unicode: bytes that are not UTF-8 as `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
