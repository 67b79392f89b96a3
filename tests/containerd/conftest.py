"""One private containerd a session, one agent a module, unless a test needs its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agent, Containerd, CriClient, missing
from tests.harness.api_node import ApiNode
from tests.harness.suites import add_agent_logs, skip_where_missing

MakeAgent = Callable[..., Agent]
FAST_BACKOFF = 1.0  # seconds; the Go kubelet's 10 would make tests of minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_where_missing(items, Path(__file__).parent, "real containers", missing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return add_agent_logs(item, (yield))


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    with Containerd(metrics=True) as running:
        yield running


@pytest.fixture(scope="session")
def cri(containerd: Containerd) -> Iterator[CriClient]:
    with CriClient(containerd.socket) as client:
        yield client


@pytest.fixture(scope="module")
def make_agent(
    containerd: Containerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeAgent]:
    """Make agents, one after the other; each is closed with all its pods."""
    made: list[Agent] = []

    def make(**settings: Any) -> Agent:
        while made:
            made.pop().close()
        settings.setdefault("arguments", ("--crash-loop-backoff-base", f"{FAST_BACKOFF:g}s"))
        made.append(Agent(tmp_path_factory.mktemp("agent"), containerd, **settings))
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.fixture(scope="module")
def agent(make_agent: MakeAgent) -> Agent:
    """The module's shared agent, running; tests use pod names of their own."""
    agent = make_agent()
    agent.start()
    return agent


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    """The module's node of a fake API server; tests use pod names of their own."""
    with ApiNode(tmp_path_factory.mktemp("node"), containerd) as running:
        yield running
