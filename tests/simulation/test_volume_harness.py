"""The simulation of volumes finds bugs: each of these is planted, and it must fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.volumes import VolumeManager
from kubelet_trio.volumes.csi import client, filesystem, staging
from kubelet_trio.volumes.csi.data import RECORD
from kubelet_trio.volumes.csi.filesystem import CsiFilesystems
from kubelet_trio.volumes.csi.node import VolumeUsers
from kubelet_trio.volumes.csi.staging import Staging
from kubelet_trio.volumes.keyed import KeyedLocks
from tests.simulation.profile import run_machine
from tests.simulation.volume_machine import VolumeMachine

EXAMPLES = 60


def fails() -> str:
    """Run the machine, and return what it complains about."""
    with pytest.raises((AssertionError, ExceptionGroup)) as failure:
        run_machine(VolumeMachine, examples=EXAMPLES, shrink=False)
    return str(failure.value)


def test_a_volume_that_is_unstaged_while_others_use_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Staging, "_is_used", lambda *_: False)
    monkeypatch.setattr(VolumeUsers, "uses", lambda *_: False)
    assert "unstaged while published" in fails()


def test_a_record_that_is_dropped_after_an_uncertain_answer_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def remove_record(directory: Path, _name: str) -> None:
        (directory / RECORD).unlink(missing_ok=True)

    monkeypatch.setattr(client, "_UNCERTAIN", frozenset())
    for module in (filesystem, staging):
        monkeypatch.setattr(module, "remove_mount_point", remove_record)
    fails()


def test_two_calls_for_a_volume_at_a_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def hold(_locks: KeyedLocks, _key: str) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(KeyedLocks, "hold", hold)
    assert "two calls for one volume at a time" in fails()


def test_a_volume_that_stays_published_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tear_down(*_: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(CsiFilesystems, "tear_down", tear_down)
    fails()


def test_a_stage_that_nobody_undoes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def release(*_: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(Staging, "release", release)
    fails()


def test_a_pod_that_is_given_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mount, tried = VolumeManager.mount, set[int]()

    async def mount_once(volumes: VolumeManager, pod: Any) -> None:
        if id(pod) not in tried:
            tried.add(id(pod))
            kept.append(pod)  # so that no other gets its id
            await mount(volumes, pod)

    kept: list[Any] = []

    monkeypatch.setattr(VolumeManager, "mount", mount_once)
    fails()
