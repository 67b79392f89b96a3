"""A `grpc` probe: one Check of grpc.health.v1.Health, without TLS.

Every problem is a failed finding, no error. Texts are upstream's.
"""

from __future__ import annotations

import trio

from kubelet_trio.durations import format_duration
from kubelet_trio.handlers import (
    Connection,
    DialError,
    Wire,
    connect,
    join_host_port,
    quoted,
    user_agent,
)
from kubelet_trio.probes.state import Finding

_REDIAL = 0.2  # s
# An answer has some 200 bytes. The limit ends floods of frames, such as PINGs that we must answer.
_MOST_RECEIVED = 64 * 1024


async def check_grpc(host: str, port: int, service: str, timeout_seconds: int) -> Finding:
    """Query the health of a service on a server ("": of the server itself)."""
    address, within = join_host_port(host, port), format_duration(timeout_seconds)
    deadline = trio.current_time() + timeout_seconds
    connection: Connection | None = None
    with trio.move_on_at(deadline):
        connection = await _dial(host, port)
    if connection is None:
        text = f"failed to connect service {quoted(address)} within {within}"
        return Finding(False, f"timeout: {text}: context deadline exceeded")
    with trio.move_on_at(deadline):
        return await _ask(connection, service, within)
    return _late(within)


def _late(within: str) -> Finding:
    return Finding(False, f"timeout: health rpc did not complete within {within}")


async def _dial(host: str, port: int) -> Connection:
    # As upstream's client, dial until the timeout: a server that does not listen is a timeout.
    while True:
        try:
            return await connect(host, port)
        except DialError:
            await trio.sleep(_REDIAL)


class _BoundedWire(Wire):
    """A stream that breaks once the container has sent more than any answer needs."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._left = _MOST_RECEIVED

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await super().receive_some(max_bytes)
        self._left -= len(data)
        if self._left < 0:
            raise trio.BrokenResourceError(f"the server sent more than {_MOST_RECEIVED} bytes")
        return data


async def _ask(connection: Connection, service: str, within: str) -> Finding:
    # Imported here: only nodes with such a probe need HTTP/2 and the messages.
    from kubelet_trio.grpc import GRPCError, Status, go_text, open_channel
    from kubelet_trio.probes.generated.grpc.health.v1 import (
        HealthCheckRequest,
        HealthCheckResponseServingStatus,
    )
    from kubelet_trio.probes.generated.grpc.health.v1.client import HealthStub

    async def dialed() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return _BoundedWire(connection)

    failure: GRPCError | None = None
    status = HealthCheckResponseServingStatus.UNKNOWN
    try:
        async with open_channel(dialed, user_agent=user_agent("probe")) as channel:
            try:
                status = (await HealthStub(channel).check(HealthCheckRequest(service))).status
            except GRPCError as exc:  # here, since the channel's nursery would wrap it in a group
                failure = exc
    finally:
        connection.finish()
    if failure is not None and failure.status is Status.UNIMPLEMENTED:
        protocol = "the grpc health protocol (grpc.health.v1.Health)"
        text = f"error: this server does not implement {protocol}: {failure.message or ''}"
        return Finding(False, text)
    if failure is not None and failure.status is Status.DEADLINE_EXCEEDED:
        return _late(within)  # also if the deadline is one of the server's own
    if failure is not None:
        return Finding(False, f"error: health rpc probe failed: {go_text(failure)}")
    if status is not HealthCheckResponseServingStatus.SERVING:
        # A status of a later version of the protocol has no name: its number, as in Go.
        name = status.name or str(int(status))
        return Finding(False, f"service unhealthy (responded with {quoted(name)})")
    return Finding(True, "service healthy")
