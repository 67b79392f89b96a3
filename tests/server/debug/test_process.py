"""Profiles of this very process, read back by the rules of their format."""

from __future__ import annotations

import gzip
import signal
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.model import RecentLog, inline_offload, recent_log
from kubelet_trio.server import HttpError, Request, Response
from kubelet_trio.server.debug.process import Profiles, log_page, tasks_page
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
    amounts: dict[Stack, tuple[int, ...]] = field(default_factory=dict)

    @property
    def weights(self) -> dict[Stack, tuple[int, int]]:
        return {stack: (count, weight) for stack, (count, weight) in self.amounts.items()}


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
        values = packed(sample[2])
        found.amounts[tuple(places[number] for number in packed(sample[1]))] = tuple(values)
    return found


def decoded_any(data: bytes) -> dict[Stack, tuple[int, ...]]:
    return decoded(data).amounts


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
        ("heap", {"seconds": "301"}, 400),
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


async def test_the_heap_is_traced_for_as_long_as_asked_for(autojump_clock: MockClock) -> None:
    assert not tracemalloc.is_tracing()
    kept: list[bytes] = []
    found = b""

    async def look() -> None:
        nonlocal found
        _, found = await ask(Profiles(inline_offload), "heap", seconds="5")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.sleep(1)
        assert tracemalloc.is_tracing()
        with pytest.raises(HttpError, match="heap profiling already in use"):
            await ask(Profiles(inline_offload), "heap")
        kept += [bytes(1_000) for _ in range(1_000)]
    assert not tracemalloc.is_tracing()
    own = [w for stack, w in decoded(found).weights.items() if stack[0].file == __file__]
    assert max(size for _, size in own) >= 1_000 * len(kept)


def without_lines(code: CodeType) -> CodeType:
    """Return the code with each instruction of no line.

    Source: the format of locations, InternalDocs/code_objects.md of CPython: 8 code units at
    most an entry, and code 15 for no location.
    """
    units = len(code.co_code) // 2
    table = bytes(0x80 | 15 << 3 | min(8, units - at) - 1 for at in range(0, units, 8))
    return code.replace(co_linetable=table)


async def test_the_cpu_profile_sees_worker_threads() -> None:
    stop = threading.Event()

    def burn_in_a_thread() -> None:
        while not stop.is_set():
            burn_of_this_test()

    # Some instructions are of no line, and a sample may meet one: here all are.
    burn_in_a_thread.__code__ = without_lines(burn_in_a_thread.__code__)
    thread = threading.Thread(target=burn_in_a_thread)
    thread.start()
    try:
        _, found = await ask(Profiles(), "profile", seconds="1")
    finally:
        stop.set()
        thread.join()
    stacks = decoded(found).weights
    assert any(call.function.endswith("burn_in_a_thread") for stack in stacks for call in stack)


async def test_tasks_are_counted_by_what_they_do() -> None:
    async def waits_in_this_test() -> None:
        await trio.sleep_forever()

    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="a worker", daemon=True)
    thread.start()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(waits_in_this_test)
            await trio.testing.wait_all_tasks_blocked()
            _, found = await ask(Profiles(), "goroutine")
            _, text = await ask(Profiles(), "goroutine", debug="1")
            page = tasks_page(Request("GET", "", ())).body
            nursery.cancel_scope.cancel()
    finally:
        leave.set()
        thread.join()
    stacks = task_weights(found)
    [count] = [
        n for stack, n in stacks.items() if any("waits_in_this_test" in name for name in stack)
    ]
    assert count == 3
    assert any(stack[-1] == "thread a worker" for stack in stacks)
    for shown in (text, page):
        assert shown.count(b"waits_in_this_test:") == 3
        assert b"thread a worker:" in shown


def task_weights(data: bytes) -> dict[tuple[str, ...], int]:
    """Return the counts of a profile with one weight, by the names of the calls."""
    padded = decoded_any(data)
    return {tuple(call.function for call in stack): values[0] for stack, values in padded.items()}


def test_the_latest_log_entries_are_shown_by_level() -> None:
    recent_log.add("info", "a.first")
    recent_log.add("warning", "a.second")
    recent_log.add("info", "a.third")

    def page(**query: str) -> list[str]:
        return log_page(Request("GET", "", tuple(query.items()))).body.decode().splitlines()

    assert page(lines="3") == ["a.first", "a.second", "a.third"]
    assert page(lines="1", level="warning") == ["a.second"]
    for wrong in ({"level": "loud"}, {"lines": "few"}):
        with pytest.raises(HttpError) as caught:
            page(**wrong)
        assert caught.value.status == 400


def test_the_ring_of_entries_is_bounded() -> None:
    ring = RecentLog(entries=3)
    for number in range(5):
        ring.add("info", f"{number}" * 3000)
    assert [line[0] for line in ring.lines()] == ["2", "3", "4"]
    assert all(len(line) < 2100 for line in ring.lines())


async def test_the_index_names_what_there_is() -> None:
    _, text = await ask(Profiles(), "")
    assert [line.split()[0] for line in text.decode().splitlines()[2:]] == [
        "cmdline",
        "goroutine",
        "heap",
        "seconds=N,",
        "profile",
    ]
    assert (await ask(Profiles(), "symbol"))[1] == b"num_symbols: 0\n"
