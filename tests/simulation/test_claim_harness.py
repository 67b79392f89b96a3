"""The whole agent's rules for claims find what they are there for: each bug is planted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from kubelet_trio.grpc import Status
from kubelet_trio.managers.claims import ClaimError, health, manager, state, usage
from kubelet_trio.managers.claims.manager import ResourceClaims
from kubelet_trio.managers.claims.tasks import ClaimTasks
from kubelet_trio.managers.node.checkpoints import CheckpointKeeper
from kubelet_trio.model import PodUid
from kubelet_trio.pods.steps import teardown
from kubelet_trio.testing.dra import DraFaultKind, calls
from tests.simulation.claim_drivers import GPUS, NICS
from tests.simulation.claim_machine import ClaimMachine
from tests.simulation.claim_needs import ClaimNeed

OWN = ClaimNeed(("own-both",), mains=2)
SHARING = ClaimNeed(("shared-gpu", "made-first"))


@pytest.fixture
def machine() -> Iterator[ClaimMachine]:
    """A machine that has started; its end checks nothing."""
    machine = ClaimMachine()
    machine.agent_starts(plain=True, need=OWN, other=SHARING)
    yield machine
    machine.world.kill()
    machine.run.__exit__(None, None, None)
    machine.world.close()


def check(machine: ClaimMachine) -> None:
    machine.claims_are_prepared_while_they_are_used()
    machine.nothing_crashes()


def live_a_day(machine: ClaimMachine) -> None:
    """Pods share a claim, a driver and the agent die, pods are replaced, and all of them go."""
    machine.pod_comes(name="gamma", need=SHARING, anew=False, then=6.0)
    check(machine)
    assert len(machine.world.runtime.alive()) == 4
    machine.health_changes(name=GPUS, pick=1, status=calls.UNHEALTHY, then=6.0)
    machine.agent_is_killed(pause=0.0, then=6.0)
    machine.pod_goes(name="beta", then=12.0)
    check(machine)
    machine.driver_is_updated(name=NICS, then=6.0)
    machine.driver_dies(name=GPUS, then=6.0)
    # Its driver is away: the old pod still has its claims when the new one comes.
    machine.pod_is_force_deleted(name="alpha", need=OWN, anew=True, pause=0.0, then=12.0)
    check(machine)
    machine.driver_comes(name=GPUS, then=12.0)
    check(machine)
    machine.driver_fails(
        name=GPUS,
        kind=DraFaultKind.SLOW,
        method=calls.PREPARE,
        pick=0,
        times=1,
        delay=3.0,
        status=Status.UNAVAILABLE,
        then=0.0,
    )
    # Killed while the driver prepares: the next agent has to know that something is to give back.
    machine.pod_comes(name="delta", need=ClaimNeed(("made-gpu",)), anew=False, then=3.5)
    machine.pod_is_force_deleted(name="delta", need=None, anew=False, pause=0.0, then=0.0)
    machine.agent_is_killed(pause=0.0, then=12.0)
    machine.calm()
    check(machine)
    machine.all_is_given_back()


def fails(machine: ClaimMachine) -> str:
    with pytest.raises(AssertionError) as failure:
        live_a_day(machine)
    return str(failure.value)


def test_a_day_goes_well(machine: ClaimMachine) -> None:
    live_a_day(machine)


def test_claims_that_go_before_their_containers_are_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, stop = teardown.adopt_claims, teardown.adopt_containers

    # Left from the last to the first: containers before claims in the stack stop after them.
    monkeypatch.setattr(teardown, "adopt_claims", lambda t: stop(t, _observed(t)))
    monkeypatch.setattr(teardown, "adopt_containers", lambda t, _observed: adopt(t))
    assert "is to unprepare" in fails(machine)


def _observed(torn: Any) -> Any:
    return torn.services.observer.get(PodUid(torn.pod.metadata.uid))


def test_a_claim_that_goes_with_the_first_of_its_pods_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take_all(claims: ResourceClaims, uid: PodUid, keys: Any) -> Any:
        return lambda: claims._finish_unprepare([claims.table[key] for key in sorted(keys)])

    monkeypatch.setattr(ResourceClaims, "_begin_unprepare", take_all)
    assert "is to unprepare" in fails(machine)


def test_a_claim_that_is_noted_only_after_the_call_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ResourceClaims._begin_prepare

    async def unnoted(claims: ResourceClaims, uid: PodUid, wanted: Any) -> Any:
        before = claims.table
        work = await begin(claims, uid, wanted)
        claims._take(before)
        return work

    async def at_once(*_: Any) -> None:
        """Wait for no disk."""

    monkeypatch.setattr(CheckpointKeeper, "wait_kept", at_once)
    monkeypatch.setattr(ResourceClaims, "_begin_prepare", unnoted)
    fails(machine)


def test_a_checkpoint_that_is_forgotten_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*_: Any) -> None:
        """Wait for no disk."""

    monkeypatch.setattr(CheckpointKeeper, "put", lambda *_: None)
    monkeypatch.setattr(CheckpointKeeper, "wait_kept", at_once)
    fails(machine)


def test_a_pod_that_starts_without_its_claims_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        """Prepare nothing."""

    monkeypatch.setattr(ResourceClaims, "_finish_prepare", nothing)
    assert re.search("starts before .* is prepared", fails(machine))


def test_two_calls_for_a_claim_at_once_are_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ClaimTasks, "_call_next", lambda tasks: [t.come.set() for t in tasks._turns]
    )
    add = machine.drivers.faults[GPUS].add
    machine.run.call(lambda: add(DraFaultKind.SLOW, times=None, delay=3.0))
    machine.pod_comes(name="gamma", need=SHARING, anew=False, then=0.01)
    machine.pod_comes(name="delta", need=SHARING, anew=False, then=12.0)
    with pytest.raises(AssertionError, match="has a call for this claim already"):
        check(machine)


def test_a_claim_that_is_prepared_for_each_of_its_pods_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        manager,
        "with_devices",
        lambda claim, found, is_prepared: state.with_devices(claim, found, is_prepared=False),
    )
    assert "has prepared this claim already" in fails(machine)


def test_a_container_with_all_devices_of_a_claim_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices_for = usage.devices_for
    monkeypatch.setattr(usage, "devices_for", lambda claim, _request: devices_for(claim, ""))
    assert re.search("m1 of .* gets", fails(machine))


def test_a_claim_of_an_earlier_pod_that_nobody_gives_back_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        """Give nothing back."""

    monkeypatch.setattr(ResourceClaims, "_give_back", nothing)
    monkeypatch.setattr(ResourceClaims, "_unprepare", nothing)
    fails(machine)


def test_health_that_is_not_told_is_found(
    machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health.HealthBook, "take", lambda *_: {})
    fails(machine)


def test_a_storm_of_calls_is_found(machine: ClaimMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = ResourceClaims._prepare

    async def stubborn(claims: ResourceClaims, pod: Any) -> None:
        for _ in range(100):
            try:
                return await prepare(claims, pod)
            except ClaimError:
                continue
        raise ClaimError("given up")

    monkeypatch.setattr(ResourceClaims, "_prepare", stubborn)
    add = machine.drivers.faults[GPUS].add
    machine.run.call(lambda: add(DraFaultKind.CLAIM_ERROR, calls.PREPARE, times=None))
    machine.pod_comes(name="gamma", need=SHARING, anew=False, then=12.0)
    with pytest.raises(AssertionError, match="a storm of calls"):
        check(machine)
