"""What the daemon does to its machine, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.cgroups import CgroupHost, Delegation
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import machine as module
from kubelet_trio.daemon import machine_children
from kubelet_trio.daemon.machine import set_kernel, set_up_machine
from kubelet_trio.host import Denied, LeftOut, differences
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


SCORE = LeftOut("process.oom_score_adj", "the score", "none", {"wanted": -999})
KEEP = ["--keep-kernel-settings"]


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [(KEEP, True), ([*KEEP, "--feature-gates=KubeletInUserNamespace=true"], False)],
)
async def test_in_a_user_namespace_one_note_has_all_that_is_left_out(
    flags: list[str], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "in_user_namespace", lambda: True)
    monkeypatch.setattr(module, "_find_denied", lambda settings: Denied("not permitted"))
    with capture_logs() as logs:
        settings, denied = await set_up_machine(load_settings(flags), [SCORE])
    assert denied == Denied("not permitted")
    [note] = [note for note in settings.notes if "left out" in note]
    assert "the score (none); /dev/kmsg (no events SystemOOM)" in note
    assert ("KubeletInUserNamespace" in note) is is_warned
    assert [line["log_level"] for line in logs] == ["warning" if is_warned else "info"]


async def test_on_the_machine_itself_the_parts_try_and_there_is_no_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "in_user_namespace", lambda: False)
    before = load_settings([*KEEP, "--feature-gates=KubeletInUserNamespace=true"])
    with capture_logs() as logs:
        settings, denied = await set_up_machine(before, [SCORE])
    assert (settings, denied) == (before, Denied())
    assert [line["event"] for line in logs] == ["process.oom_score_adj"]


@pytest.mark.parametrize(
    ("flags", "is_asked"),
    [
        ([], True),
        (["--container-runtime-endpoint=process"], False),
        (["--cgroups-per-qos=false", "--enforce-node-allocatable="], False),
    ],
)
def test_cgroups_are_looked_at_only_if_the_agent_is_to_make_some(
    flags: list[str], is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def find(host: CgroupHost, root: str, driver: str) -> Delegation:
        asked.append(driver)
        return Delegation("/sys/fs/cgroup")

    monkeypatch.setattr(module, "find_delegation", find)
    denied = module._find_denied(load_settings(flags), tmp_path / "kmsg")
    assert asked == ["cgroupfs"] * is_asked
    assert denied.cgroups == Delegation("/sys/fs/cgroup" * is_asked)
    assert "No such file" in denied.kernel_log


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
