"""What the daemon does to its machine, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import machine_children
from kubelet_trio.daemon.machine import set_kernel
from kubelet_trio.host import differences
from kubelet_trio.supervision import Supervisor
from tests.host.test_tunables import tree, values

ALL = ["process", "iptables:ipv4", "iptables:ipv6"]


@pytest.mark.parametrize(
    ("flags", "writes"),
    [
        ([], True),
        (["--protect-kernel-defaults"], False),
        (["--keep-kernel-settings"], False),
        (["--container-runtime-endpoint=process"], False),
    ],
)
async def test_the_kernels_settings_are_written_unless_somebody_forbids_it(
    tmp_path: Path, flags: list[str], writes: bool
) -> None:
    root = tree(tmp_path, overcommit_memory="0")
    before = values(root)
    await set_kernel(load_settings(flags), root)
    assert (values(root) == before) is not writes
    assert (differences(root) == []) is writes


@pytest.mark.parametrize(
    ("flags", "tasks"),
    [
        ([], ALL),
        (["--make-iptables-util-chains=false"], ["process"]),
        (["--container-runtime-endpoint=process"], ["process"]),
        (
            ["--system-cgroups=/system", "--cgroup-root=/"],
            ["process", "system-processes", *ALL[1:]],
        ),
    ],
)
def test_the_machines_tasks_follow_the_configuration(flags: list[str], tasks: list[str]) -> None:
    assert [child.name for child in machine_children(load_settings(flags))] == tasks


async def test_a_bug_in_one_of_them_ends_no_agent(autojump_clock: MockClock) -> None:
    children = machine_children(load_settings([]))

    async def crash(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise RuntimeError("bug")

    crashing = [replace(child, run=crash) for child in children]
    with trio.move_on_after(3600) as hour:
        await Supervisor("machine", crashing).run()
    assert hour.cancelled_caught
