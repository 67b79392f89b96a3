"""What holds for every test."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# A deadline an example would measure the machine's other load, not the code.
settings.register_profile("kubelet-trio", deadline=None, print_blob=True)
settings.load_profile("kubelet-trio")

# Where rich is installed, structlog's own default draws each traceback with all local variables:
# seconds of CPU for a task that crashes on purpose.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collected tests out of every later garbage collection: they live until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def brief_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `tmp_path` without the test's name: for agents with sockets below a root."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose paths have at most 107 bytes (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="kt-") as path:
        yield Path(path)
