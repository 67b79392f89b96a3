"""Plugins of an embedded kubelet: only where its configuration wants them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.embed import KubeletConfig, open_kubelet
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.csi import FakeCsiDriver, calls
from kubelet_trio.testing.embedded import fake_world
from tests.harness.csi_services import serving
from tests.plugins.fakes import FakePlugin

PAGE = Path(__file__).parents[2] / "docs/embedding.md"


@pytest.mark.parametrize("plugins", [True, False])
async def test_a_plugin_is_asked_only_by_a_kubelet_with_plugins(
    short_path: Path, autojump_clock: MockClock, plugins: bool
) -> None:
    runtime = FakeRuntime()
    config = replace(KubeletConfig(root_dir=short_path, runtime=runtime), plugins=plugins)
    async with open_kubelet(config, world=fake_world(runtime, config)) as kubelet:
        plugin = FakePlugin(short_path / "plugins_registry" / "gpu.sock", type="DevicePlugin")
        plugin.path.parent.mkdir(exist_ok=True)
        async with plugin.serving():
            await trio.sleep(30)
            assert (plugin.asked > 0) is plugins
        names = [child.name for child in kubelet.tree().children]
        assert ("plugins" in names) is plugins


async def test_a_pod_of_a_program_has_a_volume_of_a_driver(
    short_path: Path, autojump_clock: MockClock
) -> None:
    (block,) = re.findall(r'DISK = """\n(.*?)"""', PAGE.read_text(), re.DOTALL)
    runtime, driver = FakeRuntime(), FakeCsiDriver()
    config = replace(KubeletConfig(root_dir=short_path, runtime=runtime), plugins=True)
    registry = short_path / "plugins_registry"
    registry.mkdir()
    async with (
        serving(driver, registry / "disk-reg.sock"),
        open_kubelet(config, world=fake_world(runtime, config)) as kubelet,
    ):
        with trio.fail_after(300):
            manifest = block.replace("disk.csi.example.com", driver.facts.name)
            async with kubelet.run_pod(manifest) as running:
                await running.wait_ready()
                assert [c.volume_id for c in driver.rules.log if c.method == calls.PUBLISH] == [
                    "disk-1"
                ]
    assert not driver.rules.published()
    driver.rules.check()
