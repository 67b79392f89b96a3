"""One control plane and one containerd a session.

Tests share the API server, so each makes names of its own; whoever stops or hangs the server
does so inside its test and leaves it as it was.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agent, Containerd, kind, missing
from tests.harness.control_plane import ControlPlane, missing_programs
from tests.harness.kube import KubeClient
from tests.harness.suites import add_agent_logs, skip_where_missing

# What runs on a cluster of somebody else's: these files, and not the tests that are named.
_ANYWHERE = {"test_node.py", "test_kubectl_verbs.py"}
_OWN_ALONE = {
    "test_the_server_may_restart_and_hang": "restarts the API server",
    "test_nothing_was_denied": "reads the API server's audit log",
}


def _why_not(item: pytest.Item) -> str:
    """Return why a test cannot run on somebody else's cluster, "" if it can."""
    if lacks := kind.lacking():
        return f"no way to the cluster of {kind.NODE}: {', '.join(lacks)}"
    if item.path.name not in _ANYWHERE:
        return f"not on kind: {item.path.stem} brings an API server or an agent of its own"
    why = _OWN_ALONE.get(item.name, "")
    return f"not on kind: {item.name} {why}" if why else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not kind.NODE:
        lacks = [*missing(), *missing_programs()]
        skip_where_missing(items, Path(__file__).parent, "real cluster", lacks)
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and (reason := _why_not(item)):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return add_agent_logs(item, (yield))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane | kind.KindPlane]:
    if kind.NODE:
        yield kind.KindPlane(tmp_path_factory.mktemp("plane"))
        return
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
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Agent | kind.KindAgent]]:
    """Make agents, one after the other; each is closed with all its pods.

    On a cluster of somebody else's it is the one there, whatever settings it has.
    """
    made: list[Agent | kind.KindAgent] = []

    def make(**settings: Any) -> Agent | kind.KindAgent:
        while made:
            made.pop().close()
        if kind.NODE:
            made.append(kind.KindAgent(tmp_path_factory.mktemp("agent")))
            return made[-1]
        containerd = request.getfixturevalue("containerd")
        made.append(Agent(tmp_path_factory.mktemp("agent"), containerd, **settings))
        return made[-1]

    yield make
    while made:
        made.pop().close()


_numbers = itertools.count(1)


@pytest.fixture
def namespace(plane: ControlPlane, kube: KubeClient) -> str:
    """A namespace of the test's own, which nobody deletes."""
    name = f"test-{next(_numbers)}" if not kind.NODE else f"test-{time.time_ns()}"
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
