"""The node's certificates: requested from the API server and stored as files.

The files are the Go kubelet's: `<cert-dir>/<stem>-<time>.pem` holds certificate and key, and
`<stem>-current.pem` is a link to the one in use, replaced atomically. Its users read it again when
it changes (`kube.credentials`, `server.tls`), so nothing needs a restart.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio
from lightkube.models.certificates_v1 import (
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube.api import KubeApi
from kubelet_trio.kube.errors import CertificateError
from kubelet_trio.kube.reflector import Reflector
from kubelet_trio.model import Offload, get_logger, write_aside

log = get_logger()

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
_SIGNED_WITHIN = 15 * 60.0  # seconds that a request may wait for its certificate
_TOOL_LIMIT = 60.0  # seconds for the process that makes keys
_STAMP = "%Y-%m-%d-%H-%M-%S"

Pki = Callable[..., Awaitable[dict[str, Any]]]  # as `pki`


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """The certificate to request."""

    signer: str
    name: str  # common name: `system:node:<node>`
    groups: tuple[str, ...] = ("system:nodes",)
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def usages(self) -> list[str]:
        """The key usages that the signer allows; for an elliptic key without encipherment."""
        own = "client auth" if self.signer == CLIENT_SIGNER else "server auth"
        return ["digital signature", own]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The contents of a certificate. Times are Unix seconds."""

    not_before: float
    not_after: float
    name: str = ""
    groups: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    ends: float = 0.0  # when the first certificate of the file expires, intermediates included

    def is_for(self, wanted: CertificateRequest) -> bool:
        """Return whether it has everything that is wanted; it may have more."""
        return (
            self.name == wanted.name
            and self.groups.issuperset(wanted.groups)
            and self.hosts.issuperset(wanted.hosts)
            and self.addresses.issuperset(wanted.addresses)
        )


class Signed(NamedTuple):
    """A certificate with its key, as one PEM text, and its contents."""

    pem: str
    certificate: Certificate


class ProvenKey(NamedTuple):
    """A private key, and a request for a certificate that proves its possession."""

    key: str  # PKCS#8, PEM
    request: str  # PKCS#10, DER in base64; without a subject

    def __repr__(self) -> str:
        return "ProvenKey()"  # never the key


async def pki(**asked: Any) -> dict[str, Any]:
    """Run `kube.pki` in a process of its own. Raises `CertificateError`."""
    command = [sys.executable, "-m", "kubelet_trio.kube.pki"]
    try:
        with trio.fail_after(_TOOL_LIMIT):
            done = await trio.run_process(
                command,
                stdin=json.dumps(asked).encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
    except (OSError, subprocess.SubprocessError, trio.TooSlowError) as exc:
        raise CertificateError(f"making a key or certificate: {exc!r}") from exc
    if done.returncode:
        last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CertificateError(f"making a key or certificate: {' '.join(last_line)}")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


async def describe(make: Pki, certificate: bytes, key: bytes = b"") -> Certificate:
    """Return the contents of a PEM certificate.

    Raises `CertificateError`, also if `key` is not the certificate's.
    """
    text = {
        "certificate": certificate.decode(errors="replace"),
        "key": key.decode(errors="replace"),
    }
    return msgspec.convert(await make(do="describe", **text), Certificate)


async def proven_key(key_type: str, make: Pki = pki) -> ProvenKey:
    """Make a private key for a pod's certificate. Raises `CertificateError`.

    `key_type` is that of a podCertificate source: RSA3072, ECDSAP256, ED25519, ...
    """
    made = await make(do="stub", key_type=key_type)
    return ProvenKey(made["key"], made["request"])


async def sign(api: KubeApi, wanted: CertificateRequest, make: Pki = pki) -> Signed:
    """Request a certificate and wait until it is signed.

    Raises:
        CertificateError: the request was denied, or not signed in time.
        KubeError: the API server refused the request.
        KubeUnavailableError: the API server cannot be reached.
    """
    made = await make(
        do="request",
        name=wanted.name,
        groups=list(wanted.groups),
        hosts=list(wanted.hosts),
        addresses=list(wanted.addresses),
    )
    body = CertificateSigningRequest(
        metadata=ObjectMeta(generateName="csr-"),
        spec=CertificateSigningRequestSpec(
            request=base64.b64encode(made["request"].encode()).decode(),
            signerName=wanted.signer,
            usages=wanted.usages,
        ),
    )
    # The server completes `generateName`: requests of one node never collide.
    created = await api.create(body)
    assert created.metadata is not None
    name = created.metadata.name or ""
    log.info("certificates.requested", request=name, signer=wanted.signer, subject=wanted.name)
    with trio.move_on_after(_SIGNED_WITHIN):
        signed = await _signed(api, name)
        certificate = await describe(make, signed.encode(), made["key"].encode())
        return Signed(f"{signed}{made['key']}", certificate)
    raise CertificateError(f"certificate signing request {name} was not signed in time")


async def _signed(api: KubeApi, name: str) -> str:
    """Wait for a request's certificate. Raises `CertificateError` if there will be none."""
    reflector = Reflector(api, CertificateSigningRequest, field_selector=f"metadata.name={name}")
    async with trio.open_nursery() as nursery:
        await nursery.start(reflector.run)
        found = problem = ""
        was_seen = False
        while not found and not problem:
            delivery = await reflector.wait_delivery()
            request = delivery.objects.get(("", name))
            if request is not None:
                was_seen = True
                problem, found = _outcome(request)
            elif was_seen:  # the first list may be from a cache that does not have it yet
                problem = "is gone"
        nursery.cancel_scope.cancel()
    if problem:
        raise CertificateError(f"certificate signing request {name} {problem}")
    return found


def _outcome(request: CertificateSigningRequest) -> tuple[str, str]:
    """Return the reason why there is no certificate, and the certificate; both empty if pending."""
    status = request.status
    for condition in (status.conditions or ()) if status is not None else ():
        # Conditions of requests from before Kubernetes 1.19 have no status.
        if condition.type in ("Denied", "Failed") and condition.status != "False":
            why = f"{condition.reason or ''} {condition.message or ''}".rstrip()
            return f"is {condition.type.lower()}: {why}", ""
    if status is None or not status.certificate:
        return "", ""
    return "", base64.b64decode(status.certificate).decode().rstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class CertificateStore:
    """The files of one certificate: `stem` is `kubelet-client` or `kubelet-server`."""

    directory: Path
    stem: str
    offload: Offload
    make: Pki = pki

    @property
    def current(self) -> Path:
        """The link to the file in use."""
        return self.directory / f"{self.stem}-current.pem"

    async def put(self, pem: str, now: float) -> None:
        """Write certificate and key, and make them the current ones. Raises OSError."""
        await self.offload(self._put, pem, time.strftime(_STAMP, time.gmtime(now)))

    async def held(self, other: Path | None = None) -> Certificate | None:
        """Return the current certificate, else the one in `other`; None if neither is usable."""
        for path in (self.current, other):
            if path is None:
                continue
            try:
                return await describe(self.make, await self.offload(path.read_bytes))
            except FileNotFoundError:
                continue
            except (OSError, CertificateError) as exc:
                log.warning("certificates.unusable", file=str(path), error=str(exc))
        return None

    def _put(self, pem: str, stamp: str) -> None:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = self.directory / f"{self.stem}-{stamp}.pem"
        write_aside(file, pem.encode(), sync=True)
        # symlink(2) cannot replace a link; rename(2) does so atomically.
        link = self.directory / f".{self.stem}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        link.replace(self.current)
