"""A node that reboots while its real API server is away, and what happens when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import (
    Agent,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    leftovers,
    pod,
)
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient

NODE = "edge"  # its own, as every module's that shares the server
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
# It runs on only where all that it was given is there.
CHECK = (
    f'test "$A" = s3cret && test "$(cat /config/b)" = 1 && test -s {TOKEN} '
    '&& test -n "$KUBERNETES_SERVICE_HOST" || exit 1\n'
)


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent]) -> Agent:
    kubeconfig = str(plane.node_kubeconfig(NODE))
    arguments = ("--kubeconfig", kubeconfig, "--hostname-override", NODE)
    return make_agent(arguments=arguments, config={"offlinePods": True})


def demanding(name: str) -> Json:
    """Return a pod that uses one of everything that the API server has."""
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "a"}}}]
    mounts = [{"name": "config", "mountPath": "/config"}]
    volumes = [{"name": "config", "configMap": {"name": "config"}}]
    main = container("main", CHECK + forever(), env=env, volumeMounts=mounts)
    return pod(name, main, nodeName=NODE, volumes=volumes)


def reboot(agent: Agent) -> None:
    """Take from a machine whose agent has stopped what its reboot would."""
    with CriClient(agent.containerd.socket) as cri:
        cri.remove_all()
    leftovers.unmount_under(agent.base)


def kept(agent: Agent, kind: str) -> list[Path]:
    return list((agent.root / "offline").glob(f"{kind}-*.json"))


def runs_anew(before: Json) -> Callable[[Json], bool]:
    """Return whether a pod runs in another container than before."""
    first = container_status(before, "main")["containerID"]

    def check(found: Json) -> bool:
        status = container_status(found, "main")
        return "running" in status.get("state", {}) and status["containerID"] != first

    return check


@pytest.mark.parametrize("trouble", ["stopped", "hanging"])
def test_a_node_that_reboots_cut_off_runs_its_pods_until_the_server_says_otherwise(
    agent: Agent, plane: ControlPlane, kube: KubeClient, namespace: str, trouble: str
) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    kube.create(f"{base}/secrets", {"metadata": {"name": "secret"}, "stringData": {"a": "s3cret"}})
    kube.create(f"{base}/configmaps", {"metadata": {"name": "config"}, "data": {"b": "1"}})
    if not agent.is_running:
        agent.start()
    names = ("stays", "goes")
    for name in names:
        kube.create(f"{base}/pods", demanding(name))
    before = {n: kube.wait(f"{base}/pods/{n}", is_ready, what="Ready") for n in names}
    eventually(lambda: len(kept(agent, "tokens")) == 2 and kept(agent, "services"), what="on disk")
    eventually(lambda: len(kept(agent, "pod")) == 2 and kept(agent, "secret"), what="on disk")
    agent.stop()
    kube.delete(f"{base}/pods/goes", gracePeriodSeconds=0)
    (plane.stop_server if trouble == "stopped" else plane.hang_server)()
    try:
        reboot(agent)
        agent.start()
        found = {n: agent.wait(n, runs_anew(before[n]), 120, "running anew") for n in names}
        assert "2 pods run as last known" in agent.cli("status")
    finally:
        (plane.start_server if trouble == "stopped" else plane.resume_server)()
    agent.wait_gone("goes", 120)
    after = kube.wait(
        f"{base}/pods/stays",
        lambda p: is_ready(p) and runs_anew(before["stays"])(p),
        120,
        "Ready as it was started offline",
    )
    one, other = (container_status(p, "main") for p in (found["stays"], after))
    assert one["containerID"] == other["containerID"]
    assert one["restartCount"] == other["restartCount"]
    kube.delete(f"{base}/pods/stays", gracePeriodSeconds=1)
    kube.wait_gone(f"{base}/pods/stays")
    eventually(lambda: not kept(agent, "secret") and not kept(agent, "tokens"), what="forgotten")
