"""The node's identity at the API server: its kubeconfig, and the certificates issued to it.

A kubeconfig with a valid certificate is used as it is. Without one, `--bootstrap-kubeconfig` has
the credentials to request a certificate, and the kubeconfig is written when it has been issued: the
same cluster, with `<cert-dir>/kubelet-client-current.pem` as user. With `rotateCertificates` that
file takes precedence over the kubeconfig's credentials once it exists.

Source: bootstrap.go in pkg/kubelet/certificate/bootstrap, buildKubeletClientConfig in
cmd/kubelet/app/server.go.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kubelet_trio.kube.certificates import (
    CLIENT_SIGNER,
    Certificate,
    CertificateRequest,
    CertificateStore,
    describe,
)
from kubelet_trio.kube.credentials import read_material
from kubelet_trio.kube.errors import CertificateError, CredentialsError, KubeconfigError
from kubelet_trio.kube.kubeconfig import ClientConfig, DataOrFile, load_kubeconfig
from kubelet_trio.model import Offload, WallClock, get_logger, write_aside

log = get_logger()


def client_store(cert_dir: Path, offload: Offload) -> CertificateStore:
    """Return the files of the node's client certificate."""
    return CertificateStore(cert_dir.absolute(), "kubelet-client", offload)


def client_request(node: str) -> CertificateRequest:
    """Return the client certificate to request for a node."""
    return CertificateRequest(CLIENT_SIGNER, f"system:node:{node}")


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """How to reach the API server, and the state of the client certificate."""

    config: ClientConfig
    store: CertificateStore
    held: Certificate | None = None
    first: Path | None = None  # --bootstrap-kubeconfig
    is_missing: bool = False  # there is no certificate yet: requests must wait for it
    is_initial: bool = False  # it is the kubeconfig's inline certificate, to be renewed at once


async def client_access(
    kubeconfig: Path,
    store: CertificateStore,
    clock: WallClock,
    *,
    first: Path | None = None,
    rotate: bool = False,
) -> ClientAccess:
    """Determine how to reach the API server, without a request to it.

    Raises:
        KubeconfigError: a kubeconfig cannot be used.
        OSError: a file cannot be written.
    """
    if first is not None and not await _is_usable(kubeconfig, store, clock):
        config = _as_node(await store.offload(load_kubeconfig, first), kubeconfig, store)
        held = await store.held()
        if held is not None and clock.time() < held.not_after:
            await store.offload(write_kubeconfig, kubeconfig, config, store.current)
            return ClientAccess(config, store, held, first)
        log.info("bootstrap.begun", kubeconfig=str(kubeconfig), using=str(first))
        return ClientAccess(config, store, None, first, is_missing=True)
    config = await store.offload(load_kubeconfig, kubeconfig)
    if not rotate:
        return ClientAccess(config, store, first=first)
    return await _rotating(ClientAccess(config, store, first=first), clock)


async def _rotating(access: ClientAccess, clock: WallClock) -> ClientAccess:
    """Prefer the store's certificate to the kubeconfig's, unless it has expired.

    As in the Go kubelet, an expired one is replaced by the kubeconfig's, and an inline one is
    renewed at once.
    """
    config, store = access.config, access.store
    held, is_initial = await store.held(), False
    if held is None or clock.time() >= held.not_after:
        own = await _own_certificate(config, store)
        if own is not None and clock.time() < own.not_after:
            is_initial = config.certificate.file is None
            # Files in the kubeconfig may be renewed by another program: they stay in use.
            if is_initial or held is not None:
                pem = await store.offload(_pair, config)
                await store.put(pem, clock.time())
            held = own
    issued = replace(config, issued=store.current)
    return replace(access, config=issued, held=held, is_initial=is_initial)


async def _own_certificate(config: ClientConfig, store: CertificateStore) -> Certificate | None:
    """Return the certificate of a kubeconfig; None if it has none that can be used."""
    if not config.certificate:
        log.info("bootstrap.no_certificate", kubeconfig=config.origin)
        return None
    try:
        material = await store.offload(read_material, config)
        return await describe(store.make, material.certificate, material.key)
    except (CredentialsError, CertificateError) as exc:
        log.warning("bootstrap.kubeconfig_unusable", kubeconfig=config.origin, error=str(exc))
        return None


def _pair(config: ClientConfig) -> str:
    material = read_material(config)
    return f"{material.certificate.decode().rstrip()}\n{material.key.decode()}"


async def _is_usable(kubeconfig: Path, store: CertificateStore, clock: WallClock) -> bool:
    """Return whether a kubeconfig has a valid certificate.

    Raises `KubeconfigError` if it exists and cannot be read.
    """
    try:
        config = await store.offload(load_kubeconfig, kubeconfig)
    except KubeconfigError as exc:
        # A missing file is the ordinary first start; one that cannot be read is a fault to fix.
        if isinstance(exc.__cause__, FileNotFoundError):
            return False
        if isinstance(exc.__cause__, OSError):
            raise
        log.warning("bootstrap.kubeconfig_unusable", error=str(exc))
        return False
    found = await _own_certificate(config, store)
    if found is not None and found.ends <= clock.time():
        ended = "the client certificate, or one of its chain, has expired"
        log.warning("bootstrap.kubeconfig_unusable", kubeconfig=str(kubeconfig), error=ended)
        return False
    return found is not None


def _as_node(first: ClientConfig, kubeconfig: Path, store: CertificateStore) -> ClientConfig:
    """Return the same cluster for the user who will have the store's certificate."""
    return replace(
        first,
        origin=str(kubeconfig),
        certificate=DataOrFile(),
        key=DataOrFile(),
        issued=store.current,
        token="",
        token_file=None,
        username="",
        password="",
        exec_plugin=None,
        impersonate=(),
    )


def write_kubeconfig(path: Path, config: ClientConfig, certificate: Path) -> None:
    """Write a kubeconfig of the same cluster, with the certificate for a user. Blocks.

    In one step, readable to root alone. Raises OSError.
    """
    user = {"client-certificate": str(certificate), "client-key": str(certificate)}
    context = {"cluster": "default-cluster", "user": "default-auth"}
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": _cluster(config)}],
        "users": [{"name": "default-auth", "user": user}],
        "contexts": [{"name": "default-context", "context": context}],
        "current-context": "default-context",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, yaml.safe_dump(written).encode(), sync=True)


def _cluster(config: ClientConfig) -> dict[str, Any]:
    fields = {
        "server": config.server,
        "tls-server-name": config.tls_server_name,
        "insecure-skip-tls-verify": config.insecure_skip_tls_verify,
        "proxy-url": config.proxy_url,
        "disable-compression": config.disable_compression,
        "certificate-authority": str(config.ca.file.absolute()) if config.ca.file else "",
        "certificate-authority-data": base64.b64encode(config.ca.data).decode(),
    }
    return {name: value for name, value in fields.items() if value}
