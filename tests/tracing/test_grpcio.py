"""Over the wire, with grpcio at the other end: receivers, and a runtime that is told the parent."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trio

from kubelet_trio.cri import (
    CallsInFlight,
    GuardedRuntime,
    RemoteRuntime,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.model import ContainerId, Meter, SystemClock
from kubelet_trio.supervision import Supervisor
from kubelet_trio.tracing import Tracing, TracingConfig, make_tracing, span
from tests.harness.otlp_grpcio import any_server, otlp_server
from tests.tracing.test_sender import DROPPED
from tests.tracing.traces import ALWAYS, RUNTIME, drawn, ended, tracer, trees


def tracing_to(endpoint: str) -> tuple[Tracing, Meter]:
    meter = Meter()
    config = TracingConfig("node", endpoint, ALWAYS, "1")
    return make_tracing(config, SystemClock(), meter), meter


async def run_and_stop(tracing: Tracing) -> None:
    """Run the child in its tree, make two spans, and end it."""
    tree = Supervisor("kubelet", [tracing.as_spec()])
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(tree.run)
            with tracing.active(), span("outer"), span("inner"):
                pass
            tree.stop()


@pytest.mark.parametrize("kind", ["tcp", "dns", "unix", "unix-abstract"])
async def test_a_receiver_on_grpcio_gets_the_spans(kind: str, tmp_path: Path) -> None:
    name = f"kubelet-trio-test-{tmp_path.name}-{tmp_path.parent.name}"
    address = {"unix": f"unix:{tmp_path}/o.sock", "unix-abstract": f"unix-abstract:{name}"}
    with otlp_server(address.get(kind, "127.0.0.1:0")) as server:
        endpoints = {
            "tcp": f"127.0.0.1:{server.port}",
            "dns": f"dns:///127.0.0.1:{server.port}",
            "unix": f"unix://{tmp_path}/o.sock",
            "unix-abstract": f"unix-abstract://{name}",
        }
        tracing, meter = tracing_to(endpoints[kind])
        await run_and_stop(tracing)
        inner, outer = server.spans
    assert (inner.name, outer.name) == ("inner", "outer")
    assert inner.parent_span_id == outer.span_id
    assert inner.trace_id == outer.trace_id
    (resource,) = server.resources
    assert resource["service.name"] == "kubelet"
    assert not list(meter.counters(DROPPED))


async def test_a_receiver_that_takes_a_part_is_believed() -> None:
    with otlp_server() as server:
        server.refuses = 1
        tracing, meter = tracing_to(f"127.0.0.1:{server.port}")
        await run_and_stop(tracing)
    assert dict(meter.counters(DROPPED)) == {("refused",): 1}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "agent_ended"),  # it would be tried again
        (grpc.StatusCode.INVALID_ARGUMENT, "failed"),
        (grpc.StatusCode.UNIMPLEMENTED, "failed"),
    ],
)
async def test_a_receiver_that_fails_harms_nothing(code: grpc.StatusCode, reason: str) -> None:
    with otlp_server() as server:
        server.fails = code
        tracing, meter = tracing_to(f"127.0.0.1:{server.port}")
        await run_and_stop(tracing)
    assert dict(meter.counters(DROPPED)) == {(reason,): 2}


async def test_no_receiver_harms_nothing(tmp_path: Path) -> None:
    tracing, meter = tracing_to(f"unix://{tmp_path}/nobody.sock")
    await run_and_stop(tracing)
    assert dict(meter.counters(DROPPED)) == {("agent_ended",): 2}


async def test_the_runtime_is_told_the_parent_and_its_status_is_recorded(tmp_path: Path) -> None:
    made, queue = tracer()
    answer = v1.RunPodSandboxResponse(pod_sandbox_id="s")
    answers = {
        f"/{RUNTIME}RunPodSandbox": bytes(answer),
        "/runtime.v1.ImageService/ListImages": bytes(v1.ListImagesResponse()),
    }
    with any_server(answers, f"unix:{tmp_path}/cri.sock") as asked:
        runtime, calls = RemoteRuntime(f"unix://{tmp_path}/cri.sock"), CallsInFlight()
        guarded = GuardedRuntime(runtime, calls, Meter())
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                with made.active():
                    await nursery.start(runtime.run)
                    await nursery.start(calls.run)
                    with span("sync"):
                        await guarded.run_pod_sandbox(v1.PodSandboxConfig())
                        await guarded.list_images()
                        with pytest.raises(UnsupportedCallError):
                            await guarded.start_container(ContainerId("c"))
                await guarded.list_images()  # not traced
                nursery.cancel_scope.cancel()
    (tree,) = trees(ended(queue))
    assert drawn(tree) == (
        "sync\n  RuntimeService/RunPodSandbox\n  ImageService/ListImages"
        "\n  RuntimeService/StartContainer"
    )
    run, images, start = tree.below
    assert run.attributes == {
        "rpc.system": "grpc",
        "rpc.service": "runtime.v1.RuntimeService",
        "rpc.method": "RunPodSandbox",
        "rpc.grpc.status_code": 0,
    }
    assert start.attributes["rpc.grpc.status_code"] == grpc.StatusCode.UNIMPLEMENTED.value[0]
    assert start.has_failed
    assert not images.has_failed
    told = {method: metadata.get("traceparent") for method, metadata in asked[:3]}
    for found in (run, images, start):
        context = found.span.context
        assert context is not None
        path = f"/{found.name}"
        assert told[path] == f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    assert "traceparent" not in asked[3][1]
