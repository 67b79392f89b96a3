"""One control plane and one containerd a session.

Tests share the API server, so each makes names of its own; whoever stops or hangs the server
does so inside its test and leaves it as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agent, Containerd, missing
from tests.harness.control_plane import ControlPlane, missing_programs
from tests.harness.kube import KubeClient
from tests.harness.suites import add_agent_logs, skip_where_missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_where_missing(
        items, Path(__file__).parent, "real cluster", [*missing(), *missing_programs()]
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return add_agent_logs(item, (yield))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture(scope="session")
def kube(plane: ControlPlane) -> Iterator[KubeClient]:
    """The administrator's client, with `default` as controllers would have made it."""
    with KubeClient(plane.admin_kubeconfig) as client:
        client.prepare_namespace("default", plane.authority.certificate)
        yield client


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    with Containerd() as running:
        yield running


@pytest.fixture(scope="module")
def make_agent(
    containerd: Containerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Agent]]:
    """Make agents, one after the other; each is closed with all its pods."""
    made: list[Agent] = []

    def make(**settings: Any) -> Agent:
        while made:
            made.pop().close()
        made.append(Agent(tmp_path_factory.mktemp("agent"), containerd, **settings))
        return made[-1]

    yield make
    while made:
        made.pop().close()


_numbers = itertools.count(1)


@pytest.fixture
def namespace(plane: ControlPlane, kube: KubeClient) -> str:
    """A namespace of the test's own, which nobody deletes."""
    name = f"test-{next(_numbers)}"
    kube.prepare_namespace(name, plane.authority.certificate)
    return name


@pytest.fixture
def kube_as(plane: ControlPlane) -> Iterator[Callable[..., KubeClient]]:
    """Make clients of other users: a name and its groups."""
    made: list[KubeClient] = []

    def make(name: str, *groups: str) -> KubeClient:
        made.append(KubeClient(plane.kubeconfig(name, *groups)))
        return made[-1]

    yield make
    for client in made:
        client.close()
