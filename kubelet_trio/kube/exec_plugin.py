"""Credentials from an exec plugin (`client.authentication.k8s.io`)."""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import subprocess
from dataclasses import dataclass

import msgspec
import trio

from kubelet_trio.kube.errors import CredentialsError
from kubelet_trio.kube.kubeconfig import ClientConfig, ExecPlugin
from kubelet_trio.model import JSON_ERRORS

_TIMEOUT = 60.0  # seconds that a plugin may take
_OUTPUT = 1_000_000  # bytes that it may print


@dataclass(frozen=True, slots=True)
class ExecCredentials:
    """The credentials of a plugin. Certificate and key are PEM; both or neither are set."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: float = math.inf  # Unix seconds


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime.datetime | None = None


class _Credential(msgspec.Struct, rename="camel"):
    kind: str
    api_version: str
    status: _Status | None = None


async def run_plugin(plugin: ExecPlugin, config: ClientConfig) -> ExecCredentials:
    """Run a plugin and return its credentials.

    Raises:
        CredentialsError: it cannot be run, fails, takes too long or has unusable output.
    """
    where = f"{config.origin}: exec plugin {plugin.command}"
    # The protocol: an ExecCredential in this variable, another one on stdout (KEP-541).
    info = json.dumps(_info(plugin, config))
    environ = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": info}
    try:
        with trio.fail_after(_TIMEOUT):
            done = await trio.run_process(
                [plugin.command, *plugin.args],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=environ,
            )
    except OSError as exc:
        hint = f": {plugin.install_hint}" if plugin.install_hint else ""
        raise CredentialsError(f"{where}: {exc.strerror or exc}{hint}") from exc
    except trio.TooSlowError as exc:
        raise CredentialsError(f"{where}: no answer within {_TIMEOUT:g} s") from exc
    if done.returncode != 0:
        stderr = done.stderr.decode(errors="replace").strip()[-500:]
        raise CredentialsError(f"{where}: exit code {done.returncode}: {stderr}")
    return read_credentials(done.stdout[:_OUTPUT], plugin.api_version, where)


def read_credentials(output: bytes, api_version: str, where: str) -> ExecCredentials:
    """Return the credentials in a plugin's output.

    Raises:
        CredentialsError: it is not an ExecCredential of that version, or has no credentials.
    """
    try:
        answer = msgspec.json.decode(output, type=_Credential)
    except JSON_ERRORS as exc:
        raise CredentialsError(f"{where}: its output is not an ExecCredential: {exc}") from exc
    if (answer.kind, answer.api_version) != ("ExecCredential", api_version):
        problem = f"expected {api_version} ExecCredential, got {answer.api_version} {answer.kind}"
        raise CredentialsError(f"{where}: {problem}")
    status = answer.status or _Status()
    # client-go refuses one without the other as well.
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        problem = "status.clientCertificateData and status.clientKeyData come together only"
        raise CredentialsError(f"{where}: {problem}")
    if not status.token and not status.client_key_data:
        raise CredentialsError(f"{where}: status: neither a token nor a client certificate")
    until = status.expiration_timestamp
    return ExecCredentials(
        token=status.token,
        certificate=status.client_certificate_data.encode(),
        key=status.client_key_data.encode(),
        expires=until.timestamp() if until is not None else math.inf,
    )


def _info(plugin: ExecPlugin, config: ClientConfig) -> dict[str, object]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster: dict[str, object] = {"server": config.server}
        if config.tls_server_name:
            cluster["tls-server-name"] = config.tls_server_name
        if config.insecure_skip_tls_verify:
            cluster["insecure-skip-tls-verify"] = True
        if config.ca:
            authority = base64.b64encode(config.ca.read()).decode()
            cluster["certificate-authority-data"] = authority
        if config.proxy_url:
            cluster["proxy-url"] = config.proxy_url
        if plugin.cluster_config is not None:
            cluster["config"] = plugin.cluster_config
        spec["cluster"] = cluster
    return {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
