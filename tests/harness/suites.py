"""What the suites with real parts share with pytest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.harness.agent import Agent


def skip_where_missing(
    items: Iterable[pytest.Item], directory: Path, what: str, lacks: Sequence[str]
) -> None:
    """Skip the tests below `directory` if anything lacks."""
    for item in items:
        if lacks and directory in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no {what} here: {', '.join(lacks)}"))


def add_agent_logs(item: pytest.Item, report: pytest.TestReport) -> pytest.TestReport:
    """Show what the test's agents printed last beside a failure."""
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Agent):
                report.sections.append((f"agent in {value.base}", value.tail()))
    return report
