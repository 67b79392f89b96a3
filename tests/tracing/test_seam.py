"""Without tracing a span costs next to nothing, and nothing is loaded for it."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from kubelet_trio.tracing import (
    NO_SPAN,
    Attributes,
    current_span,
    seam,
    server_span,
    span,
    tentative_span,
    trace_headers,
)


def describe(_: object) -> Attributes:
    raise AssertionError("nobody records the span")


def test_without_tracing_every_span_is_the_same_one_that_does_nothing() -> None:
    with span("a", object(), describe) as opened:
        assert opened is NO_SPAN
        opened.set("key", 1)
        opened.fail("broken")
        assert span("b") is tentative_span("c", object(), describe) is NO_SPAN
        assert server_span("d", {"traceparent": "00-"}) is current_span() is NO_SPAN
        assert trace_headers() == ()


def test_without_tracing_a_span_allocates_nothing() -> None:
    about = object()

    def work() -> None:
        for _ in range(1000):
            with span("a", about, describe) as opened:
                opened.set("key", "value")

    work()
    tracemalloc.start()
    try:
        work()
        mine = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, seam.__file__), tracemalloc.Filter(True, __file__)]
        )
    finally:
        tracemalloc.stop()
    # The frames of the last round, perhaps: nothing that grows with the rounds.
    assert sum(stat.count for stat in mine.statistics("filename")) < 10


def test_an_exception_passes_through_it() -> None:
    with pytest.raises(KeyError, match="b"), span("a"):
        raise KeyError("b")


def test_tracing_starts_no_thread_and_loads_no_exporter_of_others() -> None:
    script = (
        "import sys, threading\n"
        "from kubelet_trio.model import Meter, SystemClock\n"
        "from kubelet_trio.tracing import TracingConfig, make_tracing\n"
        "make_tracing(TracingConfig('node'), SystemClock(), Meter())\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "opentelemetry.sdk.trace" in loaded
    assert not {"grpc", "google.protobuf", "requests", "_ssl", "asyncio.events"} & loaded
    assert not {name for name in loaded if name.startswith("opentelemetry.exporter")}
