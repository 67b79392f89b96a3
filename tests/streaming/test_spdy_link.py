"""What has come on a stream, and in which pieces it is handed out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby, pairwise
from operator import itemgetter

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.abc import HalfCloseableStream, ReceiveStream
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.streaming import SpdyLink, spdy
from kubelet_trio.streaming.spdy_link import Run, SpdyStream


def opened() -> SpdyStream:
    return SpdyStream(SpdyLink(memory_stream_pair()[0], is_client=True), 1, {})


async def test_what_waits_is_handed_out_in_its_order_a_read_at_a_time() -> None:
    stream = opened()
    reads: list[list[spdy.Content]] = [[b"one"], [b"two", b"three"], [b"four"]]
    for parts in reads:
        await stream.put(parts)
    stream.end_input()
    assert await stream.receive_some() == b"one"
    assert await stream.receive_some() == b"twothree"
    assert await stream.receive_some() == b"four"
    assert await stream.receive_some() == b""


async def test_a_peer_that_is_faster_than_the_reader_waits_and_nothing_is_lost() -> None:
    stream, pieces, found = opened(), [b"%d;" % number for number in range(200)], b""

    async def fill() -> None:
        for piece in pieces:
            await stream.put([piece])
        stream.end_input()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill)
        while content := await stream.receive_some():
            found += content
    assert found == b"".join(pieces)


class Peer(HalfCloseableStream):
    """What a peer has sent, in the reads in which it comes; it takes whatever it is sent."""

    def __init__(self, reads: Iterable[bytes]) -> None:
        self._reads = iter(reads)
        self.taken = 0  # reads

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if data := next(self._reads, b""):
            self.taken += 1
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


Said = list[tuple[str, bytes]]  # names of streams, and what comes on them


async def delivered(names: str, said: Said, cuts: list[int]) -> list[Said]:
    """Return what a link delivers at a time when `said` comes on streams, cut into reads."""
    found: list[Said] = []
    server = spdy.SpdyWire(is_client=False)
    ids = {name: 1 + 2 * index for index, name in enumerate(names)}
    accepted = b"".join(server.reply(stream_id) for stream_id in ids.values())
    frames = b"".join(spdy.data(ids[name], content) for name, content in said)
    ends = b"".join(spdy.data(stream_id, b"", is_last=True) for stream_id in ids.values())
    sent = frames + ends
    places = [0, *sorted(cut % len(sent) for cut in cuts), len(sent)]
    peer = Peer([accepted, *(sent[a:b] for a, b in pairwise(places) if a < b)])
    link = SpdyLink(peer, is_client=True)

    async def take(runs: list[Run]) -> None:
        before = peer.taken
        found.append([(s.headers["name"], b"".join(contents)) for s, contents in runs])
        await trio.lowlevel.checkpoint()
        assert peer.taken == before  # nothing is read meanwhile
        assert not any(stream.input_ended.is_set() for stream, _ in runs)

    async def open_stream(name: str) -> None:
        stream = await link.open({"name": name}, take)
        await stream.input_ended.wait()
        assert await stream.receive_some() == b""

    async with trio.open_nursery() as nursery:
        for name in names:  # the first steps of tasks come in any order
            nursery.start_soon(open_stream, name)
            await wait_all_tasks_blocked()
        await link.run()
    return found


def runs_of(said: Iterable[tuple[str, bytes]]) -> Said:
    """Join what follows each other on one stream."""
    return [
        (name, b"".join(content for _, content in found))
        for name, found in groupby(said, itemgetter(0))
    ]


_SAID = st.lists(st.tuples(st.sampled_from("xyz"), st.binary(min_size=1, max_size=20)), max_size=80)


@given(_SAID, st.lists(st.integers(0, 1 << 16), max_size=12))
def test_what_is_delivered_is_all_in_the_peers_order(said: Said, cuts: list[int]) -> None:
    found = trio.run(delivered, "xyz", said, cuts)
    assert runs_of(run for runs in found for run in runs) == runs_of(said)
    for runs in found:
        assert runs_of(runs) == runs  # no stream twice in a row


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([], []),
        ([("x", b"1"), ("x", b"2")], [[("x", b"12")]]),
        (
            [("x", b"1"), ("y", b"2"), ("y", b"3"), ("x", b"4")],
            [[("x", b"1"), ("y", b"23"), ("x", b"4")]],
        ),
        ([("x", b"1")] * 130, [[("x", b"1" * 63)], [("x", b"1" * 64)], [("x", b"1" * 3)]]),
    ],
    ids=["nothing", "one stream", "two streams", "more frames than a turn has"],
)
async def test_what_one_read_brings_is_delivered_in_one_go(said: Said, found: list[Said]) -> None:
    assert await delivered("xy", said, []) == found


async def test_what_came_before_a_broken_frame_is_not_lost() -> None:
    found: list[bytes] = []

    async def take(runs: list[Run]) -> None:
        await trio.lowlevel.checkpoint()
        found.extend(b"".join(contents) for _, contents in runs)

    accepted = spdy.SpdyWire(is_client=False).reply(1)
    link = SpdyLink(
        Peer([accepted, spdy.data(1, b"whole"), b"\x80\x02" + bytes(6)]), is_client=True
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        stream = await link.open({}, take)
        await stream.input_ended.wait()
    assert (found, stream.was_reset) == ([b"whole"], True)


async def test_what_comes_on_no_stream_is_dropped() -> None:
    """A peer's frames for streams that there are not, also 0, are in no memory of ours."""
    client = spdy.SpdyWire(is_client=True)
    stream_id, opening = client.open({"name": "one"})
    said = spdy.data(stream_id, b"its own;")
    nobody = spdy.data(0, b"nobody's;" * 100) + spdy.data(7, b"nobody's;" * 100)
    link = SpdyLink(
        Peer(
            [nobody, opening + said, nobody, said + nobody, spdy.data(stream_id, b"", is_last=True)]
        ),
        is_client=False,
    )
    await link.run()
    stream = await link.offered.receive()
    found = b""
    while content := await stream.receive_some():
        found += content
    assert found == b"its own;its own;"


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
