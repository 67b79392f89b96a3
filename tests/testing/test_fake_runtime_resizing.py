"""Changes of resources in the fake runtime: the rules of containerd and runc."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import (
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.testing import FakeRuntime, FaultKind
from kubelet_trio.testing.fixtures import container_config, sandbox_config
from kubelet_trio.testing.objects import FakeContainer, FakeUsage
from kubelet_trio.testing.resizing import BelowUsage

Resources = v1.LinuxContainerResources
MI = 1 << 20
SANDBOX = sandbox_config("web")
CREATED_WITH = Resources(
    cpu_shares=512,
    cpu_quota=50_000,
    cpu_period=100_000,
    memory_limit_in_bytes=64 * MI,
    oom_score_adj=900,
    unified={"memory.oom.group": "1"},
)


async def created(runtime: FakeRuntime) -> ContainerId:
    runtime.images.present.add("web")
    sandbox = await runtime.run_pod_sandbox(SANDBOX)
    config = container_config(SANDBOX, "c", "web")
    config.linux = v1.LinuxContainerConfig(resources=CREATED_WITH)
    return await runtime.create_container(sandbox, config, SANDBOX)


async def started(runtime: FakeRuntime) -> ContainerId:
    container = await created(runtime)
    await runtime.start_container(container)
    return container


async def reported(runtime: FakeRuntime, container: ContainerId) -> Resources | None:
    status, _ = await runtime.container_status(container)
    return status.resources.linux if status.resources is not None else None


async def test_the_status_has_what_is_configured_now(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    before = await reported(runtime, container)
    assert before is not None
    # Without a swap limit the memory limit is one.
    assert (before.memory_limit_in_bytes, before.memory_swap_limit_in_bytes) == (64 * MI,) * 2
    assert (before.cpu_shares, before.oom_score_adj) == (512, 900)
    await runtime.update_container_resources(container, Resources(cpu_shares=1024))
    after = await reported(runtime, container)
    assert after is not None
    assert after.cpu_shares == 1024
    assert runtime.containers[container].resources == after


async def test_a_runtime_may_not_report_resources(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.reports_resources = False
    container = await started(runtime)
    assert await reported(runtime, container) is None
    await runtime.update_container_resources(container, Resources(cpu_shares=7))
    assert runtime.containers[container].resources.cpu_shares == 7


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        (Resources(), {}),
        (Resources(oom_score_adj=-900), {}),
        (Resources(cpu_quota=-1), {"cpu_quota": -1}),
        (
            Resources(memory_limit_in_bytes=MI),
            {"memory_limit_in_bytes": MI, "memory_swap_limit_in_bytes": MI},
        ),
        (
            Resources(memory_limit_in_bytes=MI, memory_swap_limit_in_bytes=2 * MI),
            {"memory_limit_in_bytes": MI, "memory_swap_limit_in_bytes": 2 * MI},
        ),
        (
            Resources(memory_limit_in_bytes=-1),
            {"memory_limit_in_bytes": -1, "memory_swap_limit_in_bytes": -1},
        ),
        (
            Resources(unified={"memory.high": "max"}),
            {"unified": {"memory.oom.group": "1", "memory.high": "max"}},
        ),
    ],
)
async def test_zero_leaves_a_setting_as_it_is(
    asked: Resources, changed: dict[str, object], autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    before = runtime.containers[container].resources
    await runtime.update_container_resources(container, asked)
    after = runtime.containers[container].resources
    expected = Resources.parse(bytes(before))
    for name, value in changed.items():
        setattr(expected, name, value)
    assert after == expected


async def test_a_container_is_updated_before_its_start(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.usage = lambda _container: FakeUsage(memory=100 * MI)
    container = await created(runtime)
    await runtime.update_container_resources(container, Resources(memory_limit_in_bytes=MI))
    await runtime.start_container(container)
    now = await reported(runtime, container)
    assert now is not None
    assert now.memory_limit_in_bytes == MI


@pytest.mark.parametrize(("below_usage", "alive"), [("reclaimed", True), ("oom-killed", False)])
async def test_version_2_takes_a_limit_below_the_usage(
    below_usage: BelowUsage, alive: bool, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    runtime.below_usage = below_usage
    runtime.usage = lambda _container: FakeUsage(memory=2 * MI)
    container = await started(runtime)
    await runtime.update_container_resources(container, Resources(memory_limit_in_bytes=MI))
    assert runtime.containers[container].resources.memory_limit_in_bytes == MI
    assert runtime.containers[container].alive is alive
    if not alive:
        status, _ = await runtime.container_status(container)
        assert (status.reason, status.exit_code) == ("OOMKilled", 137)


async def test_version_1_refuses_a_limit_below_the_usage(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.usage = lambda _container: FakeUsage(memory=2 * MI)
    container = await started(runtime)
    before = runtime.containers[container].resources
    with pytest.raises(RuntimeCallError, match=r"unable to set memory limit to 1048576 \(current"):
        await runtime.update_container_resources(
            container, Resources(cpu_shares=2, memory_limit_in_bytes=MI)
        )
    assert runtime.containers[container].resources == before
    await runtime.update_container_resources(container, Resources(memory_limit_in_bytes=2 * MI))


async def test_swap_is_never_less_than_memory(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    asked = Resources(memory_limit_in_bytes=2 * MI, memory_swap_limit_in_bytes=MI)
    with pytest.raises(RuntimeCallError, match=r"memory\+swap limit should be >= memory limit"):
        await runtime.update_container_resources(container, asked)


async def test_an_exited_container_is_updated_on_paper_or_refused(
    autojump_clock: MockClock,
) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    runtime.kill(container)
    await runtime.update_container_resources(container, Resources(cpu_shares=7))
    assert runtime.containers[container].resources.cpu_shares == 7
    runtime.resizes_exited = False
    with pytest.raises(RuntimeCallError, match="is not running or created state"):
        await runtime.update_container_resources(container, Resources(cpu_shares=8))
    assert runtime.containers[container].resources.cpu_shares == 7


async def test_what_does_not_exist_is_not_updated(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.update_container_resources(ContainerId("none"), Resources())
    with pytest.raises(RuntimeObjectNotFoundError):
        await runtime.update_pod_sandbox_resources(SandboxId("none"), Resources(), Resources())


async def test_a_sandbox_knows_its_pods_resources(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    await created(runtime)
    (sandbox,) = runtime.sandboxes.values()
    assert sandbox.resources == Resources()
    overhead, resources = Resources(cpu_shares=2), Resources(cpu_shares=3)
    assert await runtime.update_pod_sandbox_resources(sandbox.id, overhead, resources)
    assert (sandbox.overhead, sandbox.resources) == (overhead, resources)


async def test_a_runtime_may_lack_the_calls(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    runtime.resizes_containers = runtime.resizes_sandboxes = False
    with pytest.raises(UnsupportedCallError, match="fake runtime does not implement"):
        await runtime.update_container_resources(container, Resources(cpu_shares=7))
    (sandbox,) = runtime.sandboxes.values()
    assert not await runtime.update_pod_sandbox_resources(
        sandbox.id, Resources(), Resources(cpu_shares=7)
    )
    assert (runtime.containers[container].resources.cpu_shares, sandbox.resources) == (
        512,
        Resources(),
    )


@pytest.mark.parametrize(
    ("kind", "error", "shares"),
    [
        (FaultKind.ERROR, RuntimeCallError, 512),
        (FaultKind.HANG, RuntimeTimeoutError, 512),
        (FaultKind.LOST_REPLY, RuntimeUnavailableError, 7),
    ],
)
async def test_an_update_fails_like_any_call(
    kind: FaultKind, error: type[RuntimeCallError], shares: int, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    runtime.faults.add(kind, "UpdateContainerResources", "c")
    runtime.faults.add(kind, "UpdatePodSandboxResources", "web")
    with pytest.raises(error):
        await runtime.update_container_resources(container, Resources(cpu_shares=7))
    assert runtime.containers[container].resources.cpu_shares == shares
    (sandbox,) = runtime.sandboxes.values()
    with pytest.raises(error):
        await runtime.update_pod_sandbox_resources(sandbox.id, Resources(), Resources(cpu_shares=7))
    assert sandbox.resources.cpu_shares == (7 if shares == 7 else 0)


async def test_a_test_can_check_and_refuse_what_is_about_to_apply(
    autojump_clock: MockClock,
) -> None:
    runtime = FakeRuntime()
    seen: list[tuple[str, int, int]] = []

    def check(container: FakeContainer, resources: Resources) -> None:
        seen.append((container.name, container.resources.cpu_quota, resources.cpu_quota))
        if resources.cpu_quota > 80_000:  # as with cgroup v1 above the pod's quota
            raise RuntimeCallError("UpdateContainerResources", "invalid argument")

    container = await created(runtime)
    runtime.on_resize = check
    await runtime.update_container_resources(container, Resources(cpu_quota=60_000))
    assert not seen
    await runtime.start_container(container)
    await runtime.update_container_resources(container, Resources(cpu_quota=70_000))
    with pytest.raises(RuntimeCallError, match="invalid argument"):
        await runtime.update_container_resources(container, Resources(cpu_quota=90_000))
    assert seen == [("c", 60_000, 70_000), ("c", 70_000, 90_000)]
    assert runtime.containers[container].resources.cpu_quota == 70_000


async def test_an_update_that_is_cut_breaks_the_agents_contract(
    autojump_clock: MockClock,
) -> None:
    runtime = FakeRuntime()
    container = await started(runtime)
    runtime.latency = {"UpdateContainerResources": 1.0}
    with trio.move_on_after(0.2):
        await runtime.update_container_resources(container, Resources(cpu_shares=7))
    assert "UpdateContainerResources" in runtime.violations[0]
    assert runtime.containers[container].resources.cpu_shares == 512
