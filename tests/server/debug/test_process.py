"""Profiles of this very process, read back by the rules of their format."""

from __future__ import annotations

import gzip
import signal
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.server import HttpError, Request, Response
from kubelet_trio.server.debug.process import Profiles
from kubelet_trio.server.debug.sampling import Stack, StackCall, collapsed, encoded, sampling_cpu

CPU = (("samples", "count"), ("cpu", "nanoseconds"))


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            assert tag & 7 == 0
            yield tag >> 3, value


def packed(data: bytes | int) -> list[int]:
    assert isinstance(data, bytes)
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


@dataclass
class Profile:
    """A profile as `go tool pprof` would read it."""

    units: list[tuple[str, str]] = field(default_factory=list)
    weights: dict[Stack, tuple[int, int]] = field(default_factory=dict)


def decoded(data: bytes) -> Profile:
    parts: dict[int, list[bytes]] = defaultdict(list)
    for number, value in fields(gzip.decompress(data)):
        if isinstance(value, bytes):
            parts[number].append(value)
    texts = [text.decode() for text in parts[6]]

    def message(data: bytes) -> dict[int, int | bytes]:
        return dict(fields(data))

    def text(value: int | bytes) -> str:
        assert isinstance(value, int)
        return texts[value]

    functions = {m[1]: (text(m[2]), text(m[4])) for m in map(message, parts[5])}
    places: dict[int | bytes, StackCall] = {}
    for place in map(message, parts[4]):
        line = message(place[4])  # type: ignore[arg-type]
        name, file = functions[line[1]]
        at = line[2]
        assert isinstance(at, int)
        places[place[1]] = StackCall(name, file, at)
    found = Profile([(text(m[1]), text(m[2])) for m in map(message, parts[1])])
    for sample in map(message, parts[2]):
        count, weight = packed(sample[2])
        found.weights[tuple(places[number] for number in packed(sample[1]))] = (count, weight)
    return found


_CALLS = st.builds(
    StackCall,
    st.text("ab.<>\u00e9", max_size=3),
    st.text("a/", max_size=2),
    st.integers(0, 1 << 20),
)
_AMOUNTS = st.integers(0, 1 << 60)


@given(
    st.dictionaries(
        st.lists(_CALLS, min_size=1, max_size=4).map(tuple), st.tuples(_AMOUNTS, _AMOUNTS)
    )
)
def test_a_profile_is_read_back_as_it_was(weights: dict[Stack, tuple[int, int]]) -> None:
    profile = decoded(encoded(weights, CPU, 1.0))
    assert profile.weights == weights
    assert profile.units == list(CPU)


def test_the_text_is_a_stack_a_line() -> None:
    stack = (StackCall("inner", "f", 1), StackCall("outer", "f", 2))
    assert collapsed({stack: (1, 500)}) == b"outer;inner 500\n"


async def ask(profiles: Profiles, name: str, **query: str) -> tuple[Response, bytes]:
    body = bytearray()

    async def send(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        body.extend(data)

    arguments = tuple(query.items())
    answer = await profiles(Request("GET", "", arguments, params={"name": name}))
    if answer.stream is not None:
        await answer.stream(send)
    return answer, bytes(body) or answer.body


def burn_of_this_test() -> int:
    return sum(number * number for number in range(20_000))


async def test_the_cpu_profile_names_what_keeps_the_loop_busy() -> None:
    profiles, found = Profiles(), b""

    async def look() -> None:
        nonlocal found
        _, found = await ask(profiles, "profile", seconds="1")
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        while True:
            burn_of_this_test()
            await trio.lowlevel.checkpoint()
    profile = decoded(found)
    named = [
        weight
        for stack, weight in profile.weights.items()
        if any(call.function == "burn_of_this_test" for call in stack)
    ]
    assert named
    assert all(count > 0 and spent > 0 for count, spent in profile.weights.values())


async def test_a_loop_that_waits_weighs_nothing(autojump_clock: MockClock) -> None:
    _, text = await ask(Profiles(), "profile", seconds="200", debug="1")
    assert sum(int(line.rpartition(b" ")[2]) for line in text.splitlines()) < 10**9


async def test_after_a_profile_a_late_signal_ends_nothing() -> None:
    with sampling_cpu() as found:
        pass
    signal.raise_signal(signal.SIGPROF)
    assert found == {}


def test_in_another_thread_there_is_none() -> None:
    refused: list[int] = []

    async def main() -> None:
        with pytest.raises(HttpError) as caught:
            await ask(Profiles(), "profile")
        refused.append(caught.value.status)

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    thread.join()
    assert refused == [501]


async def test_one_profile_at_a_time_and_a_client_that_goes_ends_it() -> None:
    profiles = Profiles()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ask(profiles, "profile", seconds="300"))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(HttpError, match="already in use"):
            await ask(profiles, "profile")
        nursery.cancel_scope.cancel()
    _, found = await ask(profiles, "profile", seconds="1")
    assert decoded(found).units == list(CPU)


@pytest.mark.parametrize(
    ("name", "query", "status"),
    [
        ("profile", {"seconds": "301"}, 400),
        ("trace", {}, 501),
        ("block", {}, 404),
        ("heap", {}, 501),
    ],
)
async def test_what_there_is_not_is_refused_by_name(
    name: str, query: dict[str, str], status: int
) -> None:
    assert not tracemalloc.is_tracing()
    with pytest.raises(HttpError) as caught:
        await ask(Profiles(), name, **query)
    assert caught.value.status == status


async def test_the_heap_is_shown_where_it_is_traced() -> None:
    tracemalloc.start(5)
    try:
        kept = [bytes(1_000) for _ in range(1_000)]
        answer, found = await ask(Profiles(), "heap")
    finally:
        tracemalloc.stop()
    profile = decoded(found)
    assert profile.units == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    own = [w for stack, w in profile.weights.items() if stack[0].file == __file__]
    assert max(size for _, size in own) >= 1_000 * len(kept)
    assert ("Content-Disposition", 'attachment; filename="heap"') in answer.headers


async def test_the_index_names_what_there_is() -> None:
    _, text = await ask(Profiles(), "")
    assert [line.split()[0] for line in text.decode().splitlines()[2:]] == [
        "cmdline",
        "goroutine",
        "heap",
        "profile",
    ]
    assert (await ask(Profiles(), "symbol"))[1] == b"num_symbols: 0\n"
