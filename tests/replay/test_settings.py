"""The settings that a recording has, in programs of any kind."""

from __future__ import annotations

from pathlib import Path

import kubelet_trio
from kubelet_trio.replay.settings import agent_settings


def test_settings_are_read_in_a_program_that_embeds_an_agent(tmp_path: Path) -> None:
    """`kubelet_trio` shows classes under its own name, but their annotations are elsewhere."""
    assert kubelet_trio.KubeletConfig.__module__ == "kubelet_trio"
    told = {"managers": {"cpu_policy": "static", "topology_options": {"max_nodes": 9}}}
    managers = agent_settings({"settings": told}, tmp_path).managers
    assert isinstance(managers, kubelet_trio.ManagerSettings)
    assert managers.cpu_policy == "static"
    assert managers.topology_options.max_nodes == 9
