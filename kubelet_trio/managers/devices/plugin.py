"""The calls of one device plugin, each with a deadline, and its answers checked.

The other end may hang, lie or die at any moment. Every call raises `DevicePluginError`, which says
in a pod's status or in the log which plugin did what.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from kubelet_trio.grpc import (
    Channel,
    GRPCError,
    Message,
    RawMessage,
    Status,
    UnaryStreamMethod,
    UnaryUnaryMethod,
    go_text,
)
from kubelet_trio.managers.devices.calls import PluginOptions
from kubelet_trio.managers.devices.generated import v1beta1
from kubelet_trio.managers.devices.generated.v1beta1.client import DevicePluginStub
from kubelet_trio.managers.devices.lists import DeviceListReader
from kubelet_trio.managers.devices.types import Device
from kubelet_trio.managers.shares import DevicePluginError

# Upstream limits only the last two of these.
OPTIONS_TIMEOUT = 10.0  # s
PREFERENCE_TIMEOUT = 30.0  # s
ALLOCATE_TIMEOUT = 120.0  # s; some plugins reset or program a device meanwhile
CONNECT_TIMEOUT = 10.0  # s, of dial in plugin/v1beta1/client.go
PRE_START_TIMEOUT = 30.0  # s: KubeletPreStartContainerRPCTimeoutInSecs

MOST_RECEIVED = 4 * 1024 * 1024  # bytes of a message: the default of grpc-go
MOST_RESPONSE = 256 * 1024  # bytes of an answer for one container, which goes into the checkpoint
_QUIET = 0.1  # s between two lists at least: a plugin may send them in a loop

_REDIAL = 0.2  # s; a plugin may register before it listens

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)
Dial = Callable[[str], Awaitable[trio.abc.Stream]]


@asynccontextmanager
async def open_plugin(resource: str, socket: str, dial: Dial) -> AsyncIterator[DevicePlugin]:
    """Connect to a plugin at its socket; the connection lasts for the block."""
    channel = Channel(
        partial(_connect, dial, socket),
        max_message_bytes=MOST_RECEIVED,
        connect_timeout=CONNECT_TIMEOUT,
    )
    async with trio.open_nursery() as connection:
        await connection.start(channel.run)
        yield DevicePlugin(resource, channel)
        connection.cancel_scope.cancel()


async def _connect(dial: Dial, socket: str) -> trio.abc.Stream:
    """Dial until the plugin listens; the channel limits the time. Raises OSError."""
    while True:
        try:
            return await dial(socket)
        except (FileNotFoundError, ConnectionRefusedError):
            await trio.sleep(_REDIAL)


class DevicePlugin:
    """One plugin behind a channel."""

    def __init__(self, resource: str, channel: Channel) -> None:
        self.resource = resource
        self._stub = DevicePluginStub(channel)
        self._lists = UnaryStreamMethod(
            channel, "/v1beta1.DevicePlugin/ListAndWatch", v1beta1.Empty, RawMessage
        )

    async def options(self) -> PluginOptions:
        """Return what the plugin wants to be asked: GetDevicePluginOptions."""
        answer = await self._call(
            "GetDevicePluginOptions",
            self._stub.get_device_plugin_options,
            v1beta1.Empty(),
            OPTIONS_TIMEOUT,
        )
        return PluginOptions(answer.pre_start_required, answer.get_preferred_allocation_available)

    async def watch(self, take: Callable[[Mapping[str, Device]], Awaitable[None]]) -> None:
        """Call `take` with each list of devices by ID; never returns: ListAndWatch.

        Raises `DevicePluginError` when the plugin ends the call, or dies.
        """
        reader, problem = DeviceListReader(), ""
        try:
            async with self._lists.open() as call:
                await call.send_message(v1beta1.Empty(), end=True)
                async for answer in call:
                    await take(await reader.read(answer))
                    await trio.sleep(_QUIET)
                problem = "the plugin has ended the call"
        except GRPCError as exc:
            problem = go_text(exc)
        except (ValueError, EOFError) as exc:
            problem = f"the list does not decode: {exc}"
        raise DevicePluginError(
            f"ListAndWatch ended unexpectedly for device plugin {self.resource}: {problem}"
        )

    async def preferred(
        self, available: Iterable[str], included: Iterable[str], count: int
    ) -> frozenset[str]:
        """Return the devices that the plugin prefers: GetPreferredAllocation.

        Args:
            available: the devices to choose from, with the included ones.
            included: those that are given to the container anyway.
            count: how many the container gets.

        They may be more or fewer, and others than available.
        """
        wanted = v1beta1.ContainerPreferredAllocationRequest(
            available_deviceIDs=list(available),
            must_include_deviceIDs=list(included),
            allocation_size=count,
        )
        request = v1beta1.PreferredAllocationRequest(container_requests=[wanted])
        try:
            answer = await self._call(
                "GetPreferredAllocation",
                self._stub.get_preferred_allocation,
                request,
                PREFERENCE_TIMEOUT,
            )
        except DevicePluginError as exc:
            raise DevicePluginError(
                f"device plugin GetPreferredAllocation rpc failed with err: {exc}"
            ) from exc
        return frozenset(
            name for each in answer.container_responses[:1] for name in each.device_i_ds
        )

    async def allocate(self, ids: Iterable[str]) -> bytes:
        """Return the encoded ContainerAllocateResponse for a container: Allocate."""
        wanted = v1beta1.ContainerAllocateRequest(devices_ids=list(ids))
        request = v1beta1.AllocateRequest(container_requests=[wanted])
        answer = await self._call("Allocate", self._stub.allocate, request, ALLOCATE_TIMEOUT)
        answers = answer.container_responses
        if not answers:
            raise DevicePluginError(
                f"no containers return in allocation response of device plugin {self.resource}"
            )
        if len(answers) > 1:
            raise DevicePluginError(
                f"device plugin {self.resource} answered Allocate of one container with "
                f"{len(answers)} container responses"
            )
        response = bytes(answers[0])
        if len(response) > MOST_RESPONSE:
            raise DevicePluginError(
                f"device plugin {self.resource} answered Allocate with {len(response)} bytes "
                f"for one container, expected {MOST_RESPONSE} at most"
            )
        return response

    async def pre_start(self, ids: Iterable[str]) -> None:
        """Let the plugin prepare devices before a container starts: PreStartContainer."""
        request = v1beta1.PreStartContainerRequest(devices_ids=list(ids))
        try:
            await self._call(
                "PreStartContainer", self._stub.pre_start_container, request, PRE_START_TIMEOUT
            )
        except DevicePluginError as exc:
            raise DevicePluginError(
                f"device plugin PreStartContainer rpc failed with err: {exc}"
            ) from exc

    async def _call(
        self,
        name: str,
        method: UnaryUnaryMethod[RequestT, ReplyT],
        request: RequestT,
        limit: float,
    ) -> ReplyT:
        try:
            return await method(request, timeout=limit)
        except GRPCError as exc:
            if exc.status is Status.DEADLINE_EXCEEDED:
                raise DevicePluginError(
                    f"device plugin {self.resource} did not answer {name} within {limit:g} s"
                ) from exc
            raise DevicePluginError(
                f"{name} of device plugin {self.resource}: {go_text(exc)}"
            ) from exc
