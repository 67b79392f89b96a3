"""Traces of a node with real containers, as a receiver on grpcio gets them."""

from __future__ import annotations

from pathlib import Path

from tests.containerd.conftest import MakeAgent
from tests.harness import container, forever, pod
from tests.harness.otlp_grpcio import otlp_server

STARTED = {"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox"}


def test_a_pods_life_is_traced_with_the_runtimes_answers(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    with otlp_server(f"unix:{tmp_path}/otlp.sock") as server:
        agent = make_agent(
            config={
                "tracing": {
                    "endpoint": f"unix://{tmp_path}/otlp.sock",
                    "samplingRatePerMillion": 1_000_000,
                }
            }
        )
        agent.start()
        agent.put(pod("traced", container("main", forever())))
        agent.wait_ready("traced")
        agent.drop("traced")
        agent.wait_gone("traced")
        agent.stop()
    spans = {span.span_id: span for span in server.spans}
    calls = {
        span.name.rpartition("/")[2]: span
        for span in server.spans
        if span.name.startswith("runtime.v1.RuntimeService/")
    }
    assert calls.keys() >= STARTED
    for name in STARTED:
        told = {a.key: a.value for a in calls[name].attributes}
        assert told["rpc.system"].string_value == "grpc"
        assert told["rpc.grpc.status_code"].int_value == 0
        # Down to a sync, all of the parents have arrived.
        span = calls[name]
        while span.parent_span_id:
            span = spans[span.parent_span_id]
        assert span.name in ("syncPod", "syncTerminatingPod")
        assert {a.key: a.value.string_value for a in span.attributes}["k8s.pod.name"].startswith(
            "traced"
        )
