"""Changes of resources of the embedded runtime's containers: in its cgroup and on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.cri import ProcessRuntime, RuntimeCallError, merged_resources, v1
from kubelet_trio.cri.process import resizing, store
from kubelet_trio.model import ContainerId
from tests.conformance.cases import FOREVER, Box, exits
from tests.cri.process.conftest import ProcessCase

Resources = v1.LinuxContainerResources
SMALL = Resources(cpu_shares=2, memory_limit_in_bytes=32 << 20)
BIG = Resources(cpu_shares=512, memory_limit_in_bytes=64 << 20)


async def shares(runtime: ProcessRuntime, container_id: ContainerId) -> int:
    status, _ = await runtime.container_status(container_id)
    assert status.resources is not None
    assert status.resources.linux is not None
    return status.resources.linux.cpu_shares


async def test_the_next_agent_knows_a_change(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER, resources=SMALL)
    await case.runtime.update_container_resources(container_id, BIG)
    assert await shares(case.runtime, container_id) == 512
    later = ProcessRuntime(case.logs / "root")
    assert await shares(later, container_id) == 512


async def test_a_container_that_has_exited_is_changed_on_record(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(exits(0), resources=SMALL)
    await case.wait_exited(container_id)
    await case.runtime.update_container_resources(container_id, BIG)
    assert await shares(case.runtime, container_id) == 512


async def test_a_change_that_cannot_be_written_is_an_error_and_no_change(
    case: ProcessCase, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_id = await box.start(FOREVER, resources=SMALL)

    def full(_directory: Path, _config: v1.ContainerConfig) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store, "update_container", full)
        with pytest.raises(RuntimeCallError, match=r"UpdateContainerResources: .*No space left"):
            await case.runtime.update_container_resources(container_id, BIG)
    assert await shares(case.runtime, container_id) == 2


def test_a_cgroup_is_set_back_if_the_record_cannot_be_written(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("memory.max", "memory.limit_in_bytes")]
    for file in files:
        file.write_text("7")
    config = v1.ContainerConfig(linux=v1.LinuxContainerConfig(resources=SMALL))
    resizing.change_resources(tmp_path, [tmp_path], config, BIG)
    assert str(64 << 20) in [file.read_text() for file in files]
    for file in files:
        file.write_text("33554432")
    with pytest.raises(FileNotFoundError):
        resizing.change_resources(tmp_path / "missing", [tmp_path], config, BIG)
    assert [file.read_text() for file in files] == ["33554432"] * 2


@pytest.mark.parametrize(
    ("now", "asked", "merged"),
    [
        (Resources(), Resources(), Resources()),
        (BIG, Resources(), BIG),
        (Resources(oom_score_adj=5), Resources(oom_score_adj=-5), Resources(oom_score_adj=5)),
        (
            Resources(memory_limit_in_bytes=8, memory_swap_limit_in_bytes=8),
            Resources(memory_limit_in_bytes=9),
            Resources(memory_limit_in_bytes=9, memory_swap_limit_in_bytes=9),
        ),
        (
            Resources(unified={"memory.high": "7", "memory.oom.group": "1"}),
            Resources(unified={"memory.high": "max"}),
            Resources(unified={"memory.high": "max", "memory.oom.group": "1"}),
        ),
        (
            Resources(cpu_quota=5, cpu_period=10, cpuset_cpus="0-1"),
            Resources(cpu_quota=-1, cpuset_cpus="2"),
            Resources(cpu_quota=-1, cpu_period=10, cpuset_cpus="2"),
        ),
    ],
)
def test_zero_changes_nothing(now: Resources, asked: Resources, merged: Resources) -> None:
    assert merged_resources(now, asked) == merged
