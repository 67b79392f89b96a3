"""Testing the gateway end to end, in virtual time and milliseconds.

    pytest -p kubelet_trio.testing.pytest_plugin examples/embedding/test_gateway.py

`kubelet` is a whole agent on `fake_runtime`; nothing is faked between the program and CRI.
"""

from __future__ import annotations

import pytest
import trio
from gateway import run_gateway  # beside this file
from trio.testing import MockClock

from kubelet_trio import ExecResult, Kubelet
from kubelet_trio.testing import FakeExec, FakeRuntime, FaultKind

pytestmark = pytest.mark.trio


async def test_the_service_is_checked_and_taken_down(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    fake_runtime.on_exec = lambda _container, _command: FakeExec(
        takes=2, result=ExecResult(b".\n1000\n", b"", 0)
    )
    assert await run_gateway(kubelet) == "1000"
    assert not fake_runtime.sandboxes


async def test_a_runtime_that_is_down_for_an_hour_only_costs_the_hour(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    fake_runtime.on_exec = lambda _container, _command: FakeExec(
        result=ExecResult(b".\n1000\n", b"", 0)
    )
    fake_runtime.go_down()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_gateway, kubelet)
        await trio.sleep(3600)  # takes no time
        fake_runtime.restart()
    assert trio.current_time() < 3660


async def test_a_failing_check_is_told_and_leaves_nothing(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    fake_runtime.on_exec = lambda _container, _command: FakeExec(
        result=ExecResult(b"", b"no such file", 2)
    )
    fake_runtime.faults.add(FaultKind.ERROR, "StopContainer")  # the first stop fails, too
    with pytest.raises(RuntimeError, match="no such file"):
        await run_gateway(kubelet)
    assert not fake_runtime.sandboxes
