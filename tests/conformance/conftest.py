"""A case for every runtime: the fake, the embedded one, and a private containerd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kubelet_trio.cri import ProcessRuntime, RemoteRuntime, Runtime
from kubelet_trio.testing import FakeRuntime
from tests.conformance.cases import FOREVER, STUBBORN, Case, fake_behaviour, fake_exec
from tests.harness import BUSYBOX, Containerd, missing


@pytest.fixture(scope="session")
def private_containerd() -> Iterator[Containerd]:
    with Containerd() as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*what): skip runtimes that declare to lack it")


@pytest.fixture(params=["fake", "process", "containerd"])
def closed_case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    makers = {"fake": fake_case, "process": process_case, "containerd": containerd_case}
    made = makers[request.param](request, tmp_path)
    marker = request.node.get_closest_marker("needs")
    if marker is not None and (lacking := made.lacks.intersection(marker.args)):
        pytest.skip(f"{made.name} lacks {', '.join(sorted(lacking))}")
    return made


@pytest.fixture
async def case(closed_case: Case) -> AsyncIterator[Case]:
    async with closed_case.opened() as opened:
        yield opened


def fake_case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    runtime = FakeRuntime(behave=fake_behaviour([FOREVER, STUBBORN]), write_logs=True)
    runtime.images.present.add(BUSYBOX)
    runtime.on_exec = fake_exec

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Runtime]:
        yield runtime

    return Case("fake", open_client, tmp_path, BUSYBOX, lacks=["processes"])


def process_case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    @asynccontextmanager
    async def open_client() -> AsyncIterator[Runtime]:
        runtime = ProcessRuntime(tmp_path / "root", allow_root=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            yield runtime
            nursery.cancel_scope.cancel()

    return Case("process", open_client, tmp_path, BUSYBOX)


def containerd_case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if lacks := missing():
        pytest.skip(f"no real containers here: {', '.join(lacks)}")
    containerd: Containerd = request.getfixturevalue("private_containerd")

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Runtime]:
        runtime = RemoteRuntime(containerd.endpoint)
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            yield runtime
            nursery.cancel_scope.cancel()

    # Nothing is there to pull from.
    return Case("containerd", open_client, tmp_path, BUSYBOX, lacks=["pulls"])
