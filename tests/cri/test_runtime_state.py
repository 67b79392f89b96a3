from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import RuntimeHealth, RuntimeState, v1
from kubelet_trio.testing import FakeRuntime


def runtime_config(driver: v1.CgroupDriver) -> v1.RuntimeConfigResponse:
    return v1.RuntimeConfigResponse(linux=v1.LinuxRuntimeConfiguration(cgroup_driver=driver))


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("containerd", "v2.1.0", ""),
        ("containerd", "2.10.3", ""),
        ("containerd", "1.6.20~ds1", "it must be 2.1 or later"),
        ("containerd", "v2.0.5", "image volumes are not supported by containerd v2.0.5"),
        ("cri-o", "1.31.0", ""),
        ("cri-o", "1.30.2", "it must be 1.31 or later"),
        ("process", "0.1.0", "not supported by the runtime process"),
        ("other", "0.1", ""),
        ("containerd", "", ""),
    ],
)
def test_a_runtime_that_cannot_mount_images_is_known_by_its_version(
    name: str, version: str, reason: str
) -> None:
    told = RuntimeState(name=name, version=version).no_image_volumes
    assert told == "" if not reason else reason in told


@asynccontextmanager
async def asking(runtime: FakeRuntime) -> AsyncIterator[RuntimeHealth]:
    health = RuntimeHealth(runtime)
    async with trio.open_nursery() as nursery:
        await nursery.start(health.run)
        yield health
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("value", [2, 77])
async def test_a_cgroup_driver_that_nobody_knows_is_none(
    value: int, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    runtime.config = runtime_config(v1.CgroupDriver(value))
    async with asking(runtime) as health:
        await trio.sleep(100)
        assert health.state.value.is_ready
        assert health.state.value.cgroup_driver is None


@pytest.mark.parametrize(
    ("config", "has_config"),
    [
        (runtime_config(v1.CgroupDriver.SYSTEMD), True),
        (runtime_config(v1.CgroupDriver(77)), True),
        (v1.RuntimeConfigResponse(), True),  # as of a runtime without Linux
        (None, False),
    ],
)
async def test_whether_the_runtime_has_the_call_runtime_config_is_known(
    config: v1.RuntimeConfigResponse | None, has_config: bool, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    runtime.config = config
    async with asking(runtime) as health:
        assert health.state.value.has_config is has_config


async def test_who_the_runtime_is_is_asked_again_every_minute(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    async with asking(runtime):
        await trio.sleep(200)
    asked = [call.time for call in runtime.calls_of("Version")]
    assert asked == [0, 60, 120, 180]


async def test_one_status_tells_all(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.handler_features["kata"] = v1.RuntimeHandlerFeatures(user_namespaces=True)
    runtime.runtime_features = v1.RuntimeFeatures(supplemental_groups_policy=True)
    async with asking(runtime) as health:
        assert len(runtime.calls_of("Status")) == 1
        state = health.state.value
        assert (state.handlers, state.user_namespaces) == ({"kata"}, {"kata"})
        assert state.supplemental_groups_policy
