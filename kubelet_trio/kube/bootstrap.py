"""`--bootstrap-kubeconfig`: from a token that may ask for a certificate to a kubeconfig.

Blocks until the node has its certificate, as the Go kubelet does: without one it is nobody.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import structlog
import trio
import yaml

from kubelet_trio.kube.api import KubeError, KubeUnavailableError
from kubelet_trio.kube.certificates import (
    CLIENT_SIGNER,
    CertificateError,
    CertificateStore,
    Wanted,
    sign,
)
from kubelet_trio.kube.client import open_client
from kubelet_trio.kube.kubeconfig import KubeconfigError, load_kubeconfig
from kubelet_trio.kube.limits import Backoff
from kubelet_trio.model import Offload, WallClock

log = structlog.get_logger(__name__)


def client_store(cert_dir: Path, offload: Offload) -> CertificateStore:
    """Return the files of the node's client certificate."""
    return CertificateStore(cert_dir.absolute(), "kubelet-client", offload)


def client_wanted(node: str) -> Wanted:
    """Return the certificate that makes a client a node."""
    return Wanted(CLIENT_SIGNER, f"system:node:{node}")


async def bootstrap_kubeconfig(
    kubeconfig: Path, first: Path, store: CertificateStore, node: str, clock: WallClock
) -> None:
    """See that there is a kubeconfig with a valid certificate, got with the one named `first`.

    Raises `KubeconfigError` and OSError for files that cannot be read or written.
    """
    if await _is_usable(kubeconfig, store, clock):
        return
    log.info("bootstrap.begun", kubeconfig=str(kubeconfig), using=str(first))
    config = await store.offload(load_kubeconfig, first)
    backoff = Backoff(first=2.0, cap=60.0)
    async with open_client(config) as api:
        while True:
            try:
                pem = await sign(api, client_wanted(node))
                break
            except (CertificateError, KubeError, KubeUnavailableError) as exc:
                log.error("bootstrap.failed", error=str(exc))
            await trio.sleep(backoff.next_delay(trio.current_time()))
    await store.put(pem, clock.time())
    await store.offload(_write_kubeconfig, kubeconfig, first, store.current)
    log.info("bootstrap.done", kubeconfig=str(kubeconfig))


async def _is_usable(kubeconfig: Path, store: CertificateStore, clock: WallClock) -> bool:
    try:
        config = await store.offload(load_kubeconfig, kubeconfig)
    except KubeconfigError as exc:
        if not isinstance(exc.__cause__, FileNotFoundError):
            log.warning("bootstrap.kubeconfig_unusable", error=str(exc))
        return False
    if config.certificate.file != store.current:
        return True  # somebody else's to keep
    validity = await store.validity()
    return validity is not None and clock.time() < validity.not_after


def _write_kubeconfig(path: Path, first: Path, certificate: Path) -> None:
    """Write the same cluster, with the certificate for a user."""
    document = yaml.safe_load(first.read_text())
    contexts = {entry["name"]: entry["context"] for entry in document["contexts"]}
    clusters = {entry["name"]: entry["cluster"] for entry in document["clusters"]}
    cluster: dict[str, Any] = dict(clusters[contexts[document["current-context"]]["cluster"]])
    if authority := cluster.get("certificate-authority"):
        cluster["certificate-authority"] = str(first.absolute().parent / authority)
    user = {"client-certificate": str(certificate), "client-key": str(certificate)}
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": user}],
        "contexts": [
            {
                "name": "default-context",
                "context": {"cluster": "default-cluster", "user": "default-auth"},
            }
        ],
        "current-context": "default-context",
    }
    draft = path.with_name(f".{path.name}.tmp")
    draft.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
        yaml.safe_dump(written, out)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
