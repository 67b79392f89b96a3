"""The rules of CRI that the fake runtime keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.containers import TERMINATION_MESSAGE_PATH
from kubelet_trio.cri import ImagePullError, RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.testing import Behaviour, FakeRuntime, behaviour_from_words
from kubelet_trio.testing.fixtures import (
    container_config,
    run_pod,
    sandbox_config,
    start_container,
)

EXITED = v1.ContainerState.CONTAINER_EXITED
RUNNING = v1.ContainerState.CONTAINER_RUNNING


async def test_a_container_needs_a_ready_sandbox(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    runtime.images.present.add("run")
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.create_container(SandboxId("none"), container_config(config), config)
    sandbox_id = await runtime.run_pod_sandbox(config)
    container_id = await runtime.create_container(sandbox_id, container_config(config), config)
    await runtime.stop_pod_sandbox(sandbox_id)
    with pytest.raises(RuntimeCallError):
        await runtime.start_container(container_id)
    with pytest.raises(RuntimeCallError):
        await runtime.create_container(sandbox_id, container_config(config, "more"), config)
    assert runtime.violations == []


async def test_a_container_needs_its_image(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id = await runtime.run_pod_sandbox(config)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.create_container(sandbox_id, container_config(config), config)
    image_id = await runtime.pull_image(v1.ImageSpec(image="run"), None, config)
    by_id = container_config(config)
    by_id.image = v1.ImageSpec(image=image_id, user_specified_image="run")
    container_id = await runtime.create_container(sandbox_id, by_id, config)
    status, _ = await runtime.container_status(container_id)
    assert (status.image or v1.ImageSpec()).image == "run"
    assert status.image_ref.endswith(image_id)


async def test_a_container_needs_the_images_that_it_mounts(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id = await runtime.run_pod_sandbox(config)
    await runtime.pull_image(v1.ImageSpec(image="run"), None, config)
    mounting = container_config(config)
    mount = v1.Mount(container_path="/v", readonly=True, image=v1.ImageSpec(image="data"))
    mounting.mounts = [mount]
    with pytest.raises(RuntimeObjectNotFoundError, match='failed to resolve image "data"'):
        await runtime.create_container(sandbox_id, mounting, config)
    data = await runtime.pull_image(v1.ImageSpec(image="data"), None, config)
    mount.image = v1.ImageSpec(image=data, user_specified_image="data")
    await runtime.create_container(sandbox_id, mounting, config)


async def test_names_are_unique(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id = await runtime.run_pod_sandbox(config)
    with pytest.raises(RuntimeCallError, match="reserved"):
        await runtime.run_pod_sandbox(config)
    await start_container(runtime, sandbox_id, config)
    with pytest.raises(RuntimeCallError, match="reserved"):
        await runtime.create_container(sandbox_id, container_config(config), config)
    await runtime.create_container(sandbox_id, container_config(config, attempt=1), config)


async def test_stops_and_removals_are_idempotent(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    sandbox_id, [container_id] = await run_pod(runtime)
    for _ in range(2):
        await runtime.stop_container(container_id, 5)
    for _ in range(2):
        await runtime.remove_container(container_id)
    for _ in range(2):
        await runtime.stop_pod_sandbox(sandbox_id)
    for _ in range(2):
        await runtime.remove_pod_sandbox(sandbox_id)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.container_status(container_id)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.pod_sandbox_status(sandbox_id)
    assert (runtime.containers, runtime.sandboxes, runtime.violations) == ({}, {}, [])


async def test_what_breaks_the_agents_contract_is_written_down(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id, [container_id] = await run_pod(runtime)
    with pytest.raises(RuntimeCallError):
        await runtime.start_container(container_id)
    await start_container(runtime, sandbox_id, config, attempt=1)
    await runtime.run_pod_sandbox(sandbox_config(attempt=1))
    await runtime.run_pod_sandbox(sandbox_config(uid="other"))
    await runtime.remove_container(container_id)
    await runtime.stop_pod_sandbox(sandbox_id)
    said = "\n".join(runtime.violations)
    for words in (
        "started twice",
        "started while container",
        "second sandbox",
        "still runs",
        "removed while it runs",
        "stopped while container",
    ):
        assert words in said
    assert not runtime.alive()


@pytest.mark.parametrize(
    ("image", "grace", "takes", "code"),
    [
        ("run", 30, 0.0, 143),
        ("slow-stop-4", 30, 4.0, 143),
        ("slow-stop-4", 2, 2.0, 137),
        ("stubborn", 30, 30.0, 137),
        ("run", 0, 0.0, 137),
        ("exit-7-after-3", 0, 0.0, 137),
    ],
)
async def test_a_stop_takes_the_time_of_the_process_within_its_grace(
    image: str, grace: int, takes: float, code: int, autojump_clock: object
) -> None:
    runtime = FakeRuntime(status_lag=0.3)
    _, [container_id] = await run_pod(runtime, images=(image,))
    start = trio.current_time()
    await runtime.stop_container(container_id, grace)
    assert trio.current_time() - start == takes
    status, _ = await runtime.container_status(container_id)
    assert (status.state, status.exit_code) == (EXITED, code)


async def test_a_cancelled_stop_has_sent_the_first_signal_only(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [stubborn, slow] = await run_pod(runtime, images=("stubborn", "slow-stop-4"))
    for container_id in (stubborn, slow):
        with trio.move_on_after(1):
            await runtime.stop_container(container_id, 30)
    await trio.sleep(60)
    assert [c.id for c in runtime.alive()] == [stubborn]


async def test_a_container_exits_when_its_image_says(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime, images=("exit-3-after-5",))
    await trio.sleep(4.9)
    status, pid = await runtime.container_status(container_id, verbose=True)
    assert (status.state, status.finished_at, pid > 0) == (RUNNING, 0, True)
    await trio.sleep(10)
    status, _ = await runtime.container_status(container_id)
    assert (status.state, status.exit_code, status.reason) == (EXITED, 3, "Error")
    assert status.finished_at - status.started_at == 5_000_000_000


async def test_the_status_tells_of_a_death_later_than_the_pidfd(autojump_clock: object) -> None:
    runtime = FakeRuntime(status_lag=0.06)
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-5",))
    with runtime.exit_waiter.open(runtime.containers[container_id].pid) as watch:
        await watch.wait_exited()
    assert trio.current_time() == 5
    status, _ = await runtime.container_status(container_id)
    assert status.state == RUNNING
    await trio.sleep(0.06)
    status, _ = await runtime.container_status(container_id)
    assert (status.state, status.reason) == (EXITED, "Completed")
    assert runtime.exit_waiter.open_watches == 0
    with pytest.raises(ProcessLookupError):
        runtime.exit_waiter.open(runtime.containers[container_id].pid)


async def test_listings_give_back_what_did_not_change(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [main, _] = await run_pod(runtime, images=("run", "run"))
    await run_pod(runtime, "other")
    first = await runtime.list_containers()
    runtime.kill(main)
    paid = runtime.decoded
    second = await runtime.list_containers(first)
    assert runtime.decoded == paid + 1
    same = [key for key, entry in second.entries.items() if entry is first.entries[key]]
    assert main not in same
    assert len(same) == 2
    of_one = await runtime.list_containers(uid=PodUid("other-uid"))
    assert len(of_one.entries) == 1


async def test_pulls_take_their_time_and_fail_by_name(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    runtime.images.pull_takes = 3
    async with trio.open_nursery() as pulls:
        for name in ("a", "b"):
            spec = v1.ImageSpec(image=name)
            pulls.start_soon(runtime.pull_image, spec, None, sandbox_config())
    assert (trio.current_time(), runtime.images.max_pulls_in_flight) == (3, 2)
    assert await runtime.image_status(v1.ImageSpec(image="a")) is not None
    with pytest.raises(ImagePullError):
        await runtime.pull_image(v1.ImageSpec(image="missing"), None, sandbox_config())
    assert await runtime.image_status(v1.ImageSpec(image="missing")) is None


async def test_a_container_leaves_its_log_and_its_message(
    autojump_clock: object, tmp_path: Path
) -> None:
    behaviour = Behaviour(exits_after=1, output="one\ntwo", termination_message="bye")
    runtime = FakeRuntime(behave=lambda _config: behaviour, write_logs=True)
    runtime.images.present.add("run")
    sandbox = sandbox_config()
    sandbox.log_directory = str(tmp_path)
    sandbox_id = await runtime.run_pod_sandbox(sandbox)
    config = container_config(sandbox)
    message = tmp_path / "message"
    config.annotations = {TERMINATION_MESSAGE_PATH: "/dev/termination-log"}
    config.mounts = [v1.Mount(container_path="/dev/termination-log", host_path=str(message))]
    container_id = await runtime.create_container(sandbox_id, config, sandbox)
    (tmp_path / "main").mkdir()
    await runtime.start_container(container_id)
    lines = (tmp_path / "main/0.log").read_text().splitlines()
    assert [line.split(" ", 3)[1:] for line in lines] == [
        ["stdout", "F", "one"],
        ["stdout", "F", "two"],
    ]
    await trio.sleep(1)
    assert not runtime.alive()
    assert message.read_text() == "bye"


async def test_a_container_that_cannot_start_is_exited_with_128(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id = await runtime.run_pod_sandbox(config)
    with pytest.raises(RuntimeCallError):
        await start_container(runtime, sandbox_id, config, image="no-start")
    [container] = runtime.instances("web")
    assert (container.state, container.exit_code, container.reason) == (EXITED, 128, "StartError")


async def test_a_sandbox_that_dies_leaves_its_containers(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    sandbox_id, [container_id] = await run_pod(runtime)
    status = await runtime.pod_sandbox_status(sandbox_id)
    assert status.network is not None
    assert status.network.ip
    runtime.kill_sandbox(sandbox_id)
    status = await runtime.pod_sandbox_status(sandbox_id)
    assert status.state == v1.PodSandboxState.SANDBOX_NOTREADY
    assert [c.id for c in runtime.alive()] == [container_id]


def test_words_choose_a_behaviour() -> None:
    assert behaviour_from_words("example.com/web:1.2") == Behaviour()
    assert behaviour_from_words("exit-4").exits_after == 0
    assert behaviour_from_words("x/exit-4-after-2.5:1") == Behaviour(2.5, 4)
    assert behaviour_from_words("stubborn").ignores_sigterm


@pytest.mark.parametrize(
    "word", ["exit-after-5", "exit-x", "exit-0-after-", "slow-stop-x", "no-start-5", "no-create-"]
)
def test_a_word_that_is_almost_one_is_refused_by_name(word: str) -> None:
    assert f"does not know '{word}'" in behaviour_from_words(f"x/{word}:1").create_error


@pytest.mark.parametrize("image", ["fast-exit-node", "x.no-start-up/web", "exit", "my-slow-stop-x"])
def test_a_word_in_the_middle_of_a_name_is_none(image: str) -> None:
    assert behaviour_from_words(image).create_error == ""


async def test_a_container_unknown_to_the_runtime_is_not_found(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime)
    runtime.forget(container_id)
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.container_status(ContainerId(container_id))
    assert not runtime.alive()


async def test_a_log_that_two_instances_share_is_noted(
    autojump_clock: object, tmp_path: Path
) -> None:
    runtime, sandbox = FakeRuntime(write_logs=True), sandbox_config()
    sandbox.log_directory = str(tmp_path)
    (tmp_path / "main").mkdir()
    sandbox_id = await runtime.run_pod_sandbox(sandbox)
    first = await start_container(runtime, sandbox_id, sandbox)
    await runtime.stop_container(first, 0)
    await runtime.remove_container(first)
    assert runtime.shared_logs == []
    await start_container(runtime, sandbox_id, sandbox)
    assert runtime.shared_logs == [str(tmp_path / "main/0.log")]
    assert runtime.starts == {("web-uid", "main"): 2}
