"""The whole agent's rules for CSI volumes find what they are there for: each bug is planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.csi.block import CsiBlocks
from kubelet_trio.volumes.csi.data import RECORD
from kubelet_trio.volumes.csi.filesystem import CsiFilesystems
from kubelet_trio.volumes.csi.node import VolumeUsers
from kubelet_trio.volumes.csi.staging import Staging
from tests.simulation.agent_machine import AgentMachine, started
from tests.simulation.csi_node import LIES
from tests.simulation.manifests import Wish


@pytest.fixture
def machine() -> Iterator[AgentMachine]:
    machine = AgentMachine()
    machine.world.add_driver()
    with started(machine):
        yield machine


def check(machine: AgentMachine) -> None:
    machine.volumes_are_where_they_are_used()
    machine.contract_with_the_runtime_is_kept()
    machine.nothing_crashes()


def live_a_day(machine: AgentMachine) -> None:
    """Pods share volumes, driver and agent restart, a volume hangs, pods go one by one."""
    csi = machine.world.csi
    assert csi is not None
    machine.write_manifest(name="alpha", wish=WITH_ALL, nudge=True, then=6.0)
    machine.write_manifest(name="beta", wish=WITH_ALL, nudge=True, then=6.0)
    check(machine)
    published = csi.rules.published()
    assert {len(published[name]) for name in ("v0", "b0")} == {2}
    machine.driver_restarts(pause=0.5, then=1.1)
    machine.agent_is_restarted(killed=True, pause=0.0, then=6.0)
    check(machine)
    machine.remove_manifest(name="alpha", nudge=True, then=40.0)
    check(machine)
    assert {len(csi.rules.published()[name]) for name in ("v0", "b0")} == {1}
    machine.a_volume_hangs(
        name="gamma", volume="v1", method=calls.PUBLISH, after=0.2, beside=("inline",), then=0.0
    )
    check(machine)
    for lie in LIES:
        machine.driver_registers_otherwise(how=lie, then=1.1)
        check(machine)
    machine.calm()
    for name in ("beta", "gamma"):
        machine.remove_manifest(name=name, nudge=True, then=40.0)
        check(machine)
    machine.calm()
    assert not csi.rules.staged()


WITH_ALL = Wish(("run",), claims=("v0", "b0", "inline"))


def test_a_day_goes_well(machine: AgentMachine) -> None:
    live_a_day(machine)


def test_a_volume_that_is_unstaged_while_it_is_used_is_found(
    machine: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Staging, "_is_used", lambda *_: False)
    monkeypatch.setattr(VolumeUsers, "uses", lambda *_: False)
    with pytest.raises(AssertionError, match="unstaged while published"):
        live_a_day(machine)


@pytest.mark.parametrize("part", [CsiFilesystems, CsiBlocks])
def test_a_volume_that_stays_published_is_found(
    machine: AgentMachine, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    async def tear_down(*_: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(part, "tear_down", tear_down)
    with pytest.raises(AssertionError):
        live_a_day(machine)


def test_a_stage_that_nobody_undoes_is_found(
    machine: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def release(*_: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(Staging, "release", release)
    with pytest.raises(AssertionError):
        live_a_day(machine)


def test_a_record_that_is_written_too_late_is_found(
    machine: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubelet_trio.volumes.csi import filesystem

    written = filesystem._prepare

    def lose(directory: Path, record: Any) -> bool:
        was_there = written(directory, record)
        (directory / RECORD).unlink()
        return was_there

    monkeypatch.setattr(filesystem, "_prepare", lose)
    with pytest.raises(AssertionError, match="no record of"):
        live_a_day(machine)


def test_a_volume_that_goes_before_its_containers_is_found(
    machine: AgentMachine,
) -> None:
    csi = machine.world.csi
    assert csi is not None
    machine.write_manifest(name="alpha", wish=WITH_ALL, nudge=True, then=6.0)
    (path,) = csi.rules.published()["v0"]
    csi.mounter.unmount(Path(path))
    with pytest.raises(AssertionError, match="volumes lost by m0"):
        check(machine)


def test_a_hanging_volume_that_holds_up_the_others_is_found(
    machine: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_at_a_time = trio.Lock()
    mount = AsyncVolumes.mount

    async def queued(volumes: AsyncVolumes, *args: Any, **kwargs: Any) -> Any:
        async with one_at_a_time:
            return await mount(volumes, *args, **kwargs)

    monkeypatch.setattr(AsyncVolumes, "mount", queued)
    with pytest.raises(AssertionError, match="disturbs others"):
        machine.a_volume_hangs(
            name="gamma", volume="v1", method=calls.PUBLISH, after=0.2, beside=("inline",), then=0.0
        )


def test_a_pod_whose_volume_is_given_up_is_found(
    machine: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    csi = machine.world.csi
    assert csi is not None
    set_up, tried = CsiFilesystems.set_up, set[PodUid]()

    async def once(part: CsiFilesystems, spec: Any) -> None:
        if spec.uid in tried:
            await trio.sleep_forever()
        tried.add(spec.uid)
        await set_up(part, spec)

    monkeypatch.setattr(CsiFilesystems, "set_up", once)
    csi.driver.faults.add(CsiFaultKind.ERROR, calls.PUBLISH)
    machine.write_manifest(name="alpha", wish=WITH_ALL, nudge=True, then=6.0)
    with pytest.raises(AssertionError, match="alpha: Pending, should be Running"):
        machine.calm()
