"""What is wrong with a source right now: kept for `status`, logged once per change."""

from __future__ import annotations

import os

from trio_util import AsyncValue

from kubelet_trio.model import get_logger
from kubelet_trio.sources._errors import ManifestError
from kubelet_trio.sources.types import SourceProblem

log = get_logger()


class Problems:
    """The problems of one source. Reporting the same ones again does nothing."""

    def __init__(self) -> None:
        self.now: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    def report(self, problems: tuple[SourceProblem, ...]) -> None:
        """Replace the problems, and log those that are new and those that are gone."""
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
        left = {problem.origin for problem in problems}
        for origin in dict.fromkeys(p.origin for p in before):
            if origin not in left:
                log.info("source.problem_solved", origin=origin)
        self.now.value = problems


def problems_of(error: ManifestError, source: str) -> tuple[SourceProblem, ...]:
    """Return a manifest's errors as problems of its source."""
    return tuple(
        SourceProblem(source, told(error.origin), e.message, e.document, e.field)
        for e in error.errors
    )


def told(path: str) -> str:
    """Return a path as text for anybody: bytes that are no UTF-8 as `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
