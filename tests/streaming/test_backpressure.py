"""Pings, which share a connection with what is sent over it."""

from __future__ import annotations

import socket

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.streaming.backpressure import Sending, send_ping

PING = b"ping"


async def full_pair() -> tuple[trio.SocketStream, trio.SocketStream, int]:
    """Return two ends of a connection, and how many bytes one has sent until it was full."""
    pair = socket.socketpair()
    pair[0].setblocking(False)
    sent = 0
    try:
        while True:
            sent += pair[0].send(bytes(1 << 16))
    except BlockingIOError:
        pass
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in pair)
    return ours, theirs, sent


async def read(stream: trio.SocketStream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += await stream.receive_some()
    return found


async def test_what_is_sent_while_a_ping_waits_for_room_follows_it() -> None:
    ours, theirs, sent = await full_pair()
    sending = Sending()

    async def send_more() -> None:
        async with sending:
            await ours.send_all(b"output")

    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(send_ping, ours, sending, PING)
        await wait_all_tasks_blocked()
        nursery.start_soon(send_more)
        await wait_all_tasks_blocked()
        assert (await read(theirs, sent + 10))[sent:] == PING + b"output"


async def test_a_ping_without_room_is_left_out_and_what_is_sent_then_is_not(
    autojump_clock: MockClock,
) -> None:
    ours, theirs, sent = await full_pair()
    sending = Sending()
    async with ours, theirs:
        await send_ping(ours, sending, PING)
        assert not sending.locked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, b"output")
            assert (await read(theirs, sent + 6))[sent:] == b"output"
