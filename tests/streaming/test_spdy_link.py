"""What has come on a stream, and in which pieces it is handed out."""

from __future__ import annotations

from contextlib import suppress

import trio
from trio.abc import ReceiveStream
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.streaming import SpdyLink, spdy
from kubelet_trio.streaming.spdy_link import SpdyStream


def opened() -> SpdyStream:
    return SpdyStream(SpdyLink(memory_stream_pair()[0], is_client=True), 1, {})


async def test_what_waits_is_handed_out_at_once_in_its_order_and_within_a_bound() -> None:
    stream = opened()
    for piece in (b"one", b"two", b"three", b"four"):
        await stream.put([piece])
    stream.end_input()
    assert await stream.receive_some() == b"one"
    assert await stream.receive_parts(4) == [b"two", b"three"]
    assert await stream.receive_parts(100) == [b"four"]
    assert await stream.receive_parts(100) == []
    assert await stream.receive_some() == b""


async def test_a_peer_that_is_faster_than_the_reader_waits_and_nothing_is_lost() -> None:
    stream, pieces, found = opened(), [b"%d;" % number for number in range(200)], b""

    async def fill() -> None:
        for piece in pieces:
            await stream.put([piece])
        stream.end_input()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill)
        while parts := await stream.receive_parts(10):
            found += b"".join(parts)
    assert found == b"".join(pieces)


async def test_streams_that_are_opened_and_reset_are_not_kept() -> None:
    ours, theirs = memory_stream_pair()
    link = SpdyLink(ours, is_client=False)
    wire = spdy.SpdyWire(is_client=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        nursery.start_soon(_read_all, theirs)
        with suppress(trio.BrokenResourceError):
            for _ in range(5_000):
                stream_id, frame = wire.open({"streamtype": "data"})
                reset = spdy.reset(stream_id, spdy.ResetStatus.CANCEL)
                await theirs.send_all(frame + reset)
                await wait_all_tasks_blocked()
                if link.ended.is_set():
                    break
        assert link.ended.is_set()  # long before the last
        assert link.offered.statistics().current_buffer_used <= 512
        nursery.cancel_scope.cancel()


async def _read_all(stream: ReceiveStream) -> None:
    async for _ in stream:
        pass
