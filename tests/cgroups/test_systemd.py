from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from kubelet_trio.cgroups import (
    UNLIMITED,
    CgroupError,
    CgroupHost,
    CgroupLimits,
    CgroupsDeniedError,
    CgroupTree,
    SystemdBus,
)
from kubelet_trio.cgroups.systemd import limit_properties, parent_slice, slice_properties
from kubelet_trio.model import PodUid, inline_offload
from tests.cgroups.tree import changed, record

LIMITS = CgroupLimits(512, 50_000, 100_000, 64 << 20, 500, unified={"memory.low": "4096"})
POD = ("kubepods", "burstable", "pod5ba8")
UNIT = "kubepods-burstable-pod5ba8.slice"
PLACE = f"kubepods.slice/kubepods-burstable.slice/{UNIT}"


@pytest.mark.parametrize(
    ("unit", "parent"),
    [
        ("kubepods.slice", "-.slice"),
        ("kubepods-burstable.slice", "kubepods.slice"),
        (UNIT, "kubepods-burstable.slice"),
    ],
)
def test_a_slice_is_in_the_one_its_name_begins_with(unit: str, parent: str) -> None:
    assert parent_slice(unit) == parent
    assert ("Wants", ("as", [parent])) in slice_properties(unit, CgroupLimits(), 2)


@pytest.mark.parametrize(
    ("limits", "version", "properties"),
    [
        (
            LIMITS,
            2,
            {
                "CPUWeight": 20,
                "CPUQuotaPerSecUSec": 500_000,
                "MemoryMax": 64 << 20,
                "TasksMax": 500,
                "MemoryLow": 4096,
            },
        ),
        (
            LIMITS,
            1,
            {
                "CPUShares": 512,
                "CPUQuotaPerSecUSec": 500_000,
                "MemoryLimit": 64 << 20,
                "TasksMax": 500,
            },
        ),
        (
            CgroupLimits(cpu_quota=UNLIMITED, memory=UNLIMITED, pids=UNLIMITED),
            2,
            dict.fromkeys(("CPUQuotaPerSecUSec", "MemoryMax", "TasksMax"), 2**64 - 1),
        ),
        # Whole hundredths of a CPU are all that it keeps: rounded up, never down.
        (
            CgroupLimits(cpu_quota=12_345, cpu_period=50_000),
            2,
            {"CPUQuotaPeriodUSec": 50_000, "CPUQuotaPerSecUSec": 250_000},
        ),
    ],
)
def test_limits_are_properties_of_the_unit(
    limits: CgroupLimits, version: int, properties: dict[str, int]
) -> None:
    made = limit_properties(limits, version)
    assert {name: value for name, (_, value) in made} == properties
    assert {signature for _, (signature, _) in made} == {"t"}


# Over a real bus, with a systemd of few words on it.


@dataclass
class FakeSystemd:
    """Knows slices, runs its jobs at once, and says how each ended."""

    units: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    result: str = "done"
    refusal: str = ""  # the error that every request gets

    async def serve(
        self, address: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        from jeepney import DBusAddress, message_bus, new_error, new_method_return, new_signal
        from jeepney.io.trio import Proxy, open_dbus_connection

        manager = DBusAddress(
            "/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager"
        )
        async with await open_dbus_connection(address) as bus:
            async with bus.router() as router:
                await Proxy(message_bus, router).RequestName("org.freedesktop.systemd1")
            task_status.started()
            while True:
                message = await bus.receive()
                fields = {key.name: value for key, value in message.header.fields.items()}
                if "member" not in fields or fields["member"] == "NameAcquired":
                    continue
                error = self._do(fields["member"], message.body)
                if error:
                    await bus.send(new_error(message, error, "s", ("it is so",)))
                    continue
                job = f"/org/freedesktop/systemd1/job/{len(self.calls)}"
                is_job = fields["member"] != "SetUnitProperties"
                reply = ("o", (job,)) if is_job else (None, ())
                await bus.send(new_method_return(message, *reply))
                if is_job:
                    end = (len(self.calls), job, message.body[0], self.result)
                    await bus.send(new_signal(manager, "JobRemoved", "uoss", end))

    def _do(self, member: str, body: Any) -> str:
        unit = body[0]
        self.calls.append(f"{member} {unit}")
        if self.refusal:
            return self.refusal
        if member == "StopUnit":
            known = self.units.pop(unit, None)
            return "" if known is not None else "org.freedesktop.systemd1.NoSuchUnit"
        if member == "StartTransientUnit" and unit in self.units:
            return "org.freedesktop.systemd1.UnitExists"
        self.units.setdefault(unit, {}).update({n: value for n, (_, value) in body[2]})
        return ""


@asynccontextmanager
async def running(base: Path) -> AsyncIterator[tuple[FakeSystemd, str]]:
    """Run a bus of the test's own, with a fake systemd on it; yield it and the address."""
    pytest.importorskip("jeepney")
    program = shutil.which("dbus-daemon")
    if program is None:
        pytest.skip("no dbus-daemon here")
    address = f"unix:path={base}/bus"
    config = base / "bus.conf"
    config.write_text(
        f"<busconfig><listen>{address}</listen><policy context='default'>"
        "<allow user='*'/><allow own='*'/><allow send_destination='*'/>"
        "<allow eavesdrop='false'/></policy></busconfig>"
    )
    command = [program, f"--config-file={config}", "--nofork", "--print-address"]
    daemon = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    try:
        with trio.fail_after(60):
            await daemon.stdout.receive_some()  # it prints its address once it listens
        systemd = FakeSystemd()
        async with trio.open_nursery() as nursery:
            await nursery.start(systemd.serve, address)
            yield systemd, address
            nursery.cancel_scope.cancel()
    finally:
        daemon.kill()
        with trio.move_on_after(60, shield=True):
            await daemon.wait()
        await daemon.stdout.aclose()


async def test_systemd_makes_changes_and_forgets_slices(tmp_path: Path) -> None:
    async with running(tmp_path) as (systemd, address):
        host = record(tmp_path / "cgroup", PLACE)
        cgroups = CgroupTree(host, "systemd", inline_offload, units=SystemdBus(2, address))
        written = await cgroups.apply(POD, LIMITS)
        assert not written.failures
        assert systemd.units[UNIT]["CPUWeight"] == 20
        assert systemd.units[UNIT]["MemoryMax"] == 64 << 20
        assert systemd.units[UNIT]["DefaultDependencies"] is False
        # The files are written as well: what no property stands for, and on top of the rest.
        assert changed(tmp_path / "cgroup", PLACE)["cpu.max"] == "50000 100000"

        await cgroups.apply(POD, CgroupLimits(cpu_shares=1024))
        assert systemd.units[UNIT]["CPUWeight"] == 39
        assert systemd.units[UNIT]["MemoryMax"] == 64 << 20
        assert systemd.calls == [
            f"StartTransientUnit {UNIT}",
            f"StartTransientUnit {UNIT}",
            f"SetUnitProperties {UNIT}",
        ]
        await SystemdBus(2, address).stop_slice(UNIT)
        assert systemd.units == {}
        await SystemdBus(2, address).stop_slice(UNIT)  # it is gone: no error


async def test_a_slice_that_is_there_is_limited_as_a_unit_and_never_made(tmp_path: Path) -> None:
    # Such as /system.slice, held to systemReserved: files alone are lost at the next daemon-reload.
    async with running(tmp_path) as (systemd, address):
        host = record(tmp_path / "cgroup", "system.slice")
        cgroups = CgroupTree(host, "systemd", inline_offload, units=SystemdBus(2, address))
        systemd.units["system.slice"] = {}
        written = await cgroups.limit("/system.slice", LIMITS)
        assert not written.failures
        assert systemd.units["system.slice"]["MemoryMax"] == 64 << 20
        assert systemd.calls == ["SetUnitProperties system.slice"]
        assert changed(tmp_path / "cgroup", "system.slice")["memory.max"] == str(64 << 20)

        systemd.refusal = "org.freedesktop.DBus.Error.AccessDenied"
        (failure,) = (await cgroups.limit("/system.slice", LIMITS)).failures
        assert "SetUnitProperties of system.slice" in failure


async def test_a_job_that_fails_is_an_error_and_so_is_no_bus(tmp_path: Path) -> None:
    async with running(tmp_path) as (systemd, address):
        systemd.result = "failed"
        with pytest.raises(CgroupError, match="StartTransientUnit of kubepods"):
            await SystemdBus(2, address).start_slice("kubepods.slice", LIMITS)
    with pytest.raises(CgroupError, match="cannot ask over D-Bus"):
        await SystemdBus(2, address).start_slice("kubepods.slice", LIMITS)
    await SystemdBus(2, address).stop_slice("kubepods.slice")  # said in the log, no more


async def test_systemd_may_deny_what_is_not_ours(tmp_path: Path) -> None:
    async with running(tmp_path) as (systemd, address):
        systemd.refusal = "org.freedesktop.DBus.Error.AccessDenied"
        with pytest.raises(CgroupsDeniedError):
            await SystemdBus(2, address).start_slice(UNIT, LIMITS)


async def test_a_pods_slice_is_forgotten_with_its_cgroup(tmp_path: Path) -> None:
    async with running(tmp_path) as (systemd, address):
        (tmp_path / "cgroup" / PLACE).mkdir(parents=True)
        host = CgroupHost(2, {"": tmp_path / "cgroup"})
        cgroups = CgroupTree(host, "systemd", inline_offload, units=SystemdBus(2, address))
        systemd.units[UNIT] = {}
        assert await cgroups.list_pods() == {"5ba8"}
        await cgroups.remove(PodUid("5ba8"))
        assert systemd.units == {}
        assert await cgroups.list_pods() == frozenset()
