"""The agent as one file: it unpacks itself where nobody else can write, and is the agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.containerd import built
from tests.harness.manifests import forever
from tests.harness.pods import eventually


def run(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(built.python().program), str(built.one_file()), *arguments]
    environment = {**os.environ, "KUBELET_TRIO_PYZ_CACHE": str(cache)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_it_is_unpacked_once_for_its_user_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = run(cache, "pods", "--help")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("Usage: kubelet-trio pods")
    (home,) = cache.iterdir()
    assert home.stat().st_mode & 0o077 == 0
    made = home.stat().st_mtime_ns
    assert run(cache, "version").stdout.startswith("Client: 0.1.0")
    assert [one.stat().st_mtime_ns for one in cache.iterdir()] == [made]


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    refused = run(cache, "version")
    assert refused.returncode == 1
    assert "others may write to it" in refused.stderr
    assert list(cache.iterdir()) == []


def test_it_runs_an_agent_and_pods(brief_path: Path) -> None:
    manifests, root = brief_path / "manifests", brief_path / "root"
    manifests.mkdir()
    main = {"name": "main", "image": "host", "command": ["sh", "-c", forever()]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    (manifests / "one.yaml").write_text(json.dumps({**pod, "spec": {"containers": [main]}}))
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(manifests),
        "podLogsDir": str(brief_path / "logs"),
        "healthzPort": 0,
        "failSwapOn": False,
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
    }
    (brief_path / "kubelet.yaml").write_text(json.dumps(config))
    where = ["--config", str(brief_path / "kubelet.yaml"), "--root-dir", str(root)]
    flags = ["--container-runtime-endpoint=process", "--process-allow-root"]
    ends = ["--keep-kernel-settings", "--remove-pods-on-exit"]
    cache = brief_path / "cache"
    command = [str(built.python().program), str(built.one_file()), "run", *where, *flags, *ends]
    with (brief_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "KUBELET_TRIO_PYZ_CACHE": str(cache)},
            start_new_session=True,
        )
    try:
        eventually(lambda: "1/1" in run(cache, "--root-dir", str(root), "pods").stdout, within=60)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0, (brief_path / "agent.log").read_text()
