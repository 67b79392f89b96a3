"""Drivers that put sockets below plugins_registry, on our gRPC server and on grpcio."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio_util import AsyncValue

from kubelet_trio.grpc import Status
from kubelet_trio.managers.claims import ClaimDevice, ClaimError, DraDrivers
from kubelet_trio.plugins import DRA_TYPE, PluginRegistry
from kubelet_trio.testing.dra import (
    DraFaultKind,
    FakeClaimDevice,
    FakeDeviceHealth,
    FakeDraDriver,
    calls,
)
from tests.harness.dra_grpcio import grpcio_transport
from tests.harness.dra_services import OURS, DraTransport, registration_of, run_dra_driver
from tests.managers.claims.driver_node import CLAIM, OTHER

NAME = "dra.example.com"


class Root:
    """A kubelet's root directory, its registry, and what it knows of drivers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registered: AsyncValue[dict[str, bool]] = AsyncValue({})
        self.healths: AsyncValue[dict[str, tuple[str, str]]] = AsyncValue({})
        self.drivers = DraDrivers(on_change=self._note, on_health=self._note_health)
        self._registry = PluginRegistry(root / "plugins_registry", self._handler)

    def _handler(self, kind: str) -> DraDrivers | None:
        return self.drivers if kind == DRA_TYPE else None

    def _note(self, _driver: str, _is_usable: bool) -> None:
        self.registered.value = dict(self.drivers.registered)

    def _note_health(self, driver: str, pool: str, device: str) -> None:
        shown = self.drivers.healths.health(driver, pool, device)
        self.healths.value = self.healths.value | {device: shown}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        sockets, watch = self._registry.children()
        async with trio.open_nursery() as nursery:
            await nursery.start(sockets.run)
            await nursery.start(watch.run)
            task_status.started()


@asynccontextmanager
async def open_root(path: Path) -> AsyncIterator[tuple[Root, trio.Nursery]]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            root = Root(path)
            await nursery.start(root.run)
            yield root, nursery
            nursery.cancel_scope.cancel()


async def prepared(root: Root) -> Mapping[str, object]:
    """Prepare a claim, again while its driver comes and goes, as the kubelet does."""
    while True:
        try:
            return await root.drivers.find(NAME).prepare([CLAIM])
        except ClaimError:
            await trio.sleep(0.05)


@pytest.fixture(params=["ours", "grpcio"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> DraTransport:
    return OURS if request.param == "ours" else grpcio_transport(tmp_path / "stubs")


@pytest.mark.parametrize(
    "services", [(calls.V1, calls.HEALTH_V1), (calls.V1BETA1, calls.HEALTH_V1ALPHA1)], ids=str
)
async def test_a_driver_registers_prepares_and_leaves(
    short_path: Path, transport: DraTransport, services: tuple[str, ...]
) -> None:
    driver = FakeDraDriver(
        NAME, services=services, cdi_dir=short_path / "cdi", nodes={"/dev/gpu": "/dev/null"}
    )
    driver.allocate(CLAIM.uid, FakeClaimDevice("gpu-1", requests=("r",), share_id="s"))
    driver.set_health(FakeDeviceHealth("gpu-1", "Unhealthy", "hot"))
    async with open_root(short_path) as (root, _), trio.open_nursery() as life:
        await life.start(run_dra_driver, driver, short_path, transport)
        await driver.wait_registered()
        await root.registered.wait_value({NAME: True})
        share = "s" if calls.V1 in services else ""
        assert await root.drivers.find(NAME).prepare([CLAIM]) == {
            CLAIM.uid: (
                ClaimDevice("node", "gpu-1", ("r",), (f"{NAME}/claim=uid-1-gpu-1",), share),
            )
        }
        (spec,) = (short_path / "cdi").iterdir()
        assert json.loads(spec.read_text()) == {
            "cdiVersion": "0.6.0",
            "kind": f"{NAME}/claim",
            "devices": [
                {
                    "name": "uid-1-gpu-1",
                    "containerEdits": {
                        "env": ["FAKE_CLAIM_DEVICES=gpu-1"],
                        "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/null"}],
                    },
                }
            ],
        }
        await root.healths.wait_value({"gpu-1": ("Unhealthy", "hot")})
        driver.set_health(FakeDeviceHealth("gpu-1"))
        await root.healths.wait_value({"gpu-1": ("Healthy", "")})
        assert await root.drivers.find(NAME).unprepare([CLAIM]) == {CLAIM.uid: ""}
        assert list((short_path / "cdi").iterdir()) == []
        life.cancel_scope.cancel()
        await root.registered.wait_value({})
        driver.rules.check()


async def test_answers_and_errors(short_path: Path, transport: DraTransport) -> None:
    driver = FakeDraDriver(NAME)
    async with open_root(short_path) as (root, nursery):
        await nursery.start(run_dra_driver, driver, short_path, transport)
        await root.registered.wait_value({NAME: True})
        found = root.drivers.find(NAME)
        driver.faults.add(DraFaultKind.CLAIM_ERROR, calls.PREPARE, OTHER.uid, message="broken")
        answer = await found.prepare([CLAIM, OTHER])
        assert answer[OTHER.uid] == "broken"
        assert not isinstance(answer[CLAIM.uid], str)
        driver.faults.add(DraFaultKind.LEAVE_OUT, calls.PREPARE)
        assert await found.prepare([CLAIM]) == {}
        driver.faults.add(
            DraFaultKind.REFUSE, calls.PREPARE, status=Status.FAILED_PRECONDITION, message="no"
        )
        with pytest.raises(ClaimError, match=r"^rpc error: code = FailedPrecondition desc = no$"):
            await found.prepare([CLAIM])
        driver.faults.add(DraFaultKind.HUGE, calls.PREPARE)
        with pytest.raises(ClaimError, match="code = ResourceExhausted"):
            await found.prepare([CLAIM])
        driver.allocate(CLAIM.uid)  # no device at all
        assert await found.prepare([CLAIM]) == {CLAIM.uid: ()}


async def test_a_driver_that_restarts_is_connected_again(
    short_path: Path, transport: DraTransport
) -> None:
    driver = FakeDraDriver(NAME, services=[calls.V1, calls.HEALTH_V1])
    async with open_root(short_path) as (root, nursery):
        await nursery.start(run_dra_driver, driver, short_path, transport)
        await driver.wait_registered()
        await root.registered.wait_value({NAME: True})
        driver.faults.add(DraFaultKind.DIE_AFTER, calls.PREPARE)
        with pytest.raises(ClaimError, match="rpc error: code = "):
            await root.drivers.find(NAME).prepare([CLAIM])
        await root.registered.wait_value({NAME: False})
        await nursery.start(run_dra_driver, driver, short_path, transport)
        await driver.wait_registered(2)  # its sockets are new ones
        assert CLAIM.uid in await prepared(root)
        driver.rules.check()


async def test_a_rolling_update(short_path: Path, transport: DraTransport) -> None:
    old = FakeDraDriver(NAME, instance="old")
    new = FakeDraDriver(NAME, ["new-0"], old.rules, instance="new")
    async with open_root(short_path) as (root, nursery):
        async with trio.open_nursery() as life:
            await life.start(run_dra_driver, old, short_path, transport)
            await root.registered.wait_value({NAME: True})
            await nursery.start(run_dra_driver, new, short_path, transport)
            await new.wait_registered()
            life.cancel_scope.cancel()
        assert not registration_of(old, short_path).exists()
        assert CLAIM.uid in await prepared(root)
        assert new.rules.prepared.keys() == {CLAIM.uid}
        assert root.registered.value == {NAME: True}


async def test_a_driver_is_told_why_it_is_refused(
    short_path: Path, transport: DraTransport
) -> None:
    driver = FakeDraDriver(NAME, services=[calls.HEALTH_V1])
    async with open_root(short_path) as (_, nursery):
        await nursery.start(run_dra_driver, driver, short_path, transport)
        await driver.wait_until(lambda _rules: driver.registrations)
        (refusal,) = driver.registrations
        assert "none of services supported by the plugin" in refusal
        assert refusal.startswith("RegisterPlugin error -- plugin validation failed with err: ")
