"""What is recorded: parents, sampling, failures, and only the failures of what is tentative."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode
from trio.testing import MockClock

from kubelet_trio.model import Meter, SystemClock
from kubelet_trio.tracing import (
    Attributes,
    SpanKind,
    current_span,
    server_span,
    span,
    tentative_span,
    trace_headers,
)
from kubelet_trio.tracing.queue import SpanQueue
from kubelet_trio.tracing.tracer import Tracer
from tests.tracing.traces import ALWAYS, ended, tracer, trees

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}


async def test_a_span_has_its_times_kind_and_attributes(autojump_clock: MockClock) -> None:
    made, queue = tracer()

    def describe(name: str) -> Attributes:
        return {"name": name}

    with made.active(), span("outer", "x", describe, SpanKind.CLIENT) as opened:
        await trio.sleep(1.5)
        opened.set("code", 7)
        opened.rename("other")
    (found,) = ended(queue)
    assert (found.name, found.kind.name, found.parent) == ("other", "CLIENT", None)
    assert dict(found.attributes or {}) == {"name": "x", "code": 7}
    assert (found.end_time or 0) - (found.start_time or 0) == pytest.approx(1.5e9, abs=1e3)
    assert found.resource.attributes["service.name"] == "kubelet"
    assert found.resource.attributes["host.name"] == "node"
    assert found.resource.attributes["service.instance.id"] == "node"


async def test_spans_nest_and_siblings_do_not() -> None:
    made, queue = tracer()
    with made.active():
        with span("a"):
            with span("b"), span("c"):
                pass
            with span("d"):
                pass
        with span("e"):
            pass
    found = [list(tree.lines()) for tree in trees(ended(queue))]
    assert found == [["a", "  b", "    c", "  d"], ["e"]]


@pytest.mark.parametrize(
    ("rate", "headers", "is_sampled"),
    [
        (0, {}, False),
        (1_000_000, {}, True),
        # The caller decides, whatever the rate.
        (0, SAMPLED, True),
        (1_000_000, UNSAMPLED, False),
        # No W3C Trace Context: as if there was none.
        (0, {"traceparent": f"00-{TRACE}-{PARENT}"}, False),
        (0, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}, False),
        (0, {"traceparent": f"ff-{TRACE}-{PARENT}-01"}, False),
        (0, {"traceparent": "\x00"}, False),
    ],
)
async def test_the_caller_samples_and_else_the_rate(
    rate: int, headers: Mapping[str, str], is_sampled: bool
) -> None:
    made, queue = tracer(rate)
    with made.active(), server_span("served", headers):
        with span("below"):
            told = dict(trace_headers())["traceparent"].split("-")
    assert len(ended(queue)) == (2 if is_sampled else 0)
    # What is called is told the decision, also if it is not to be sampled.
    assert int(told[3], 16) & 1 == is_sampled
    if headers in (SAMPLED, UNSAMPLED):
        assert told[1] == TRACE


async def test_a_served_request_continues_its_callers_span() -> None:
    made, queue = tracer(0)
    with made.active(), span("not sampled"):
        with server_span("served", {**SAMPLED, "tracestate": "vendor=1"}):
            headers = dict(trace_headers())
    (found,) = ended(queue)
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == PARENT
    assert found.parent.is_remote
    assert found.context is not None
    assert headers["traceparent"] == f"00-{TRACE}-{found.context.span_id:016x}-01"
    assert headers["tracestate"] == "vendor=1"


@pytest.mark.parametrize("state", ["a=\xff", "b=\x00", "é=1", "c", ",", "d=" + "x" * 300])
async def test_a_malformed_tracestate_is_not_passed_on(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, queue = tracer(0)
    with made.active(), server_span("served", {**SAMPLED, "tracestate": state}):
        headers = trace_headers()
    assert [name for name, _ in headers] == ["traceparent"]
    assert len(ended(queue)) == 1
    assert caplog.records == []


async def test_a_part_of_a_million_traces_is_sampled() -> None:
    made, queue = tracer(500_000, capacity=10_000)
    with made.active():
        for _ in range(2000):
            with span("a"):
                pass
    assert 700 < len(queue) < 1300  # 12 standard deviations


@pytest.mark.parametrize(
    ("leave", "status", "description"),
    [
        (lambda _: None, StatusCode.UNSET, None),
        (lambda s: s.fail("broken"), StatusCode.ERROR, "broken"),
    ],
)
async def test_a_span_says_whether_it_failed(
    leave: Callable[[object], None], status: StatusCode, description: str | None
) -> None:
    made, queue = tracer()
    with made.active(), span("a") as opened:
        leave(opened)
    (found,) = ended(queue)
    assert (found.status.status_code, found.status.description) == (status, description)


async def test_an_exception_fails_its_span_once_and_is_an_event_of_it() -> None:
    made, queue = tracer()

    def fail() -> None:
        current_span().fail("own words")
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"), made.active(), span("a"):
        fail()
    (found,) = ended(queue)
    assert found.status.description == "own words"
    (event,) = found.events
    assert event.name == "exception"
    assert dict(event.attributes or {}) == {
        "exception.type": "ValueError",
        "exception.message": "bad",
    }


async def test_an_expected_exception_does_not_fail_it() -> None:
    made, queue = tracer()
    error = ValueError("bad")

    def fail() -> None:
        current_span().expect(error)
        raise error

    with pytest.raises(ValueError, match="bad"), made.active(), span("a"):
        fail()
    assert ended(queue)[0].status.status_code is StatusCode.UNSET


async def test_a_cancellation_is_no_failure(autojump_clock: MockClock) -> None:
    made, queue = tracer()
    with made.active(), trio.move_on_after(1), span("a"):
        await trio.sleep_forever()
    (found,) = ended(queue)
    assert found.status.status_code is StatusCode.UNSET
    assert dict(found.attributes or {}) == {"kubelet_trio.cancelled": True}


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_tentative_span_is_exported_with_all_below_it_or_not_at_all(
    is_kept: bool,
) -> None:
    made, queue = tracer()
    with made.active(), span("around"):
        with tentative_span("probe") as opened:
            with span("call"):
                pass
            with span("other"):
                if is_kept:
                    opened.keep()
    probes = [list(tree.lines()) for tree in trees(ended(queue)) if tree.name != "around"]
    # A trace of its own: the span around it may not be exported.
    assert probes == ([["probe", "  call", "  other"]] if is_kept else [])


async def test_what_outlasts_a_kept_tentative_span_is_exported(
    autojump_clock: MockClock,
) -> None:
    made, queue = tracer()

    async def late() -> None:
        with span("late"):
            await trio.sleep(10)

    async with trio.open_nursery() as nursery:
        with made.active(), tentative_span("probe") as opened:
            nursery.start_soon(late)
            await trio.sleep(1)
            opened.keep()
        await trio.sleep(1)
    (tree,) = trees(ended(queue))
    assert list(tree.lines()) == ["probe", "  late"]


@given(st.lists(st.booleans(), max_size=20))
def test_tentative_traces_do_not_mix(kept: list[bool]) -> None:
    queue = SpanQueue(Meter())
    made = Tracer("node", ALWAYS, "1", SystemClock(), queue)
    with made.active():
        for index, is_kept in enumerate(kept):
            with tentative_span(f"p{index}") as probe, span(f"c{index}"):
                if is_kept:
                    probe.keep()
    names = {found.name for found in ended(queue)}
    assert names == {f"{kind}{i}" for i, is_kept in enumerate(kept) if is_kept for kind in "pc"}


async def test_one_agents_spans_are_not_the_others() -> None:
    (first, mine), (second, others) = tracer(), tracer()
    with first.active(), span("a"):
        with second.active():
            with span("b"):
                pass
        current_span().set("x", 1)
    assert [found.name for found in ended(mine)] == ["a"]
    assert [found.name for found in ended(others)] == ["b"]
    assert ended(others)[0].parent is None
