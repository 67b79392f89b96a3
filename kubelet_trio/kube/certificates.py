"""The node's certificates: asked of the API server, kept as files, renewed in time.

As the Go kubelet keeps them: `<cert-dir>/<stem>-<time>.pem` holds certificate and key together,
and `<stem>-current.pem` is a link to the one in use, replaced in one step. Whoever uses the
link reads it again when it changes (`kube.credentials` does), so nothing needs a restart.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import trio
from lightkube.models.certificates_v1 import (
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube.api import KubeApi, KubeError, KubeUnavailableError
from kubelet_trio.kube.limits import Backoff
from kubelet_trio.model import Offload, WallClock, rfc3339

log = structlog.get_logger(__name__)

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
_SIGNED_WITHIN = 15 * 60.0  # seconds that a request may wait for its certificate
_LOOK = 1.0  # seconds between two looks at a request
_TOOL_LIMIT = 60.0


class CertificateError(Exception):
    """There is no certificate, and asking again now is of no use: denied, failed, too late."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate as it is to be asked for."""

    signer: str
    name: str  # common name: `system:node:<node>`
    groups: tuple[str, ...] = ("system:nodes",)
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def usages(self) -> list[str]:
        """What an elliptic key of this signer is for."""
        own = "client auth" if self.signer == CLIENT_SIGNER else "server auth"
        return ["digital signature", own]


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate holds, in Unix seconds."""

    not_before: float
    not_after: float

    def renew_at(self, share: float) -> float:
        """Return when to renew it, `share` (0.7 to 0.9) of its life being over."""
        return self.not_before + share * (self.not_after - self.not_before)


async def pki(**asked: Any) -> dict[str, Any]:
    """Have something made by `kube.pki`. Raises `CertificateError`."""
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
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CertificateError(f"making a key or certificate: {' '.join(said)}")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


async def sign(api: KubeApi, wanted: Wanted) -> str:
    """Ask for a certificate and wait for it; return it and its key as one PEM text.

    Raises `CertificateError` where it is denied or does not come, `KubeError` and
    `KubeUnavailableError` where the request cannot be made.
    """
    made = await pki(
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
    created = await api.create(body)
    assert created.metadata is not None
    name = created.metadata.name or ""
    log.info("certificates.requested", request=name, signer=wanted.signer, subject=wanted.name)
    with trio.move_on_after(_SIGNED_WITHIN):
        return f"{await _signed(api, name)}{made['key']}"
    raise CertificateError(f"certificate signing request {name} was not signed in time")


async def _signed(api: KubeApi, name: str) -> str:
    while True:
        with contextlib.suppress(KubeUnavailableError):
            found = await api.get(CertificateSigningRequest, name)
            status = found.status
            for condition in (status.conditions or ()) if status is not None else ():
                if condition.type in ("Denied", "Failed") and condition.status != "False":
                    raise CertificateError(
                        f"certificate signing request {name} is {condition.type.lower()}: "
                        f"{condition.reason or ''} {condition.message or ''}".rstrip()
                    )
            if status is not None and status.certificate:
                return base64.b64decode(status.certificate).decode().rstrip("\n") + "\n"
        await trio.sleep(_LOOK)


@dataclass(frozen=True, slots=True)
class CertificateStore:
    """The files of one certificate: `stem` is `kubelet-client` or `kubelet-server`."""

    directory: Path
    stem: str
    offload: Offload

    @property
    def current(self) -> Path:
        """The link to the file in use."""
        return self.directory / f"{self.stem}-current.pem"

    async def put(self, pem: str, now: float) -> None:
        """Write certificate and key, and use them from here on. Raises OSError."""
        await self.offload(self._put, pem, rfc3339(now).replace(":", "-"))

    async def validity(self) -> Validity | None:
        """Return how long the one in use is valid; None where there is none to read."""
        try:
            text = await self.offload(self.current.read_text)
            found = await pki(do="dates", certificate=text)
        except (OSError, CertificateError):
            return None
        return Validity(found["not_before"], found["not_after"])

    def _put(self, pem: str, stamp: str) -> None:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = self.directory / f"{self.stem}-{stamp}.pem"
        draft = self.directory / f".{self.stem}.tmp"
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(pem)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
        link = self.directory / f".{self.stem}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        link.replace(self.current)


class Rotation:
    """Renews one certificate when 70 to 90 % of its life are over, as the Go kubelet does."""

    def __init__(
        self, api: KubeApi, store: CertificateStore, wanted: Wanted, clock: WallClock
    ) -> None:
        self._api = api
        self._store = store
        self._wanted = wanted
        self._clock = clock
        self._backoff = Backoff(first=2.0, cap=128.0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew for ever, at once where there is none."""
        task_status.started()
        while True:
            validity = await self._store.validity()
            if validity is not None:
                due = validity.renew_at(random.uniform(0.7, 0.9))
                await trio.sleep(max(0.0, due - self._clock.time()))
            if not await self._renew():
                await trio.sleep(self._backoff.next_delay(trio.current_time()))

    async def _renew(self) -> bool:
        try:
            pem = await sign(self._api, self._wanted)
            await self._store.put(pem, self._clock.time())
        except (CertificateError, KubeError, KubeUnavailableError, OSError) as exc:
            log.error("certificates.not_renewed", signer=self._wanted.signer, error=str(exc))
            return False
        log.info("certificates.renewed", file=str(self._store.current))
        return True
