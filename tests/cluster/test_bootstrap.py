"""Certificates through a real API server: from a bootstrap token to a node that renews its own."""

from __future__ import annotations

import base64
import datetime
import http.client
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from tests.harness import (
    Agent,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    pod,
)
from tests.harness.control_plane import ControlPlane, kubectl
from tests.harness.kube import KubeClient
from tests.harness.mixin import OF_A_CLUSTER, OF_A_NODE
from tests.harness.ports import free_port, host_ip
from tests.harness.prometheus import by_token, scraping

# Loopback is no node's address; packets to one's own stay on this machine all the same.
HOST = host_ip()
NODE = "newcomer"  # its own, as every module's that shares the server
POD = f"static-{NODE}"
NODE_PATH = f"/api/v1/nodes/{NODE}"
PODS = "/api/v1/namespaces/default/pods"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT, SERVING = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"
TOKEN_ID, TOKEN_SECRET = "abcdef", "0123456789abcdef"
RBAC = "rbac.authorization.k8s.io"


class Authority:
    """The two controllers that approve and sign the nodes' requests, done by hand."""

    def __init__(self, kube: KubeClient, plane: ControlPlane) -> None:
        self.kube, self.plane = kube, plane

    def waiting(self, signer: str, user: str) -> list[Json]:
        """Return the requests of a user that have no certificate, oldest first."""
        found = [
            request
            for request in self.kube.get(REQUESTS)["items"]
            if request["spec"]["signerName"] == signer
            and request["spec"]["username"] == user
            and not request.get("status", {}).get("certificate")
        ]
        return sorted(found, key=lambda r: str(r["metadata"]["creationTimestamp"]))

    def wait_request(self, signer: str, *users: str) -> Json:
        """Wait until one of the users has asked, and return the last request."""

        def found() -> list[Json]:
            return [request for user in users for request in self.waiting(signer, user)]

        eventually(found, 120, f"a request of {users} to {signer}")
        return found()[-1]

    def sign(self, request: Json, left: float = 3600, age: float = 300) -> bytes:
        """Approve and sign: a certificate that began `age` seconds ago and has `left` more."""
        path = f"{REQUESTS}/{request['metadata']['name']}"
        condition = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
        request["status"] = {"conditions": [condition]}
        approved = self.kube.replace(f"{path}/approval", request)
        signed = self.plane.authority.sign(
            base64.b64decode(request["spec"]["request"]),
            datetime.timedelta(seconds=left),
            datetime.timedelta(seconds=age),
        )
        approved["status"]["certificate"] = base64.b64encode(signed).decode()
        self.kube.replace(f"{path}/status", approved)
        return signed


@pytest.fixture(scope="module")
def authority(plane: ControlPlane, kube: KubeClient) -> Authority:
    return Authority(kube, plane)


@pytest.fixture(scope="module")
def first(plane: ControlPlane, kube: KubeClient) -> Path:
    """The kubeconfig of a token that may ask for a node's certificate, as kubeadm makes it."""
    secret = {
        "metadata": {"name": f"bootstrap-token-{TOKEN_ID}"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": TOKEN_ID,
            "token-secret": TOKEN_SECRET,
            "usage-bootstrap-authentication": "true",
        },
    }
    kube.ensure("/api/v1/namespaces/kube-system/secrets", secret)
    bind(kube, "test-bootstrap", "system:node-bootstrapper", "Group", "system:bootstrappers")
    return plane.token_kubeconfig("bootstrap", f"{TOKEN_ID}.{TOKEN_SECRET}")


def bind(kube: KubeClient, name: str, role: str, kind: str, subject: str) -> None:
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject}],
    }
    kube.ensure(f"/apis/{RBAC}/v1/clusterrolebindings", binding)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def agent(
    make_agent: Callable[..., Agent], plane: ControlPlane, first: Path, files: Path, port: int
) -> Agent:
    """An agent without a kubeconfig; not started."""
    config: dict[str, Any] = {
        "rotateCertificates": True,
        "serverTLSBootstrap": True,
        "address": HOST,
        "port": port,
        "authentication": {"x509": {"clientCAFile": str(plane.authority.certificate)}},
    }
    arguments = {
        "kubeconfig": str(files / "kubelet.conf"),
        "bootstrap-kubeconfig": str(first),
        "cert-dir": str(files / "pki"),
        "hostname-override": NODE,
        "node-ip": HOST,
    }
    flags = tuple(f"--{name}={value}" for name, value in arguments.items())
    return make_agent(config=config, arguments=flags)


@pytest.fixture(scope="module")
def running(agent: Agent, authority: Authority, kube: KubeClient) -> Iterator[Agent]:
    """The agent with its first certificate, and a pod."""
    agent.start()
    limits = {"limits": {"cpu": "200m", "memory": "64Mi"}}
    check = {"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 2}}
    scratch = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    main = container("main", forever("echo hello"), resources=limits, **check, **scratch)
    agent.put(pod("static", main, volumes=[{"name": "scratch", "emptyDir": {}}]))
    agent.wait_ready(POD)  # while the node is nobody yet
    request = authority.wait_request(CLIENT, f"system:bootstrap:{TOKEN_ID}")
    assert request["spec"]["usages"] == ["digital signature", "client auth"]
    assert kube.find(NODE_PATH) is None
    # Of its life more than nine tenths are over: it is renewed at once.
    authority.sign(request, age=36000)
    kube.wait(NODE_PATH, is_ready, within=120, what="Ready")
    yield agent
    agent.drop("static")
    kube.wait_gone(f"{PODS}/{POD}")
    kube.delete(NODE_PATH)


def subject_of(certificate: Path) -> str:
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    return found.subject.rfc4514_string()


def test_a_token_becomes_a_node(running: Agent, files: Path) -> None:
    written = yaml.safe_load((files / "kubelet.conf").read_text())
    current = str(files / "pki" / "kubelet-client-current.pem")
    assert written["users"][0]["user"] == {"client-certificate": current, "client-key": current}
    assert subject_of(Path(current)) == f"CN=system:node:{NODE},O=system:nodes"


def test_a_certificate_is_renewed_and_the_one_before_may_end(
    running: Agent, authority: Authority, kube: KubeClient, files: Path
) -> None:
    current = files / "pki" / "kubelet-client-current.pem"
    process, status = running.pid, container_status(running.pods()[POD], "main")
    node = f"system:node:{NODE}"
    signed = authority.sign(authority.wait_request(CLIENT, node), left=30, age=3600)
    # Should it have ended before the next was asked for, it is the token that asks.
    last = authority.sign(authority.wait_request(CLIENT, node, f"system:bootstrap:{TOKEN_ID}"))
    eventually(lambda: last.strip() in current.read_bytes(), 60, "the third certificate")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
    ended = x509.load_pem_x509_certificate(signed).not_valid_after_utc
    end = ended + datetime.timedelta(seconds=5)

    def is_renewed(found: Json) -> bool:
        return datetime.datetime.fromisoformat(found["spec"]["renewTime"]) > end

    kube.wait(lease, is_renewed, within=120, what="renewed with the new certificate")
    assert running.pid == process
    assert container_status(running.pods()[POD], "main") == status


def test_the_api_has_a_certificate_once_it_is_signed(
    running: Agent,
    authority: Authority,
    plane: ControlPlane,
    kube: KubeClient,
    port: int,
    files: Path,
) -> None:
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    admin = plane.authority.issue("reader", "reader", "system:masters")
    context.load_cert_chain(admin.certificate, admin.key)

    def get(path: str = "/pods") -> tuple[int, str]:
        connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def answers() -> bool:
        try:
            return get()[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    request = authority.wait_request(SERVING, f"system:node:{NODE}")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get()
    assert request["spec"]["usages"] == ["digital signature", "server auth"]
    # Nearly over, so that the next one is asked for at once.
    authority.sign(request, age=360000)
    eventually(answers, 60, "an answer to a client that checks certificate and name")
    second = authority.sign(authority.wait_request(SERVING, f"system:node:{NODE}"))
    current = files / "pki" / "kubelet-server-current.pem"
    eventually(lambda: second.strip() in current.read_bytes(), 60, "the second certificate")
    assert answers()
    page = get("/metrics")[1]
    for name in ("client_ttl_seconds", "server_ttl_seconds", "server_rotation_seconds_count"):
        assert f"\nkubelet_certificate_manager_{name} " in page
    # The API server checks it too.
    kube.wait(f"{PODS}/{POD}", is_ready, what="Ready")
    assert "hello" in kubectl(plane, "logs", POD)


def test_a_clusters_prometheus_has_data_for_every_panel(
    running: Agent, plane: ControlPlane, kube: KubeClient, port: int, tmp_path: Path
) -> None:
    """With the token and the rights of its service account, and the node's certificate checked."""
    account, accounts = "prometheus", "/api/v1/namespaces/default/serviceaccounts"
    kube.ensure(accounts, {"metadata": {"name": account}})
    rule = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    kube.ensure(f"/apis/{RBAC}/v1/clusterroles", {"metadata": {"name": account}, "rules": [rule]})
    binding = {
        "metadata": {"name": account},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": account},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": account}],
    }
    kube.ensure(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = tmp_path / "token"
    token.write_text(kube.create(f"{accounts}/{account}/token", request)["status"]["token"])
    access = by_token(token, plane.authority.certificate)
    with scraping(tmp_path, f"{HOST}:{port}", access, "1s") as prometheus:
        assert prometheus.missing((*OF_A_NODE, *OF_A_CLUSTER)) == []


def test_a_start_asks_for_nothing_that_the_node_has(
    running: Agent, authority: Authority, kube: KubeClient
) -> None:
    before = len(kube.get(REQUESTS)["items"])
    status = container_status(running.pods()[POD], "main")
    running.stop()
    running.start()
    running.wait_ready(POD)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
    old = kube.get(lease)["spec"]["renewTime"]
    kube.wait(lease, lambda found: found["spec"]["renewTime"] != old)
    assert container_status(running.pods()[POD], "main") == status
    assert len(kube.get(REQUESTS)["items"]) == before
