"""The daemon traces a pod of the process runtime; what it needs for that is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.running import Daemon
from tests.harness.otlp_grpcio import OtlpServer, otlp_server

_WITHOUT_SDK = """
import sys
sys.modules["opentelemetry"] = None  # importing it fails, as if it was not installed
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import build_agent
try:
    build_agent(load_settings(sys.argv[1:]), {})
except ValueError as exc:
    print(exc)
"""


def configured(base: Path, endpoint: str) -> str:
    """Write a configuration that traces everything; return its flag."""
    path = base / "config.yaml"
    path.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        f"tracing: {{endpoint: '{endpoint}', samplingRatePerMillion: 1000000}}\n"
        f"healthzPort: 0\nenableServer: false\npodLogsDir: {base}/logs/pods\n"
    )
    return f"--config={path}"


def test_a_pods_start_and_the_last_spans_of_the_agent_arrive(tmp_path: Path) -> None:
    with otlp_server(f"unix:{tmp_path}/otlp.sock") as server:
        flag = configured(tmp_path, f"unix://{tmp_path}/otlp.sock")
        daemon = Daemon(tmp_path, flag, "--hostname-override=traced-node")
        try:
            daemon.write()
            daemon.eventually(lambda: has(server, "syncPod"))
        finally:
            daemon.process.terminate()
            daemon.process.wait(60)
    # `--remove-pods-on-exit`: only the flush at the very end brings these.
    assert has(server, "syncTerminatingPod")
    assert {resource["service.name"] for resource in server.resources} == {"kubelet"}
    assert {resource["host.name"] for resource in server.resources} == {"traced-node"}
    spans = {span.span_id: span for span in server.spans}
    run = next(s for s in server.spans if s.name.endswith("/RunPodSandbox"))
    create = spans[run.parent_span_id]
    assert create.name == "createPodSandbox"
    assert spans[create.parent_span_id].name == "syncPod"


def has(server: OtlpServer, name: str) -> bool:
    return any(span.name == name for span in server.spans)


def test_without_the_sdk_it_says_what_to_install(tmp_path: Path) -> None:
    arguments = [configured(tmp_path, "localhost:4317"), "--node-ip=127.0.0.1"]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SDK, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "tracing is configured and needs an optional package" in done.stdout
    assert "pip install 'kubelet-trio[tracing]'" in done.stdout


@pytest.mark.parametrize("endpoint", ["unix://", "dns:///"])
def test_an_endpoint_that_leads_nowhere_is_named(endpoint: str, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, configured(tmp_path, endpoint))
    try:
        assert daemon.process.wait(60) == 1
    finally:
        daemon.process.kill()
        daemon.process.wait()
    assert f"tracing.endpoint {endpoint}" in daemon.log.read_text()
