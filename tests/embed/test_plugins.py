"""Plugins of an embedded kubelet: only where its configuration wants them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.embed import KubeletConfig, open_kubelet
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.embedded import fake_world
from tests.plugins.fakes import FakePlugin


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
