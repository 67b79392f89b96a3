"""The node's directories are there from the start, with the Go kubelet's modes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.agent import make_node_directories
from kubelet_trio.containers import NodeSettings

MODES = {
    "root": 0o750,
    "root/pods": 0o750,
    "root/plugins": 0o750,
    "root/plugins_registry": 0o750,
    "root/pod-resources": 0o750,
    "root/checkpoints": 0o700,
    "logs/pods": 0o750,
    "logs/containers": 0o755,
}


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def node(base: Path) -> NodeSettings:
    logs = base / "logs"
    return NodeSettings(
        "node",
        "node",
        root_dir=base / "root",
        pod_logs_dir=logs / "pods",
        container_logs_dir=logs / "containers",
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    make_node_directories(node(tmp_path), for_plugins=True)
    assert {name: mode(tmp_path / name) for name in MODES} == MODES


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o711)
    make_node_directories(node(tmp_path), for_plugins=True)
    assert mode(tmp_path / "root") == 0o711


def test_an_embedded_agent_makes_none_for_plugins(tmp_path: Path) -> None:
    make_node_directories(node(tmp_path), for_plugins=False)
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["pods"]
