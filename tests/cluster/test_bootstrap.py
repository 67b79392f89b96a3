"""From a bootstrap token to a node's own certificate, at a real API server."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path

import trio
from lightkube.models.core_v1 import Node

from kubelet_trio.kube import bootstrap_kubeconfig, client_store, load_kubeconfig, open_client
from kubelet_trio.model import SystemClock, thread_offload
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN_ID, TOKEN_SECRET = "abcdef", "0123456789abcdef"


def allow_bootstrap(kube: KubeClient) -> None:
    """Make a token that may ask for a node's certificate, as kubeadm does."""
    data = {
        "token-id": TOKEN_ID,
        "token-secret": TOKEN_SECRET,
        "usage-bootstrap-authentication": "true",
    }
    secret = {
        "metadata": {"name": f"bootstrap-token-{TOKEN_ID}"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": data,
    }
    kube.ensure("/api/v1/namespaces/kube-system/secrets", secret)
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "test-bootstrap"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:bootstrappers"}],
    }
    kube.ensure(f"/apis/{group}/v1/clusterrolebindings", binding)


def sign_next(kube: KubeClient, plane: ControlPlane) -> bool:
    """Approve and sign a request that has no certificate, as two controllers would."""
    for found in kube.get(REQUESTS)["items"]:
        if found.get("status", {}).get("certificate"):
            continue
        path = f"{REQUESTS}/{found['metadata']['name']}"
        condition = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
        found["status"] = {"conditions": [condition]}
        approved = kube.replace(f"{path}/approval", found)
        request = base64.b64decode(found["spec"]["request"])
        signed = plane.authority.sign(request, datetime.timedelta(hours=1))
        approved["status"]["certificate"] = base64.b64encode(signed).decode()
        kube.replace(f"{path}/status", approved)
        return True
    return False


async def test_a_token_becomes_a_nodes_certificate(
    plane: ControlPlane, kube: KubeClient, tmp_path: Path
) -> None:
    allow_bootstrap(kube)
    first = plane.token_kubeconfig("bootstrap", f"{TOKEN_ID}.{TOKEN_SECRET}")
    kubeconfig, store = tmp_path / "kubelet.conf", client_store(tmp_path / "pki", thread_offload)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                bootstrap_kubeconfig, kubeconfig, first, store, "newcomer", SystemClock()
            )
            while not await trio.to_thread.run_sync(sign_next, kube, plane):  # noqa: ASYNC110
                await trio.sleep(0.2)  # the API server tells nobody here
        async with open_client(load_kubeconfig(kubeconfig)) as api:
            kube.ensure("/api/v1/nodes", {"metadata": {"name": "newcomer"}})
            node = await api.get(Node, "newcomer")
        assert node.metadata is not None
        assert node.metadata.name == "newcomer"
        # With a certificate that is valid nothing is asked for again.
        await bootstrap_kubeconfig(kubeconfig, first, store, "newcomer", SystemClock())
