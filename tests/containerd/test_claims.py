"""Claims of pods on a real runtime: an agent process, a fake API server, DRA drivers.

Containers get the devices of claims by CDI, which containerd has from 1.7 on; the environment
variable KUBELET_TRIO_CONTAINERD names another one than the machine's. `KUBELET_TRIO_SEED` chooses
other moments of the kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from kubelet_trio.testing.dra import DraFaultKind, calls
from tests.containerd.claims import (
    ClaimNode,
    DriverLife,
    claim,
    claiming,
    granted,
    lacks_node,
    pid_of,
)
from tests.harness import Containerd, CriClient, Json, container_status, is_ready
from tests.harness.dra_grpcio import grpcio_transport
from tests.harness.dra_services import OURS, DraTransport

KILLS = 30
SEED = 7


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimNode]:
    with ClaimNode(tmp_path_factory.mktemp("node"), containerd) as running:
        yield running


@pytest.fixture(params=["ours", "grpcio"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> DraTransport:
    return grpcio_transport(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def transport(kind: str, peer: DraTransport) -> DraTransport:
    return OURS if kind == "ours" else peer


def check_granted(node: ClaimNode, cri: CriClient, name: str, *devices: str) -> None:
    """Check what a pod's container was given of its claim, and what it has where CDI works."""
    made = claim_used(node, name)
    results = node.allocation(made)
    assert [one["device"] for one in results] == list(devices)
    for one in results:
        # As the fake driver names the devices of a claim.
        assert node.has_sent(f"{one['driver']}/claim={node.uid(made)}-{one['device']}")
    if node.containerd.cdi_dir is None:
        print(f"not looked into the container of {name}: containerd has no CDI before 1.7")
        return
    assert granted(cri, name) == list(devices)
    assert not lacks_node(cri, name)


def claim_of(node: ClaimNode, name: str) -> str:
    """Return the claim that is made for a pod, once it is."""
    found = node.wait(name, lambda pod: pod["status"].get("resourceClaimStatuses"))
    told: str = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    return told


def claim_used(node: ClaimNode, name: str) -> str:
    """Return the claim of a pod, wherever it is from."""
    found = node.find(name)
    assert found is not None
    given: str | None = found["spec"]["resourceClaims"][0].get("resourceClaimName")
    return given or claim_of(node, name)


def wait_unprepared(node: ClaimNode, life: DriverLife) -> None:
    node.poll(lambda: not node.prepared(life), what="nothing is prepared")


def failures(node: ClaimNode, name: str) -> list[str]:
    return [
        event["message"]
        for event in node.events(name)
        if event["reason"] == "FailedPrepareDynamicResources"
    ]


def wait_failure(node: ClaimNode, name: str, text: str) -> None:
    node.poll(
        lambda: any(text in message for message in failures(node, name)),
        what=f"an event of {name} with {text!r}",
    )


def test_a_container_has_the_devices_of_its_pods_claim(
    node: ClaimNode, cri: CriClient, kind: str, transport: DraTransport
) -> None:
    driver, name = f"one-{kind}.example.com", f"one-{kind}"
    node.offer(driver)
    with node.driver(driver, transport=transport) as life:
        node.wait_registered(life)
        with node.running(claiming(name, template=driver)):
            made = claim_of(node, name)
            assert node.prepared(life) == [made]
            check_granted(node, cri, name, "a")
            with node.running(claiming(f"{name}-more", template=driver)):
                check_granted(node, cri, f"{name}-more", "b")
        wait_unprepared(node, life)
        assert node.count(life, calls.PREPARE) == node.count(life, calls.UNPREPARE) == 2
        node.poll(lambda: made not in node.names("ResourceClaim"), what="the claim is gone")


def test_pods_share_a_claim_until_the_last_of_them_ends(
    node: ClaimNode, cri: CriClient, kind: str, transport: DraTransport
) -> None:
    driver, shared = f"shared-{kind}.example.com", f"shared-{kind}"
    node.offer(driver)
    node.add("ResourceClaim", claim(shared, driver))
    with node.driver(driver, transport=transport) as life:
        node.wait_registered(life)
        with node.running(claiming(f"last-{kind}", shared=shared)):
            with node.running(claiming(f"first-{kind}", shared=shared)):
                for name in (f"last-{kind}", f"first-{kind}"):
                    check_granted(node, cri, name, "a")
            assert node.prepared(life) == [shared]
            assert node.count(life, calls.UNPREPARE) == 0
        wait_unprepared(node, life)
        assert node.count(life, calls.PREPARE) == node.count(life, calls.UNPREPARE) == 1
    node.remove("ResourceClaim", shared)


@pytest.mark.parametrize("missing", ["allocates", "reserves"])
def test_a_pod_waits_for_its_claim_to_be_reserved(
    node: ClaimNode, cri: CriClient, missing: str
) -> None:
    driver, name = f"{missing}.example.com", f"waits-{missing}"
    node.offer(driver)
    with node.driver(driver) as life, node.without(missing) as mend:
        node.wait_registered(life)
        node.create(claiming(name, template=driver))
        made = claim_of(node, name)
        # Before that there may be another event: the claim was not made yet.
        text = f") is not allowed to use ResourceClaim {made} ("
        wait_failure(node, name, text)
        told = next(message for message in failures(node, name) if text in message)
        upstream = "Failed to prepare dynamic resources: prepare dynamic resources: pod"
        assert told.startswith(f"{upstream} {name} (")
        assert node.count(life, calls.PREPARE) == 0
        mend()
        node.wait(name, is_ready, within=120, what="Ready")
        check_granted(node, cri, name, "a")
        node.delete(name)
        wait_unprepared(node, life)


def test_a_pod_waits_for_the_driver_of_its_claim(node: ClaimNode, cri: CriClient) -> None:
    driver, name = "late.example.com", "waits-driver"
    node.offer(driver)
    # So that its slice is known, and the claim allocated.
    node.end_driver(node.start_driver(driver))
    node.create(claiming(name, template=driver))
    wait_failure(node, name, f"DRA driver {driver} is not registered")
    with node.driver(driver):
        node.wait(name, is_ready, within=120, what="Ready")
        check_granted(node, cri, name, "a")
        node.delete(name)


def test_a_pod_waits_for_a_driver_that_fails(node: ClaimNode) -> None:
    driver, name = "fails.example.com", "waits-failure"
    node.offer(driver)
    with node.driver(driver) as life:
        node.wait_registered(life)
        node.ask(
            lambda: life.driver.faults.add(
                DraFaultKind.CLAIM_ERROR, calls.PREPARE, times=None, message="no power"
            )
        )
        node.create(claiming(name, template=driver))
        made = claim_of(node, name)
        text = f"NodePrepareResources failed for ResourceClaim {made}: no power"
        wait_failure(node, name, text)
        node.ask(life.driver.faults.clear)
        node.wait(name, is_ready, within=120, what="Ready")
        node.delete(name)
        wait_unprepared(node, life)


@pytest.mark.parametrize("is_rolling", [True, False], ids=["rolling", "stop-then-start"])
def test_a_driver_is_upgraded_under_running_pods(
    node: ClaimNode, cri: CriClient, is_rolling: bool, kind: str, transport: DraTransport
) -> None:
    word = f"{'roll' if is_rolling else 'again'}-{kind}"
    driver, kept, new = f"{word}.example.com", f"kept-{word}", f"new-{word}"
    node.offer(driver)
    old = node.start_driver(driver, transport=transport, instance="1" if is_rolling else "")
    node.wait_registered(old)
    node.create(claiming(kept, template=driver))
    node.wait(kept, is_ready, what="Ready")
    pid, made = pid_of(cri, kept), claim_of(node, kept)
    if not is_rolling:
        node.end_driver(old)
    with node.driver(
        driver,
        rules=old.driver.rules,
        transport=transport,
        instance="2" if is_rolling else "",
    ) as life:
        node.wait_registered(life)
        if is_rolling:
            node.end_driver(old)
        with node.running(claiming(new, template=driver)):
            check_granted(node, cri, new, "b")
            # Nobody has taken the slice of a driver that was away for less than 30 s.
            assert f"node-{driver}" in node.names("ResourceSlice")
            assert pid_of(cri, kept) == pid
            found = node.find(kept)
            assert found is not None
            assert container_status(found, "main")["restartCount"] == 0
            assert made in node.prepared(life)
        node.delete(kept)
        wait_unprepared(node, life)


def test_a_killed_agent_leaves_nothing_prepared_and_misses_nothing(
    containerd: Containerd,
    cri: CriClient,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    transport: DraTransport,
) -> None:
    chosen = random.Random(int(os.environ.get("KUBELET_TRIO_SEED", SEED)))
    driver, devices = f"killed-{kind}.example.com", tuple(f"d{n}" for n in range(8))
    wanted: dict[str, Json] = {}
    with ClaimNode(tmp_path_factory.mktemp("killed"), containerd) as node:
        node.offer(driver)
        node.add("ResourceClaim", claim("shared", driver))
        with node.driver(driver, *devices, transport=transport) as life:
            node.wait_registered(life)
            for round_ in range(KILLS):
                _change(node, wanted, chosen, driver, round_)
                # From before the first call of the driver to after the start of the container.
                time.sleep(chosen.uniform(0.0, 1.2))
                node.kill()
                if chosen.random() < 0.3:
                    _change(node, wanted, chosen, driver, round_ + 1000)
                node.start()
            for name in wanted:
                node.wait(name, is_ready, within=120, what="Ready")
            node.poll(lambda: set(node.names("Pod")) == wanted.keys(), what="the others are gone")
            expected = sorted({claim_used(node, name) for name in wanted})
            node.poll(
                lambda: node.prepared(life) == expected, 120, f"exactly {expected} are prepared"
            )
            for name in wanted:
                check_granted(node, cri, name, _device(node, name))
            for name in list(wanted):
                node.delete(name)
            wait_unprepared(node, life)


def _change(
    node: ClaimNode, wanted: dict[str, Json], chosen: random.Random, driver: str, number: int
) -> None:
    """Create a pod, and delete one that there has been for a while."""
    name = f"life-{number}"
    if chosen.random() < 0.4:
        manifest = claiming(name, shared="shared", terminationGracePeriodSeconds=1)
    else:
        manifest = claiming(name, template=driver, terminationGracePeriodSeconds=1)
    if len(wanted) > 3:
        gone = chosen.choice(sorted(wanted))
        del wanted[gone]
        node.begin_delete(gone)
    node.create(manifest)
    wanted[name] = manifest


def _device(node: ClaimNode, name: str) -> str:
    device: str = node.allocation(claim_used(node, name))[0]["device"]
    return device
