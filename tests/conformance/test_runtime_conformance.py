"""What the `Runtime` protocol promises, asked of every runtime in the same words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from kubelet_trio.cri import (
    Runtime,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    v1,
)
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from tests.conformance.cases import (
    EXITED,
    FOREVER,
    STUBBORN,
    Case,
    Program,
    eventually,
    exits,
    wait_exited,
)

CREATED = v1.ContainerState.CONTAINER_CREATED
RUNNING = v1.ContainerState.CONTAINER_RUNNING
READY = v1.PodSandboxState.SANDBOX_READY
NOT_READY = v1.PodSandboxState.SANDBOX_NOTREADY

NO_SANDBOX, NO_CONTAINER = SandboxId("0" * 64), ContainerId("0" * 64)

# Who it is


async def test_it_says_who_it_is_and_that_it_is_ready(case: Case) -> None:
    version = await case.runtime.version()
    assert version.runtime_name
    assert version.runtime_version
    assert version.runtime_api_version == "v1"
    status = (await case.runtime.status()).status
    assert status is not None
    conditions = {c.type: c.status for c in status.conditions}
    assert conditions["RuntimeReady"]
    assert conditions["NetworkReady"]


# Sandboxes


async def test_a_sandbox_is_told_as_it_was_asked_for(case: Case) -> None:
    box = await case.sandbox()
    status = await case.runtime.pod_sandbox_status(box.id)
    entry = (await case.runtime.list_pod_sandboxes()).entries[box.id]
    for told in (status, entry):
        assert told.metadata == box.config.metadata
        assert told.state == READY
        assert told.labels == box.config.labels
        assert told.annotations == box.config.annotations
        assert told.created_at > 1_000_000_000_000_000_000
    assert status.created_at == entry.created_at
    assert status.linux is not None
    assert status.linux.namespaces is not None
    assert status.linux.namespaces.options is not None
    assert status.linux.namespaces.options.network == v1.NamespaceMode.NODE


async def test_a_stopped_sandbox_is_not_ready_and_may_be_stopped_again(case: Case) -> None:
    box = await case.sandbox()
    await case.runtime.stop_pod_sandbox(box.id)
    await case.runtime.stop_pod_sandbox(box.id)
    assert (await case.runtime.pod_sandbox_status(box.id)).state == NOT_READY
    assert (await case.runtime.list_pod_sandboxes()).entries[box.id].state == NOT_READY


async def test_a_removed_sandbox_is_gone_and_may_be_removed_again(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.create(FOREVER)
    await case.runtime.stop_pod_sandbox(box.id)
    await case.runtime.remove_pod_sandbox(box.id)
    await case.runtime.remove_pod_sandbox(box.id)
    await case.runtime.stop_pod_sandbox(box.id)
    with pytest.raises(RuntimeObjectNotFoundError):
        await case.runtime.pod_sandbox_status(box.id)
    with pytest.raises(RuntimeObjectNotFoundError):
        await case.runtime.container_status(container_id)
    assert box.id not in (await case.runtime.list_pod_sandboxes()).entries


async def test_a_sandbox_name_is_free_once_its_owner_is_removed(case: Case) -> None:
    box = await case.sandbox()
    with pytest.raises(RuntimeCallError):
        await case.runtime.run_pod_sandbox(box.config)
    await case.runtime.run_pod_sandbox(case.sandbox_config(box.uid, attempt=1))
    await case.runtime.remove_pod_sandbox(box.id)
    assert await case.runtime.run_pod_sandbox(box.config) != box.id


async def test_stopping_a_sandbox_ends_its_containers(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(STUBBORN)
    await case.runtime.stop_pod_sandbox(box.id)
    assert (await case.wait_exited(container_id)).exit_code == 137


async def test_a_stopped_sandbox_takes_no_container(case: Case) -> None:
    box = await case.sandbox()
    created = await box.create(FOREVER)
    await case.runtime.stop_pod_sandbox(box.id)
    with pytest.raises(RuntimeCallError):
        await box.create(FOREVER, "another")
    with pytest.raises(RuntimeCallError):
        await case.runtime.start_container(created)


# What is not there


async def test_what_does_not_exist_is_not_found(case: Case) -> None:
    runtime = case.runtime
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.pod_sandbox_status(NO_SANDBOX)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.container_status(NO_CONTAINER)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.start_container(NO_CONTAINER)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.exec_sync(NO_CONTAINER, ["true"], 1)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.create_container(
            NO_SANDBOX, case.container_config(FOREVER), case.sandbox_config()
        )
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.update_container_resources(NO_CONTAINER, v1.LinuxContainerResources())


async def test_what_does_not_exist_is_stopped_and_removed_already(case: Case) -> None:
    await case.runtime.stop_pod_sandbox(NO_SANDBOX)
    await case.runtime.remove_pod_sandbox(NO_SANDBOX)
    await case.runtime.stop_container(NO_CONTAINER, 1)
    await case.runtime.remove_container(NO_CONTAINER)


# The life of a container


async def test_a_container_is_created_then_runs_then_has_exited(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.create(FOREVER)
    created, pid = await case.runtime.container_status(container_id, verbose=True)
    assert (created.state, created.started_at, created.finished_at) == (CREATED, 0, 0)
    assert pid == 0
    await case.runtime.start_container(container_id)
    running, pid = await case.runtime.container_status(container_id, verbose=True)
    assert (running.state, running.finished_at) == (RUNNING, 0)
    assert pid > 0
    await case.runtime.stop_container(container_id, 5)
    exited = await case.wait_exited(container_id)
    assert created.created_at == exited.created_at
    assert exited.created_at <= exited.started_at <= exited.finished_at
    assert exited.started_at == running.started_at


async def test_a_container_is_told_as_it_was_asked_for(case: Case) -> None:
    box = await case.sandbox()
    config = case.container_config(FOREVER, attempt=3)
    container_id = await case.runtime.create_container(box.id, config, box.config)
    status, _ = await case.runtime.container_status(container_id)
    entry = (await case.runtime.list_containers()).entries[container_id]
    for told in (status, entry):
        assert told.id == container_id
        assert told.metadata == config.metadata
        assert told.labels == config.labels
        assert told.annotations == config.annotations
        assert told.image is not None
        assert told.image.image
        assert told.image_ref
    assert entry.pod_sandbox_id == box.id
    assert status.log_path == f"{case.logs}/{config.log_path}"


async def test_a_container_starts_once(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    with pytest.raises(RuntimeCallError):
        await case.runtime.start_container(container_id)
    await case.runtime.stop_container(container_id, 0)
    await case.wait_exited(container_id)
    with pytest.raises(RuntimeCallError):
        await case.runtime.start_container(container_id)


async def test_a_container_name_is_unique_in_its_sandbox(case: Case) -> None:
    box = await case.sandbox()
    first = await box.create(FOREVER)
    with pytest.raises(RuntimeCallError):
        await box.create(FOREVER)
    await box.create(FOREVER, attempt=1)
    await case.runtime.remove_container(first)
    await box.create(FOREVER)


@pytest.mark.parametrize(("code", "reason"), [(0, "Completed"), (1, "Error"), (77, "Error")])
async def test_an_exit_code_is_told_with_its_reason(case: Case, code: int, reason: str) -> None:
    box = await case.sandbox()
    status = await case.wait_exited(await box.start(exits(code)))
    assert (status.exit_code, status.reason) == (code, reason)


async def test_a_death_by_signal_is_told_as_128_and_the_signal(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    await case.kill(container_id)
    status = await case.wait_exited(container_id)
    assert (status.exit_code, status.reason) == (137, "Error")


async def test_what_cannot_be_started_has_exited_with_an_error(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.create(exits(0), command=["/no/such/program"])
    with pytest.raises(RuntimeCallError, match="no such file"):
        await case.runtime.start_container(container_id)
    status = await case.wait_exited(container_id)
    assert (status.exit_code, status.reason, status.started_at) == (128, "StartError", 0)
    assert "no such file" in status.message
    assert status.finished_at > 0


# Stopping


async def test_a_stop_lets_a_container_end_by_itself(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    await wait_trapped(case, container_id)
    with trio.fail_after(10):
        await case.runtime.stop_container(container_id, 60)
    assert (await case.wait_exited(container_id)).exit_code == 143


async def test_a_stop_kills_when_its_grace_is_over(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(STUBBORN)
    await wait_trapped(case, container_id)
    started = trio.current_time()
    await case.runtime.stop_container(container_id, 1)
    assert 1 <= trio.current_time() - started < 10
    assert (await case.wait_exited(container_id)).exit_code == 137


async def test_a_stop_without_grace_kills(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(STUBBORN)
    await case.runtime.stop_container(container_id, 0)
    assert (await case.wait_exited(container_id)).exit_code == 137


async def test_a_stop_of_what_has_exited_changes_nothing(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(exits(3))
    before = await case.wait_exited(container_id)
    await case.runtime.stop_container(container_id, 1)
    assert await case.wait_exited(container_id) == before


async def test_a_cancelled_stop_leaves_the_rest_of_the_grace(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(STUBBORN)
    await wait_trapped(case, container_id)
    with trio.move_on_after(0.1):
        await case.runtime.stop_container(container_id, 60)
    status, _ = await case.runtime.container_status(container_id)
    assert status.state == RUNNING


async def test_a_removed_container_is_gone_running_or_not(case: Case) -> None:
    box = await case.sandbox()
    ended = await box.start(exits(0), "ended")
    await case.wait_exited(ended)
    running = await box.start(STUBBORN, "running")
    _, pid = await case.runtime.container_status(running, verbose=True)
    for container_id in (ended, running):
        await case.runtime.remove_container(container_id)
        await case.runtime.remove_container(container_id)
        with pytest.raises(RuntimeObjectNotFoundError):
            await case.runtime.container_status(container_id)
    assert not {ended, running} & (await case.runtime.list_containers()).entries.keys()
    if "processes" not in case.lacks:
        assert not Path(f"/proc/{pid}").exists()


# Lists


async def test_lists_can_be_of_one_pod_and_hold_all_states(case: Case) -> None:
    one, other = await case.sandbox(), await case.sandbox()
    ended = await one.start(exits(0), "ended")
    await case.wait_exited(ended)
    created, elsewhere = await one.create(FOREVER, "created"), await other.create(FOREVER)
    await case.runtime.stop_pod_sandbox(one.id)
    listed = await case.runtime.list_pod_sandboxes()
    assert {one.id, other.id} <= listed.entries.keys()
    everything = await case.runtime.list_containers()
    assert {ended, created, elsewhere} <= everything.entries.keys()
    assert (await case.runtime.list_pod_sandboxes(uid=one.uid)).entries.keys() == {one.id}
    assert (await case.runtime.list_pod_sandboxes(uid=PodUid("nobody"))).entries == {}
    assert (await case.runtime.list_containers(uid=PodUid("nobody"))).entries == {}


async def test_list_entries_stay_the_same_objects_until_they_change(case: Case) -> None:
    one, other = await case.sandbox(), await case.sandbox()
    quiet, busy = await one.create(FOREVER, "quiet"), await one.create(exits(0), "busy")
    boxes = await case.runtime.list_pod_sandboxes()
    containers = await case.runtime.list_containers()
    await case.runtime.start_container(busy)
    await case.wait_exited(busy)
    await case.runtime.stop_pod_sandbox(other.id)
    boxes_now = await case.runtime.list_pod_sandboxes(boxes)
    containers_now = await case.runtime.list_containers(containers)
    assert boxes_now.entries[one.id] is boxes.entries[one.id]
    assert boxes_now.entries[other.id] is not boxes.entries[other.id]
    assert boxes.entries[other.id].state == READY
    assert containers_now.entries[quiet] is containers.entries[quiet]
    assert containers_now.entries[busy] is not containers.entries[busy]
    assert (containers.entries[busy].state, containers_now.entries[busy].state) == (CREATED, EXITED)


# What a container is given


@pytest.mark.needs("processes")
async def test_a_container_has_its_words_variables_and_directory(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(
        exits(0),
        command=["sh", "-c", 'echo "$0 $1 $GREETING"; pwd'],
        args=["zero", "two words"],
        envs=[v1.KeyValue(key="GREETING", value=b"hello \xc3\xa4")],
        working_dir="/tmp",
    )
    assert await box.log_of(container_id) == [
        b"stdout F zero two words hello \xc3\xa4",
        b"stdout F /tmp",
    ]


@pytest.mark.needs("processes")
async def test_both_streams_are_logged_line_by_line(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(exits(0, "echo one; echo; echo two >&2; printf end"))
    log = await box.log_of(container_id)
    assert [line for line in log if line.startswith(b"stdout")] == [
        b"stdout F one",
        b"stdout F ",
        b"stdout P end",
    ]
    assert [line for line in log if line.startswith(b"stderr")] == [b"stderr F two"]


@pytest.mark.needs("processes")
async def test_a_long_line_is_logged_in_parts(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(exits(0, "printf '%040000d\\n' 0; echo short"))
    *parts, last = await box.log_of(container_id)
    assert last == b"stdout F short"
    assert [part.split(b" ")[1] for part in parts] == [b"P"] * (len(parts) - 1) + [b"F"]
    assert b"".join(part.split(b" ")[2] for part in parts) == b"0" * 40000
    assert max(map(len, parts)) < 20000


@pytest.mark.needs("processes")
async def test_a_container_that_reads_a_closed_stdin_sees_its_end(case: Case) -> None:
    box = await case.sandbox()
    assert await box.log_of(await box.start(exits(0, "cat; echo ended"))) == [b"stdout F ended"]


# Commands


async def test_a_command_is_run_and_told_in_full(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    result = await case.runtime.exec_sync(
        container_id, ["sh", "-c", "echo out; echo err >&2; exit 7"], 10
    )
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 7)


@pytest.mark.needs("processes")
async def test_a_command_has_the_containers_environment(case: Case) -> None:
    box = await case.sandbox()
    variable = v1.KeyValue(key="GREETING", value=b"hello")
    container_id = await box.start(FOREVER, envs=[variable], working_dir="/tmp")
    result = await case.runtime.exec_sync(container_id, ["sh", "-c", "echo $GREETING; pwd"], 10)
    assert result.stdout == b"hello\n/tmp\n"


async def test_a_command_that_takes_too_long_leaves_nothing(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    seconds = 1_000_000 + os.getpid()
    with pytest.raises(RuntimeTimeoutError):
        await case.runtime.exec_sync(container_id, ["sh", "-c", f"sleep {seconds}"], 1)
    if "processes" not in case.lacks:
        await eventually(lambda: not running_with(f"sleep\0{seconds}\0"))
    status, _ = await case.runtime.container_status(container_id)
    assert status.state == RUNNING


@pytest.mark.needs("processes")
async def test_a_command_that_does_not_exist_fails(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    with pytest.raises(RuntimeCallError, match="no such file"):
        await case.runtime.exec_sync(container_id, ["/no/such/program"], 10)


async def test_no_command_runs_where_the_container_does_not(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(exits(0))
    await case.wait_exited(container_id)
    with pytest.raises(RuntimeCallError):
        await case.runtime.exec_sync(container_id, ["true"], 10)


@pytest.mark.needs("processes")
async def test_a_command_dies_with_its_container(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    seconds = str(2_000_000 + os.getpid())

    async with trio.open_nursery() as nursery:

        async def run_command() -> None:
            with trio.fail_after(30):
                result = await case.runtime.exec_sync(container_id, ["sleep", seconds], 0)
            assert result.exit_code == 137

        nursery.start_soon(run_command)
        await eventually(lambda: running_with(f"sleep\0{seconds}\0"))
        await case.runtime.stop_container(container_id, 0)


# Images


async def test_a_present_image_is_told(case: Case) -> None:
    image = await case.runtime.image_status(v1.ImageSpec(image=case.image))
    assert image is not None
    assert image.id
    assert image.size > 0
    # What ContainerConfig will name is the id.
    assert await case.runtime.image_status(v1.ImageSpec(image=image.id)) is not None


@pytest.mark.needs("pulls")
async def test_a_pulled_image_is_present(case: Case) -> None:
    image = v1.ImageSpec(image="docker.io/library/anything:1")
    ref = await case.runtime.pull_image(image, None, case.sandbox_config())
    present = await case.runtime.image_status(v1.ImageSpec(image=ref))
    assert present is not None
    assert present.id == ref


async def test_listed_images_have_what_garbage_collection_needs(case: Case) -> None:
    for image in await case.runtime.list_images():
        assert image.id
        assert image.size > 0
    await case.runtime.remove_image(v1.ImageSpec(image="sha256:" + "0" * 64))  # gone already


async def test_running_containers_tell_what_they_use(case: Case) -> None:
    box = await case.sandbox()
    container_id = await box.start(FOREVER)
    stats = await case.runtime.list_container_stats()
    assert container_id in [s.attributes.id for s in stats if s.attributes is not None]


# Agents come and go


# Resources


async def resources_of(runtime: Runtime, container_id: ContainerId) -> tuple[int, int, int, int]:
    """Return CPU shares, quota and period, and the memory limit, as the status has them."""
    status, _ = await runtime.container_status(container_id)
    assert status.resources is not None
    linux = status.resources.linux
    assert linux is not None
    return linux.cpu_shares, linux.cpu_quota, linux.cpu_period, linux.memory_limit_in_bytes


async def test_a_container_has_the_resources_that_it_was_given_last(case: Case) -> None:
    box = await case.sandbox()
    resources = v1.LinuxContainerResources(
        cpu_shares=512, cpu_quota=50_000, cpu_period=100_000, memory_limit_in_bytes=64 << 20
    )
    container_id = await box.create(FOREVER, resources=resources)
    runtime = case.runtime
    assert await resources_of(runtime, container_id) == (512, 50_000, 100_000, 64 << 20)
    change = v1.LinuxContainerResources(memory_limit_in_bytes=128 << 20)
    await runtime.update_container_resources(container_id, change)
    assert await resources_of(runtime, container_id) == (512, 50_000, 100_000, 128 << 20)
    await runtime.start_container(container_id)
    assert await resources_of(runtime, container_id) == (512, 50_000, 100_000, 128 << 20)
    change = v1.LinuxContainerResources(
        cpu_shares=102, cpu_quota=10_000, cpu_period=100_000, memory_limit_in_bytes=32 << 20
    )
    for _ in range(2):
        await runtime.update_container_resources(container_id, change)
        assert await resources_of(runtime, container_id) == (102, 10_000, 100_000, 32 << 20)
    async with case.open_client() as later:
        assert await resources_of(later, container_id) == (102, 10_000, 100_000, 32 << 20)


async def test_a_sandbox_takes_its_pods_resources_or_lacks_the_call(case: Case) -> None:
    box = await case.sandbox()
    none, some = v1.LinuxContainerResources(), v1.LinuxContainerResources(cpu_shares=512)
    is_supported = await case.runtime.update_pod_sandbox_resources(box.id, none, some)
    assert await case.runtime.update_pod_sandbox_resources(box.id, none, some) is is_supported
    if is_supported:
        with pytest.raises(RuntimeCallError):
            await case.runtime.update_pod_sandbox_resources(NO_SANDBOX, none, some)


async def test_a_new_client_finds_everything(case: Case) -> None:
    box = await case.sandbox()
    running, created = await box.start(FOREVER, "running"), await box.create(FOREVER, "created")
    ended = await box.start(exits(5), "ended")
    await case.wait_exited(ended)
    known = [(await case.runtime.container_status(c, verbose=True)) for c in (running, ended)]
    async with case.open_client() as new:
        assert (await new.pod_sandbox_status(box.id)).state == READY
        listed = await new.list_containers(uid=None)
        assert {running, created, ended} <= listed.entries.keys()
        assert listed.entries[running].state == RUNNING
        assert listed.entries[created].state == CREATED
        assert [(await new.container_status(c, verbose=True)) for c in (running, ended)] == known
        await new.stop_container(running, 0)
        assert (await new.container_status(running))[0].exit_code == 137
        await new.start_container(created)
        assert (await new.container_status(created))[0].state == RUNNING
        await new.remove_container(created)


@pytest.mark.needs("processes")
async def test_an_end_is_told_though_no_client_saw_it(case: Case, tmp_path: Path) -> None:
    box = await case.sandbox()
    program = Program(f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo bye; exit 9")
    mount = v1.Mount(container_path=str(tmp_path), host_path=str(tmp_path))
    container_id = await box.start(program, mounts=[mount])
    (tmp_path / "go").touch()
    async with case.open_client() as new:
        assert (await wait_exited(new, container_id)).exit_code == 9
    assert await box.log_of(container_id) == [b"stdout F bye"]


def running_with(words: str) -> list[int]:
    """Return the processes whose command line has these words, each followed by a NUL."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_text()
            except (OSError, ValueError):
                continue
            if line.endswith(words):
                found.append(int(entry.name))
    return found


async def wait_trapped(case: Case, container_id: ContainerId) -> None:
    """Wait until a container's shell has set its trap: then it starts its first child.

    That it handles the signal would say too little: the process may still be the runtime's `init`,
    which handles all signals until it executes the shell.
    """
    if "processes" in case.lacks:
        return
    _, pid = await case.runtime.container_status(container_id, verbose=True)
    await eventually(Path(f"/proc/{pid}/task/{pid}/children").read_text)
