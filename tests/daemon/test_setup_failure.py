"""A daemon whose node cannot be set up says so on the node, and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from lightkube.models import core_v1

from kubelet_trio.cli.local import local_facts
from kubelet_trio.config import Settings, parse_flags, settle, settle_locally
from kubelet_trio.daemon import Apis, run_agent
from kubelet_trio.testing import FakeKube


def settings(root: Path) -> Settings:
    line = [
        f"--root-dir={root}",
        f"--container-runtime-endpoint=unix://{root}/none.sock",
        "--kubeconfig=/unused",
        "--hostname-override=node-1",
        "--node-ip=192.0.2.7",
        "--keep-kernel-settings",
        "--make-iptables-util-chains=false",
    ]
    return settle_locally(settle(parse_flags(line)), local_facts())


async def started(root: Path, kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> int:
    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Apis]:
        yield Apis(kube, kube, "https://api:6443")

    monkeypatch.setattr("kubelet_trio.daemon.join.open_apis", opened, raising=False)
    with trio.fail_after(30):
        return await run_agent(settings(root), stop=trio.Event())


async def test_a_root_directory_that_cannot_be_made_is_told_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    kube = FakeKube()
    assert await started(tmp_path / "file/root", kube, monkeypatch) == 1
    [event] = kube.all(core_v1.Event)
    assert (event.type, event.reason) == ("Warning", "KubeletSetupFailed")
    assert event.involvedObject.kind == "Node"
    assert event.involvedObject.name == "node-1"
    assert str(tmp_path / "file") in str(event.message)


async def test_an_api_server_that_is_away_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    kube = FakeKube()
    kube.hang()
    assert await started(tmp_path / "file/root", kube, monkeypatch) == 1
