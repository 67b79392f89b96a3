"""What holds for every test."""

from __future__ import annotations

import gc
import importlib
import os
import re
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.harness.leftovers import left_unmounted

# A deadline an example would measure the machine's other load, not the code. With
# KUBELET_TRIO_DERANDOMIZE every run draws the same examples, as long as a test stays as it is.
settings.register_profile(
    "kubelet-trio",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("KUBELET_TRIO_DERANDOMIZE")),
)
settings.load_profile("kubelet-trio")

# Where rich is installed, structlog's own default draws each traceback with all local variables:
# seconds of CPU for a task that crashes on purpose.
# Lines of every single call would be most of what a failed test prints, and cost as much to draw.
_FREQUENT = frozenset({"runtime.call", "kube.request", "http.request", "pod.synced"})


def _without_calls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event["event"] in _FREQUENT:
        raise structlog.DropEvent
    return event


structlog.configure(
    processors=[
        _without_calls,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


# Real runtimes, in two lanes: the tests of a lane run one after the other, in one worker. Each
# lane has a containerd of its own, and mostly waits.
_LANES = (
    re.compile(r"tests/containerd/"),
    re.compile(r"tests/(golden|faults|cluster|browser)/|\[containerd[]-]"),
)
# Virtual time can wait: what runs in it gives way (`tests.simulation.conftest`) to what goes by
# real clocks, which waits most of the time.
_BESIDE = re.compile(r"tests/simulation/")


def _lane(nodeid: str) -> int:
    """Return the lane of a test; -1: none."""
    return next((n for n, lane in enumerate(_LANES) if lane.search(nodeid)), -1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the lanes when all the rest has ended, but for the simulations."""
    items.sort(key=lambda item: (_BESIDE.search(item.nodeid) is not None, _lane(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    """Let one worker run a lane, one test after the other."""
    if config.getvalue("dist") != "loadgroup":
        return None
    scheduling: Any = importlib.import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    scheduling._split_scope = lambda test: f"lane {lane}" if (lane := _lane(test)) >= 0 else test
    return scheduling


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collected tests out of every later garbage collection: they live until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.TempPathFactory]:
    """Pytest's own. It has to remove what it makes later, and cannot remove mount points."""
    with left_unmounted(tmp_path_factory.getbasetemp()):
        yield tmp_path_factory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Pytest's own; a test that leaves a mount in it fails."""
    with left_unmounted(tmp_path):
        yield tmp_path


@pytest.fixture
def brief_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory as `tmp_path` without the test's name: for agents with sockets below a root."""
    with left_unmounted(path := tmp_path_factory.mktemp("t")):
        yield path


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose paths have at most 107 bytes (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="kt-") as path:
        yield Path(path)
