"""Create slices over D-Bus: the cgroups of the systemd driver.

A slice has the limits as its properties; otherwise systemd would overwrite ours at the next
daemon-reload. A limit without a property is written to the cgroup, as under the other
driver. Each request opens its own connection: requests are rare.

Properties and units are those of the Go kubelet's library
(github.com/opencontainers/cgroups, systemd/v1.go and v2.go).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from kubelet_trio.cgroups.errors import CgroupError, CgroupsDeniedError
from kubelet_trio.cgroups.limits import CgroupLimits, shares_to_weight
from kubelet_trio.model import get_logger

if TYPE_CHECKING:
    from jeepney import DBusAddress
    from jeepney.io.trio import DBusRouter

log = get_logger()

_LIMIT = 30.0  # seconds for a request, its job included
_INFINITY = 2**64 - 1
_PERIOD = 100_000  # microseconds: systemd's default
_EXISTS = "org.freedesktop.systemd1.UnitExists"
_NO_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
_DENIED = (
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
)

Property = tuple[str, tuple[str, Any]]  # name, D-Bus signature, value


def parent_slice(unit: str) -> str:
    """Return the parent of a slice, from its name: `a-b.slice` is in `a.slice`."""
    parts = unit.removesuffix(".slice").split("-")
    return "-".join(parts[:-1]) + ".slice" if len(parts) > 1 else "-.slice"


def limit_properties(limits: CgroupLimits, version: int) -> list[Property]:
    """Return limits as properties of a unit. Limits of huge pages have no property."""
    found: list[Property] = []
    if limits.cpu_shares is not None:
        if version == 2:
            found.append(("CPUWeight", ("t", shares_to_weight(limits.cpu_shares))))
        else:
            found.append(("CPUShares", ("t", limits.cpu_shares)))
    if limits.cpu_quota is not None:
        if limits.cpu_period not in (None, _PERIOD):  # systemd < 242 refuses the property
            found.append(("CPUQuotaPeriodUSec", ("t", limits.cpu_period)))
        found.append(("CPUQuotaPerSecUSec", ("t", _per_second(limits))))
    if limits.memory is not None:
        name = "MemoryMax" if version == 2 else "MemoryLimit"
        found.append((name, ("t", _INFINITY if limits.memory < 0 else limits.memory)))
    if limits.pids is not None:
        found.append(("TasksMax", ("t", _INFINITY if limits.pids < 0 else limits.pids)))
    for file, name in (("memory.min", "MemoryMin"), ("memory.low", "MemoryLow")):
        if version == 2 and file in limits.unified:
            found.append((name, ("t", int(limits.unified[file]))))
    return found


def slice_properties(unit: str, limits: CgroupLimits, version: int) -> list[Property]:
    """Return all properties of a new slice."""
    io = "IOAccounting" if version == 2 else "BlockIOAccounting"
    return [
        ("Description", ("s", f"pods of a Kubernetes node: {unit}")),
        ("Wants", ("as", [parent_slice(unit)])),
        ("MemoryAccounting", ("b", True)),
        ("CPUAccounting", ("b", True)),
        (io, ("b", True)),
        ("TasksAccounting", ("b", True)),
        ("DefaultDependencies", ("b", False)),
        *limit_properties(limits, version),
    ]


def _per_second(limits: CgroupLimits) -> int:
    """Return the CPU quota in microseconds per second."""
    assert limits.cpu_quota is not None
    if limits.cpu_quota <= 0:
        return _INFINITY
    # Rounded up to 10 ms, as in the Go library: systemd itself would round down.
    quota = limits.cpu_quota * 1_000_000 // (limits.cpu_period or _PERIOD)
    return -(-quota // 10_000) * 10_000


class SystemdBus:
    """The `SystemdUnits` of a systemd; `bus` is a D-Bus address, `SYSTEM` the machine's."""

    def __init__(self, version: int, bus: str = "SYSTEM") -> None:
        self._version = version
        self._bus = bus

    async def start_slice(self, unit: str, limits: CgroupLimits) -> None:
        """Create a slice with these limits, or limit an existing one.

        Raises `CgroupsDeniedError` if that is not permitted, else `CgroupError`.
        """
        await self._session(unit, partial(self._start, unit=unit, limits=limits))

    async def limit_slice(self, unit: str, limits: CgroupLimits) -> None:
        """Limit an existing slice, until the machine reboots. Raises as `start_slice`."""
        if properties := limit_properties(limits, self._version):
            await self._session(unit, partial(self._set, unit=unit, properties=properties))

    async def stop_slice(self, unit: str) -> None:
        """Stop a slice's unit. Ignores an unknown unit, and only logs other failures."""
        body = (unit, "replace")
        stop = partial(self._run_job, unit=unit, method="StopUnit", signature="ss", body=body)
        try:
            await self._session(unit, stop)
        except CgroupError as exc:
            log.warning("cgroups.stop_slice_failed", unit=unit, error=str(exc))

    async def _session(self, unit: str, work: Callable[[DBusRouter], Awaitable[object]]) -> None:
        """Run `work` with a new connection. Raises `CgroupError` only."""
        from jeepney.auth import AuthenticationError
        from jeepney.io.common import RouterClosed
        from jeepney.io.trio import open_dbus_router

        lost = (OSError, EOFError, trio.BrokenResourceError, RouterClosed, AuthenticationError)
        failure: BaseException | None = None
        try:
            with trio.fail_after(_LIMIT):
                async with open_dbus_router(self._bus) as router:
                    try:
                        await work(router)
                    except CgroupError as exc:
                        failure = exc  # the router's nursery would wrap it in a group
        except trio.TooSlowError as exc:
            raise CgroupError(f"systemd: {unit}: no answer within {_LIMIT:.0f} s") from exc
        except lost as exc:
            failure = exc
        except ExceptionGroup as group:
            if group.split(lost)[1] is not None:
                raise
            failure = group
        if isinstance(failure, CgroupError):
            raise failure
        if failure is not None:
            raise CgroupError(f"systemd: {unit}: cannot ask over D-Bus: {failure}") from failure

    async def _start(self, router: DBusRouter, *, unit: str, limits: CgroupLimits) -> None:
        made = slice_properties(unit, limits, self._version)
        is_new = await self._run_job(
            router,
            unit=unit,
            method="StartTransientUnit",
            signature="ssa(sv)a(sa(sv))",
            body=(unit, "replace", made, []),
        )
        changed = limit_properties(limits, self._version)
        if changed and not is_new:
            await self._set(router, unit=unit, properties=changed)

    async def _set(self, router: DBusRouter, *, unit: str, properties: list[Property]) -> None:
        # A cgroup that is no unit of systemd has its limits only in its files.
        with suppress(_MootError):
            await self._call(router, "SetUnitProperties", "sba(sv)", (unit, True, properties))

    async def _run_job(
        self, router: DBusRouter, *, unit: str, method: str, signature: str, body: tuple[Any, ...]
    ) -> bool:
        """Call a method that queues a job, and wait for its end; return False if it is moot.

        Raises `CgroupError`.
        """
        from jeepney import MatchRule, message_bus
        from jeepney.io.trio import Proxy

        rule = MatchRule(
            type="signal",
            interface="org.freedesktop.systemd1.Manager",
            member="JobRemoved",
            path="/org/freedesktop/systemd1",
        )
        async with router.filter(rule, bufsize=1000) as removed:
            # Subscribed before the call, because the job can end before its reply is read.
            await Proxy(message_bus, router).AddMatch(rule)
            try:
                (job,) = await self._call(router, method, signature, body)
            except _MootError:
                return False
            async for signal in removed:
                _, path, _, result = signal.body
                if path == job:
                    if result != "done":
                        raise CgroupError(f"systemd: {method} of {unit}: {result}")
                    return True
        raise CgroupError(f"systemd: {method} of {unit}: the bus went away")

    async def _call(
        self, router: DBusRouter, method: str, signature: str, body: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        from jeepney import DBusErrorResponse, new_method_call
        from jeepney.wrappers import unwrap_msg

        reply = await router.send_and_get_reply(
            new_method_call(_address(), method, signature, body)
        )
        try:
            return tuple(unwrap_msg(reply))
        except DBusErrorResponse as exc:
            if exc.name in (_EXISTS, _NO_UNIT):
                raise _MootError(exc.name) from exc
            kind = CgroupsDeniedError if exc.name in _DENIED else CgroupError
            raise kind(f"systemd: {method} of {body[0]}: {exc}") from exc


class _MootError(Exception):
    """The unit is already in the requested state."""


def _address() -> DBusAddress:
    from jeepney import DBusAddress

    return DBusAddress(
        "/org/freedesktop/systemd1",
        bus_name="org.freedesktop.systemd1",
        interface="org.freedesktop.systemd1.Manager",
    )
