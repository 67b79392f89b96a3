"""Reads what an instance of a driver says of its devices: NodeWatchResources.

A task for each instance, which has nothing else to do: a driver that hangs or lies disturbs only
it. Loaded with the first plugin that registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import trio
from trio_util import AsyncValue

from kubelet_trio.grpc import (
    Channel,
    GRPCError,
    RawMessage,
    Status,
    StreamTerminatedError,
    UnaryStreamMethod,
    go_text,
)
from kubelet_trio.managers.claims.generated.v1 import (
    DeviceHealth,
    HealthStatus,
    NodeWatchResourcesRequest,
)
from kubelet_trio.managers.claims.health import (
    DEFAULT_TIMEOUT,
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    DeviceName,
    HealthBook,
    HealthFeed,
    HealthReport,
    Shown,
    bounded_message,
    next_expiry,
)
from kubelet_trio.managers.wire import list_entries
from kubelet_trio.model import Bell, get_logger, parse_message

log = get_logger()

RETRY = 5.0  # s between the end of a stream and the next, as upstream
_QUIET = 0.1  # s between two lists at least: a driver may send them in a loop
_AT_ONCE = 50  # entries between two checkpoints; each takes some 50 us
_STATUSES = {HealthStatus.HEALTHY: HEALTHY, HealthStatus.UNHEALTHY: UNHEALTHY}

Changed = Callable[[Mapping[DeviceName, Shown]], None]


class HealthWatch:
    """The stream of one instance, opened again and again."""

    def __init__(
        self, driver: str, service: str, channel: Channel, book: HealthBook, changed: Changed
    ) -> None:
        """Begin without a stream.

        Args:
            driver: its name.
            service: one of `services.HEALTH_SERVICES`; their messages are the same.
            channel: to the instance.
            book: takes the reports.
            changed: is called with devices whose health has changed.
        """
        self._driver = driver
        self._service = service
        self._connected: AsyncValue[bool] = channel.connected
        self._method = UnaryStreamMethod(
            channel, f"/{service}/NodeWatchResources", NodeWatchResourcesRequest, RawMessage
        )
        self._book = book
        self._changed = changed
        self._problem = ""  # the one in the log

    async def run(self) -> None:
        """Watch until cancelled. A driver without the service is asked again when it restarts."""
        while True:
            await self._connected.wait_value(True)
            problem, is_absent = await self._watch()
            if is_absent:
                log.info("dra.no_health", driver=self._driver, service=self._service)
                await self._connected.wait_value(False)
            elif problem != self._problem:
                self._problem = problem
                log.warning("dra.health_ended", driver=self._driver, error=problem)
            await trio.sleep(RETRY)

    async def _watch(self) -> tuple[str, bool]:
        """Read one stream; return why it ended, and whether the driver does not have it at all."""
        feed = self._book.open(self._driver)
        problem, is_absent = "the driver has ended the call", False
        try:
            await self._read(feed)
        except* GRPCError as group:
            problem, is_absent = _described(group)
        except* (ValueError, EOFError) as group:
            problem = f"the list does not decode, or is too long: {_first(group)}"
        finally:
            self._tell(self._book.close(feed, trio.current_time()))
        return problem, is_absent

    async def _read(self, feed: HealthFeed) -> None:
        """Take lists until the driver ends the call. Raises GRPCError, ValueError or EOFError."""
        heard = Bell()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire, feed, heard)
            async with self._method.open() as call:
                # Where the driver has ended the call already, `async for` raises its status.
                with suppress(StreamTerminatedError):
                    await call.send_message(NodeWatchResourcesRequest(), end=True)
                async for answer in call:
                    reports = await read_reports(answer)
                    self._problem = ""
                    self._tell(self._book.take(feed, reports, trio.current_time()))
                    heard.ring()
                    await trio.sleep(_QUIET)
            nursery.cancel_scope.cancel()

    async def _expire(self, feed: HealthFeed, heard: Bell) -> None:
        """Make devices unknown that the driver does not report in time."""
        while True:
            with trio.move_on_at(next_expiry(feed)) as waiting:
                await heard.wait_ring()
            if waiting.cancelled_caught:
                self._tell(self._book.expire(feed, trio.current_time()))

    def _tell(self, changes: Mapping[DeviceName, Shown]) -> None:
        if changes:
            self._changed(changes)


async def read_reports(data: bytes) -> list[HealthReport]:
    """Decode a NodeWatchResourcesResponse. Raises ValueError or EOFError if it is none."""
    found = []
    for number, entry in enumerate(list_entries(data), 1):
        if (report := _report(parse_message(DeviceHealth, entry))) is not None:
            found.append(report)
        if number % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    return found


def _report(message: DeviceHealth) -> HealthReport | None:
    """Return what a message says; None if it does not say of which device."""
    if message.device is None:
        return None
    timeout = message.health_check_timeout_seconds
    return HealthReport(
        DeviceName(message.device.pool_name, message.device.device_name),
        _STATUSES.get(message.health, UNKNOWN),
        bounded_message(message.message),
        float(timeout) if timeout > 0 else DEFAULT_TIMEOUT,
    )


def _described(group: BaseExceptionGroup[GRPCError]) -> tuple[str, bool]:
    """Return the text of a call's error, and whether the driver does not have the service."""
    found = _first(group)
    if not isinstance(found, GRPCError):
        return str(found), False
    return go_text(found), found.status is Status.UNIMPLEMENTED


def _first(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
