"""What a recording says about the settings of its agent."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec

from kubelet_trio.agent import AgentSettings
from kubelet_trio.agent.recording import _NOT_TOLD, told_settings
from kubelet_trio.config.load import load_settings
from kubelet_trio.containers import NodeSettings
from kubelet_trio.daemon import build_agent


def test_all_settings_of_a_daemon_are_told(tmp_path: Path) -> None:
    arguments = [f"--root-dir={tmp_path}", "--node-ip=192.0.2.7", "--node-labels=a=b"]
    settings = build_agent(load_settings(arguments), {}).settings
    told = msgspec.json.decode(msgspec.json.encode(told_settings(settings)))
    assert told.keys() | set(_NOT_TOLD) == {field.name for field in fields(AgentSettings)}
    assert told["node"].keys() == {field.name for field in fields(NodeSettings)}
    assert told["sync_period"] == 60.0
    assert told["crash_back_off"]["cap"] == 300.0
    assert told["admission"]["marks"]["labels"]["a"] == "b"
    assert settings.recorder_size == 32 * 1024 * 1024
