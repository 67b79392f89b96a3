"""pytest fixtures for programs that embed a kubelet: opt in from your `conftest.py`.

    pytest_plugins = ["kubelet_trio.testing.pytest_plugin"]

Needs pytest and pytest-trio (extra `testing`). Everything runs in virtual time, so a
test must use pytest-trio's `autojump_clock` together with `kubelet`: an hour of back-off takes no
time, and a `trio.fail_after` around an event that never comes fails at once.

    async def test_my_program(kubelet, fake_runtime, autojump_clock): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock

from kubelet_trio.embed import Kubelet, KubeletConfig, open_kubelet
from kubelet_trio.testing.embedded import fake_world
from kubelet_trio.testing.runtime import FakeRuntime


@pytest.fixture
def fake_runtime() -> Iterator[FakeRuntime]:
    """The runtime of `kubelet`. Image names define what containers do: `testing.behaviour`.

    The test fails at its end if the agent broke its contract (`FakeRuntime.violations`).
    """
    # With a lag, as real runtimes have: a program must not rely on statuses that follow at once.
    runtime = FakeRuntime(write_logs=True, status_lag=0.06)
    yield runtime
    assert runtime.violations == []


@pytest.fixture
def kubelet_config(tmp_path: Path, fake_runtime: FakeRuntime) -> KubeletConfig:
    """The configuration of `kubelet`. Override this fixture to change it."""
    return KubeletConfig(root_dir=tmp_path / "kubelet", runtime=fake_runtime, node_name="node")


@trio_fixture  # type: ignore[untyped-decorator]  # pytest-trio has no types
async def kubelet(
    fake_runtime: FakeRuntime, kubelet_config: KubeletConfig
) -> AsyncIterator[Kubelet]:
    """An open kubelet on `fake_runtime`, in virtual time."""
    if not isinstance(trio.lowlevel.current_clock(), MockClock):
        # pytest-trio looks for a clock only in the test's own arguments.
        pytest.fail("a test with `kubelet` takes `autojump_clock` as well", pytrace=False)
    world = fake_world(fake_runtime, kubelet_config)
    async with open_kubelet(kubelet_config, world=world) as opened:
        yield opened  # noqa: ASYNC119  # pytest-trio runs the generator to its end
