"""Probes of real containers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from kubelet_trio.probes.generated.grpc.health.v1 import HealthCheckRequest, HealthCheckResponse
from tests.harness import (
    Agent,
    CriClient,
    Json,
    condition,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)

SERVE = "mkdir /www; echo ok > /www/live; exec httpd -f -p 8080 -h /www"


def inside(cri: CriClient, name: str, *command: str) -> str:
    """Run a command in the main container of a pod."""
    return cri.run(live_containers(cri, f"{name}-node")["main"], *command)


def events(agent: Agent, name: str) -> str:
    return agent.cli("events", "--for", f"pod/{name}-node")


def remove(agent: Agent, name: str) -> None:
    agent.drop(name)
    agent.wait_gone(name)


def http(path: str, **fields: int) -> Json:
    return {"httpGet": {"path": path, "port": "web"}, "periodSeconds": 1, **fields}


def command(*words: str, **fields: int) -> Json:
    return {"exec": {"command": list(words)}, "periodSeconds": 1, **fields}


def test_http_probes_say_when_a_pod_is_ready_and_when_it_must_restart(
    agent: Agent, cri: CriClient
) -> None:
    web = container(
        "main",
        SERVE,
        ports=[{"name": "web", "containerPort": 8080}],
        readinessProbe=http("/ready", failureThreshold=1),
        livenessProbe=http("/live", failureThreshold=2),
    )
    agent.put(pod("web", web, terminationGracePeriodSeconds=2))
    agent.wait("web", lambda p: container_status(p, "main").get("started"), what="started")
    eventually(lambda: "Readiness probe failed" in events(agent, "web"))
    assert "Readiness probe failed: HTTP probe failed with statuscode: 404" in events(agent, "web")
    assert not is_ready(agent.pods()["web"])
    inside(cri, "web", "touch", "/www/ready")
    agent.wait_ready("web")
    inside(cri, "web", "rm", "/www/ready", "/www/live")
    agent.wait("web", lambda p: not is_ready(p), what="unready")
    agent.wait("web", lambda p: container_status(p, "main")["restartCount"] == 1, what="restarted")
    assert "Container main failed liveness probe, will be restarted" in events(agent, "web")
    remove(agent, "web")


def test_a_tcp_probe_asks_for_a_connection(agent: Agent, cri: CriClient) -> None:
    late = container(
        "main",
        "sleep 2; exec httpd -f -p 7000",
        readinessProbe={"tcpSocket": {"port": 7000}, "periodSeconds": 1},
    )
    agent.put(pod("tcp", late, terminationGracePeriodSeconds=1))
    agent.wait_ready("tcp")
    ip = agent.pods()["tcp"]["status"]["podIP"]
    assert f"dial tcp {ip}:7000: connect: connection refused" in events(agent, "tcp")
    remove(agent, "tcp")


def test_a_command_that_times_out_leaves_no_process_behind(agent: Agent, cri: CriClient) -> None:
    slow = container(
        "main",
        forever(),
        readinessProbe=command("sleep", "1001", timeoutSeconds=1),
        livenessProbe=command("sh", "-c", "sleep 1002; true", failureThreshold=1000),
    )
    agent.put(pod("slow", slow))
    said = 'command timed out: "sleep 1001" timed out after 1s'
    eventually(lambda: said in events(agent, "slow"))
    eventually(lambda: 'timed out: "sh -c sleep 1002; true"' in events(agent, "slow"))
    # Probes go on, so one of each may be there at any time; of four runs there would be more.
    eventually(lambda: asked(agent, "slow") > 4)
    running = inside(cri, "slow", "ps", "-o", "args")
    assert running.count("sleep 1001") <= 1, running
    assert sum(line == "sleep 1002" for line in running.splitlines()) <= 1, running
    remove(agent, "slow")


def asked(agent: Agent, name: str) -> int:
    """Return how often the readiness probe of a pod has failed."""
    items = agent.ask("/events")["items"]
    return max(
        (
            int(e.get("count") or 1)
            for e in items
            if e["involvedObject"]["name"] == f"{name}-node" and "Readiness" in e["message"]
        ),
        default=0,
    )


def test_a_startup_probe_gates_the_next_container_and_the_other_probes(
    agent: Agent, cri: CriClient
) -> None:
    side = container(
        "side",
        forever("sleep 2; touch /tmp/up"),
        restartPolicy="Always",
        startupProbe=command("test", "-e", "/tmp/up", failureThreshold=30),
    )
    agent.put(pod("gated", initContainers=[side]))
    waiting = agent.wait(
        "gated", lambda p: "running" in container_status(p, "side").get("state", {}), what="running"
    )
    assert container_status(waiting, "side")["started"] is False
    assert condition(waiting, "Initialized") == "False"
    ready = agent.wait_ready("gated")
    assert container_status(ready, "side")["started"] is True
    remove(agent, "gated")


@contextlib.contextmanager
def health_server() -> Iterator[tuple[int, list[int]]]:
    """Serve grpc.health.v1 with grpcio: the port, and the status to answer with."""
    status = [2]  # NOT_SERVING

    def check(request: HealthCheckRequest, _context: object) -> HealthCheckResponse:
        assert request.service == "shop"
        return HealthCheckResponse.parse(bytes([0x08, status[0]]))

    handlers = {
        "Check": grpc.unary_unary_rpc_method_handler(
            check, HealthCheckRequest.parse, HealthCheckResponse.__bytes__
        )
    }
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),)
    )
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    try:
        yield port, status
    finally:
        server.stop(None)


def test_a_grpc_probe_asks_for_a_services_health(agent: Agent) -> None:
    with health_server() as (port, status):
        asks = {"grpc": {"port": port, "service": "shop"}, "periodSeconds": 1}
        main = container("main", forever(), readinessProbe=asks)
        agent.put(pod("grpc", main, hostNetwork=True))
        said = 'service unhealthy (responded with "NOT_SERVING")'
        eventually(lambda: said in events(agent, "grpc"))
        status[0] = 1  # SERVING
        agent.wait_ready("grpc")
        remove(agent, "grpc")


def test_readiness_does_not_flip_when_the_agent_is_killed(agent: Agent) -> None:
    probe = {**command("true"), "periodSeconds": 5}
    agent.put(pod("kept", container("main", forever(), readinessProbe=probe)))
    agent.wait_ready("kept")

    def told(kept: Json) -> Json:
        # The start time of a static pod is of the agent that runs.
        return {name: value for name, value in kept["status"].items() if name != "startTime"}

    before = told(agent.pods()["kept"])
    agent.kill()
    agent.start()
    assert told(agent.wait_ready("kept")) == before
    # Long enough for a probe to have run again.
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        assert told(agent.pods()["kept"]) == before
        time.sleep(0.1)
    remove(agent, "kept")
