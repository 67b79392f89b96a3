"""Who gets at the kubelet API of a node, as a real API server reviews tokens and accesses."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable

import pytest

from tests.harness import Agent, container, eventually, forever, is_ready, pod
from tests.harness.control_plane import ControlPlane, kubectl
from tests.harness.kube import KubeClient
from tests.harness.ports import free_port, host_ip

# Loopback is no node's address; packets to one's own stay on this machine all the same.
HOST = host_ip()
NODE = "guarded"  # its own, as every module's that shares the server
NODE_PATH = f"/api/v1/nodes/{NODE}"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def agent(
    plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent], port: int
) -> Agent:
    """A node that asks the API server about everybody."""
    serving = plane.authority.issue("guarded-serving", NODE, hosts=(HOST,))
    config = {
        "address": HOST,
        "port": port,
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {"x509": {"clientCAFile": str(plane.authority.certificate)}},
        # A "no" is not to outlive the test's next question.
        "authorization": {"webhook": {"cacheUnauthorizedTTL": "100ms"}},
    }
    arguments = (
        *("--kubeconfig", str(plane.node_kubeconfig(NODE))),
        *("--hostname-override", NODE, "--node-ip", HOST),
    )
    agent = make_agent(config=config, arguments=arguments)
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    return agent


@pytest.fixture(scope="module")
def context(plane: ControlPlane, agent: Agent) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(plane.authority.certificate))


Ask = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def ask(context: ssl.SSLContext, port: int) -> Ask:
    """Ask for a path, with a token or without; return status and body."""

    def ask(path: str, token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=60)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    return ask


def account_token(kube: KubeClient, name: str) -> str:
    """Make a service account and return a token of it."""
    kube.ensure(ACCOUNTS, {"metadata": {"name": name}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = kube.create(f"{ACCOUNTS}/{name}/token", request)["status"]["token"]
    return token


def test_an_account_may_what_its_role_says(agent: Agent, kube: KubeClient, ask: Ask) -> None:
    token = account_token(kube, "scraper")
    status, body = ask("/metrics", token)
    assert status == 403
    user = "system:serviceaccount:default:scraper"
    assert body.startswith(
        f"Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[metrics"
    )
    rule = {"apiGroups": [""], "resources": ["nodes/metrics", "nodes/stats"], "verbs": ["get"]}
    kube.ensure(f"/apis/{RBAC}/v1/clusterroles", {"metadata": {"name": "scraper"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "scraper"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "scraper"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "scraper"}],
    }
    kube.ensure(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
    eventually(lambda: ask("/metrics", token)[0] == 200, 60, "let in by the new role")
    assert f'kubelet_node_name{{node="{NODE}"}} 1' in ask("/metrics", token)[1]
    for path in ("/metrics/resource", "/metrics/cadvisor", "/metrics/probes"):
        assert ask(path, token)[0] == 200
    status, body = ask("/stats/summary", token)
    assert status == 200
    assert json.loads(body)["node"]["nodeName"] == NODE
    for path in ("/pods", "/configz", "/containerLogs/default/a/b", "/logs/"):
        assert ask(path, token)[0] == 403


def test_a_token_of_nobody_is_refused_everywhere(ask: Ask) -> None:
    for path in ("/metrics", "/healthz", "/pods", "/nothing/of/the/kind"):
        assert ask(path, "garbage") == (401, "Unauthorized")
        assert ask(path) == (401, "Unauthorized")


def test_the_token_of_a_deleted_account_is_refused(kube: KubeClient, ask: Ask) -> None:
    token = account_token(kube, "short-lived")
    kube.delete(f"{ACCOUNTS}/short-lived")
    kube.wait_gone(f"{ACCOUNTS}/short-lived")
    # Nobody had shown it before, so neither side remembers that it was good.
    assert ask("/metrics", token) == (401, "Unauthorized")


def test_the_api_server_is_known_by_its_certificate(
    agent: Agent, kube: KubeClient, plane: ControlPlane
) -> None:
    web = pod("logged", container("main", forever("echo hello")), nodeName=NODE)
    path = "/api/v1/namespaces/default/pods"
    kube.create(path, web)
    kube.wait(f"{path}/logged", is_ready, what="Ready")
    assert "hello" in kubectl(plane, "logs", "logged")
    assert "hello" in kubectl(plane, "exec", "logged", "--", "echo", "hello")
    summary = json.loads(kubectl(plane, "get", "--raw", f"{NODE_PATH}/proxy/stats/summary"))
    assert "logged" in {found["podRef"]["name"] for found in summary["pods"]}
    kube.delete(f"{path}/logged", gracePeriodSeconds=0)
