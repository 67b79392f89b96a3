"""What is real about a container here, and what is refused or only said."""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing
import trio

from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.cri.process.cgroup import cgroup_paths
from tests.conformance.cases import FOREVER, Box, Case, exits
from tests.cri.process.conftest import ProcessCase


def asking(case: Case, **security: object) -> v1.ContainerConfig:
    """A container that runs for ever, under a security context."""
    config = case.container_config(FOREVER)
    assert config.linux is not None
    config.linux.security_context = v1.LinuxContainerSecurityContext(**security)  # type: ignore[arg-type]
    return config


async def test_a_container_without_a_command_cannot_be_made(case: ProcessCase, box: Box) -> None:
    with pytest.raises(
        RuntimeCallError, match='container "main" cannot be made: it has no command'
    ):
        await box.create(exits(0), command=[])
    assert (await case.runtime.list_containers()).entries == {}
    assert [entry for entry in (case.logs / "root").rglob("*") if entry.name == "work"] == []


async def test_no_runtime_handler_is_there(case: ProcessCase) -> None:
    with pytest.raises(RuntimeCallError, match='no runtime for "gvisor" is configured'):
        await case.runtime.run_pod_sandbox(case.sandbox_config(), "gvisor")


async def test_root_must_be_asked_for(case: ProcessCase, tmp_path: Path, as_root: None) -> None:
    from kubelet_trio.cri import ProcessRuntime

    runtime = ProcessRuntime(tmp_path / "other")
    config = case.sandbox_config()
    sandbox_id = await runtime.run_pod_sandbox(config)
    with pytest.raises(RuntimeCallError, match=r'container "main".* as root.*runAsUser'):
        await runtime.create_container(sandbox_id, case.container_config(FOREVER), config)


async def test_another_user_has_its_directory_its_output_and_its_mounts(
    case: ProcessCase, as_root: None
) -> None:
    nobody = pwd.getpwnam("nobody")
    root = case.logs / "root"
    root.mkdir(mode=0o750)
    volume = root / "pods" / "uid" / "volume"
    volume.mkdir(parents=True)
    volume.chmod(0o777)
    for closed in (root / "pods", root / "pods" / "uid"):
        closed.chmod(0o750)
    box = await case.sandbox()
    script = "id -u; id -g; id -G; cd $PWD; echo > mine; echo > $KUBELET_TRIO_MOUNT_DATA/x"
    config = asking(
        case,
        run_as_user=v1.Int64Value(value=nobody.pw_uid),
        run_as_group=v1.Int64Value(value=4242),
        supplemental_groups=[77],
        supplemental_groups_policy=v1.SupplementalGroupsPolicy.Strict,
    )
    config.command = ["sh", "-c", f"{script}; echo told > /dev/stdout; exit 0"]
    config.mounts = [v1.Mount(container_path="/data", host_path=str(volume))]
    case.logs.chmod(0o711)
    for parent in case.logs.parents:  # pytest's own are closed as well
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o711)
    container_id = await case.runtime.create_container(box.id, config, box.config)
    await case.runtime.start_container(container_id)
    status = await case.wait_exited(container_id)
    assert await box.log_of(container_id) == [
        f"stdout F {nobody.pw_uid}".encode(),
        b"stdout F 4242",
        b"stdout F 4242 77",
        b"stdout F told",
    ]
    assert status.exit_code == 0
    assert (volume / "x").stat().st_uid == nobody.pw_uid
    assert status.user is not None
    assert status.user.linux is not None
    assert (status.user.linux.uid, status.user.linux.gid) == (nobody.pw_uid, 4242)
    assert root.stat().st_mode & 0o777 == 0o751


async def test_a_container_begins_in_a_directory_of_its_own(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(exits(0, "ls -A | wc -l; echo x > file; pwd"))
    empty, where = await box.log_of(container_id)
    assert empty == b"stdout F 0"
    directory = Path(where.removeprefix(b"stdout F ").decode())
    assert (directory / "file").exists()
    await case.runtime.remove_container(container_id)
    assert not directory.exists()


async def test_a_working_directory_that_is_not_there_is_named(case: ProcessCase, box: Box) -> None:
    container_id = await box.create(exits(0), working_dir="/no/such/directory")
    words = 'working directory "/no/such/directory": No such file or directory'
    with pytest.raises(RuntimeCallError, match=words):
        await case.runtime.start_container(container_id)
    assert words in (await case.wait_exited(container_id)).message


async def test_a_working_directory_is_entered_as_the_containers_user(
    case: ProcessCase, tmp_path: Path, as_root: None
) -> None:
    nobody = pwd.getpwnam("nobody")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    box = await case.sandbox()
    config = asking(
        case,
        run_as_user=v1.Int64Value(value=nobody.pw_uid),
        run_as_group=v1.Int64Value(value=nobody.pw_gid),
    )
    config.command = ["ls"]
    config.working_dir = str(closed)
    container_id = await case.runtime.create_container(box.id, config, box.config)
    words = f'working directory "{closed}": Permission denied'
    with pytest.raises(RuntimeCallError, match=words):
        await case.runtime.start_container(container_id)
    assert words in (await case.wait_exited(container_id)).message


async def test_a_log_that_cannot_be_opened_keeps_a_container_from_starting(
    case: ProcessCase, box: Box
) -> None:
    config = case.container_config(exits(0))
    config.log_path = "no/such/directory/0.log"
    container_id = await case.runtime.create_container(box.id, config, box.config)
    with pytest.raises(RuntimeCallError, match="failed to open log file"):
        await case.runtime.start_container(container_id)


async def test_an_unwritable_work_directory_is_removed_all_the_same(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(exits(0, "mkdir -p a/b; touch a/b/c; chmod 0 a/b a"))
    await case.wait_exited(container_id)
    await case.runtime.remove_container(container_id)
    assert [entry for entry in (case.logs / "root").rglob("*") if entry.name == "work"] == []


async def test_signals_are_as_a_program_expects_them(case: ProcessCase, box: Box) -> None:
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l"
    blocked, ignored, descriptors = await box.log_of(await box.start(exits(0, script)))
    assert blocked.endswith(b"\t0000000000000000")
    # The C library's posix_spawn ignores two signals of its own, 32 and 33, in what it starts.
    assert int(ignored.rpartition(b"\t")[2], 16) & ~(0b11 << 31) == 0
    assert descriptors == b"stdout F 4"  # and the one that ls reads the directory by


async def test_limits_of_the_process_are_its_pods(case: ProcessCase) -> None:
    config = case.sandbox_config()
    config.annotations["process.kubelet-trio.io/rlimits"] = "nofile=100:200,core=0"
    sandbox_id = await case.runtime.run_pod_sandbox(config)
    box = Box(case, sandbox_id, config)
    container_id = await box.start(exits(0, "ulimit -Sn; ulimit -Hn; ulimit -c"))
    assert await box.log_of(container_id) == [b"stdout F 100", b"stdout F 200", b"stdout F 0"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 200


async def test_the_kernel_is_told_whom_to_kill_first(case: ProcessCase, box: Box) -> None:
    config = case.container_config(exits(0, "cat /proc/self/oom_score_adj"))
    assert config.linux is not None
    config.linux.resources = v1.LinuxContainerResources(oom_score_adj=900)
    container_id = await case.runtime.create_container(box.id, config, box.config)
    await case.runtime.start_container(container_id)
    assert await box.log_of(container_id) == [b"stdout F 900"]


async def test_what_is_not_applied_is_said_once(case: ProcessCase, box: Box) -> None:
    with structlog.testing.capture_logs() as logs:
        for name in ("one", "two"):
            config = asking(case, readonly_rootfs=True)
            config.metadata = v1.ContainerMetadata(name=name)
            await case.runtime.create_container(box.id, config, box.config)
    said = [entry["what"] for entry in logs if entry["event"] == "process.not_applied"]
    assert said == ["a read-only root filesystem"]


async def test_stats_count_every_process(case: ProcessCase, box: Box) -> None:
    busy = "import time\nwhile True: sum(range(1000)); time.sleep(0)"
    container_id = await box.start(
        exits(0), command=["sh", "-c", 'python3 -c "$0" & python3 -c "$0"; true', busy]
    )
    with trio.fail_after(20):
        while True:
            now = await case.runtime.container_stats(container_id)
            if _cpu(now) >= 200_000_000:
                break
            await trio.sleep(0.02)
    assert now.memory is not None
    assert now.memory.rss_bytes is not None
    assert now.memory.rss_bytes.value > 8_000_000
    assert now.attributes is not None
    assert now.attributes.id == container_id
    (later,) = await case.runtime.list_container_stats(box.uid)
    assert _cpu(later) >= _cpu(now)
    await case.runtime.stop_container(container_id, 0)
    assert await case.runtime.list_container_stats() == []


def _cpu(stats: v1.ContainerStats) -> int:
    """Return the CPU time used, in nanoseconds."""
    assert stats.cpu is not None
    assert stats.cpu.usage_core_nano_seconds is not None
    return stats.cpu.usage_core_nano_seconds.value


# Cgroups


@pytest.fixture
def cgroup_parent(as_root: None) -> Iterator[str]:
    parent = f"/kt-process-test-{os.getpid()}"
    paths = [path.parent for path in cgroup_paths(parent, "x")]
    if not paths or not os.access(paths[0].parent, os.W_OK):
        pytest.skip("no writable cgroups here")
    yield parent
    for path in paths:
        if path.exists():
            path.rmdir()


async def test_a_container_is_limited_by_its_cgroup(case: ProcessCase, cgroup_parent: str) -> None:
    config = case.sandbox_config()
    assert config.linux is not None
    config.linux.cgroup_parent = cgroup_parent
    box = Box(case, await case.runtime.run_pod_sandbox(config), config)
    wanted = case.container_config(exits(0, "cat /proc/self/cgroup; tail /dev/zero"))
    assert wanted.linux is not None
    wanted.linux.resources = v1.LinuxContainerResources(
        memory_limit_in_bytes=32 << 20, cpu_shares=512, cpu_quota=50_000, cpu_period=100_000
    )
    container_id = await case.runtime.create_container(box.id, wanted, config)
    paths = cgroup_paths(cgroup_parent, container_id)
    assert all(path.is_dir() for path in paths)
    await case.runtime.start_container(container_id)
    status = await case.wait_exited(container_id)
    log = b"\n".join(await box.log_of(container_id))
    assert f"{cgroup_parent}/{container_id}".encode() in log
    # The limit kills tail; the shell goes on and says so.
    assert status.exit_code in (0, 137)
    await case.runtime.remove_container(container_id)
    assert not any(path.exists() for path in paths)


async def test_a_main_process_killed_for_its_memory_says_so(
    case: ProcessCase, cgroup_parent: str
) -> None:
    config = case.sandbox_config()
    assert config.linux is not None
    config.linux.cgroup_parent = cgroup_parent
    box = Box(case, await case.runtime.run_pod_sandbox(config), config)
    wanted = case.container_config(exits(0), command=["tail", "/dev/zero"])
    assert wanted.linux is not None
    wanted.linux.resources = v1.LinuxContainerResources(memory_limit_in_bytes=32 << 20)
    container_id = await case.runtime.create_container(box.id, wanted, config)
    await case.runtime.start_container(container_id)
    status = await case.wait_exited(container_id)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


async def test_a_running_container_is_resized_in_its_cgroup(
    case: ProcessCase, cgroup_parent: str
) -> None:
    config = case.sandbox_config()
    assert config.linux is not None
    config.linux.cgroup_parent = cgroup_parent
    box = Box(case, await case.runtime.run_pod_sandbox(config), config)
    limit = v1.LinuxContainerResources(memory_limit_in_bytes=32 << 20, cpu_shares=512)
    wanted = case.container_config(FOREVER, resources=limit)
    container_id = await case.runtime.create_container(box.id, wanted, config)
    await case.runtime.start_container(container_id)

    def limit_now() -> str:
        names = ("memory.max", "memory.limit_in_bytes")
        files = [
            path / name for path in cgroup_paths(cgroup_parent, container_id) for name in names
        ]
        return next(file for file in files if file.exists()).read_text().strip()

    for size in (64 << 20, 16 << 20):
        change = v1.LinuxContainerResources(memory_limit_in_bytes=size)
        await case.runtime.update_container_resources(container_id, change)
        assert limit_now() == str(size)
    await case.runtime.update_container_resources(
        container_id, v1.LinuxContainerResources(memory_limit_in_bytes=-1)
    )
    assert limit_now() in ("max", str(2**63 - 4096))
    await case.runtime.remove_container(container_id)
