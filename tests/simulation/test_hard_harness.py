"""The rules of the hard node find what they are there for: a day on it, with each bug planted."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from kubelet_trio.agent import admission
from kubelet_trio.gc import image_sweep
from kubelet_trio.model import PodUid
from kubelet_trio.pods import PodRegistry
from kubelet_trio.pods.worker.holds import NameTurn
from kubelet_trio.pods.worker.reporter import PodReporter
from kubelet_trio.testing import FaultKind
from tests.simulation.agent_machine import started
from tests.simulation.hard_machine import HardMachine
from tests.simulation.hard_world import ENOUGH, SHORT
from tests.simulation.manifests import Wish


@pytest.fixture
def machine() -> Iterator[HardMachine]:
    machine = HardMachine()
    with started(machine):
        yield machine


def check(machine: HardMachine) -> None:
    machine.evicted_pods_stay_evicted()
    machine.nobody_comes_under_pressure()
    machine.contract_with_the_runtime_is_kept()
    machine.nothing_crashes()


def live_a_day(machine: HardMachine) -> None:
    """One pod is evicted, another refused, the images' disk and the node's fill up."""
    machine.write_wish("alpha", Wish(("run",)))
    machine.pod_is_fed(name="one", use=200, then=6.0)
    machine.memory_changes(memory=SHORT, then=20.0)
    check(machine)
    assert machine.evicted
    machine.pod_is_fed(name="two", use=10, then=6.0)
    assert machine.refused
    check(machine)
    machine.memory_changes(memory=ENOUGH, then=0.0)
    machine.images_fill_their_disk(percent=95, then=0.0)
    machine.run.sleep(320)
    machine.agent_is_restarted(killed=True, pause=0.0, then=20.0)
    check(machine)
    machine.disk_refuses(error=errno.ENOSPC, then=0.0)
    machine.write_manifest(name="beta", wish=Wish(("run",)), nudge=True, then=20.0)
    check(machine)
    assert machine.hard.disk.refused
    machine.refused.clear()
    machine.excused |= {PodUid("two-2")}  # it was refused, and stays so
    machine.calm()


def test_a_day_goes_well(machine: HardMachine) -> None:
    live_a_day(machine)


def test_an_evicted_pod_that_comes_back_is_found(
    machine: HardMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodRegistry, "_take_record", lambda _self, _uid: None)
    with pytest.raises(AssertionError, match="is back"):
        live_a_day(machine)


def test_a_pod_that_comes_under_pressure_is_found(
    machine: HardMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "pressure_rejection", lambda _pod, _pressure: None)
    with pytest.raises(AssertionError, match="admitted under pressure"):
        live_a_day(machine)


def test_an_image_that_goes_though_it_is_used_is_found(
    machine: HardMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_sweep, "used_images", lambda _images, _users: {})
    with pytest.raises(AssertionError, match="removed while it is used"):
        live_a_day(machine)


def test_a_worker_that_a_full_disk_ends_is_found(
    machine: HardMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodReporter, "_try_write", PodReporter._write)
    with pytest.raises(AssertionError, match="No space left"):
        live_a_day(machine)


def replace_what_is_forgotten(machine: HardMachine) -> None:
    """A pod is replaced while its record is lost, and the new one is known before it is seen."""
    machine.pod_is_fed(name="one", use=10, then=6.0)
    machine.runtime_goes_down(seconds=None, then=0.0)
    machine.agent_is_restarted(killed=True, pause=None, then=0.0)
    machine.pod_is_fed(name="one", use=10, then=0.0)
    machine.record_is_damaged_while_the_agent_is_away(damage="garbage", pick=0, pause=0.0, then=6.0)
    machine.all_is_mended(then=0.0)
    slow = FaultKind.SLOW
    machine.calls_fail(kind=slow, call="StopContainer", times=None, delay=3.0, then=20.0)
    check(machine)
    assert [container.uid for container in machine.hard.runtime.alive()] == ["one-2"]


def test_a_pod_waits_for_one_of_its_name(machine: HardMachine) -> None:
    replace_what_is_forgotten(machine)


def test_a_pod_beside_one_of_its_name_is_found(
    machine: HardMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NameTurn, "is_free", lambda _self: True)
    with pytest.raises(AssertionError, match="still runs"):
        replace_what_is_forgotten(machine)
