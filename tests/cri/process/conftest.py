"""A case of the embedded runtime for each test, and the certainty that it left no process."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kubelet_trio.cri import ProcessRuntime, Runtime
from tests.conformance.cases import Box, Case
from tests.cri.process.processes import processes_at


class ProcessCase(Case):
    """A case whose runtime is known to be the embedded one."""

    runtime: ProcessRuntime


@pytest.fixture
def closed_case(tmp_path: Path) -> ProcessCase:
    @asynccontextmanager
    async def open_client() -> AsyncIterator[Runtime]:
        runtime = ProcessRuntime(tmp_path / "root", allow_root=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            yield runtime
            nursery.cancel_scope.cancel()

    return ProcessCase("process", open_client, tmp_path, "anything:1")


@pytest.fixture
async def case(closed_case: ProcessCase) -> AsyncIterator[ProcessCase]:
    async with closed_case.opened() as opened:
        yield opened


@pytest.fixture
async def box(case: ProcessCase) -> Box:
    return await case.sandbox()


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    # A shim is about to go when it has told of its container's end.
    deadline = time.monotonic() + 5
    while (left := processes_at(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert left == []


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
