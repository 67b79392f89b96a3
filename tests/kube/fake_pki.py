"""Keys and certificates without cryptography, for virtual time: lines of text that keep the rules.

A certificate is `CERT <JSON>`, a key `KEY <number>`, and who signs decides how long one lives.
"""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

from lightkube.models.certificates_v1 import CertificateSigningRequest

from kubelet_trio.kube import CertificateError
from kubelet_trio.model import WallClock
from kubelet_trio.testing import FakeKube

# A server reads the lines around a request.
_BEGIN = "-----BEGIN CERTIFICATE REQUEST-----\n"
_END = "\n-----END CERTIFICATE REQUEST-----\n"

_numbers = itertools.count(1)


async def fake_pki(**asked: Any) -> dict[str, Any]:
    """Do what `kube.pki` does."""
    if asked["do"] == "request":
        key = f"KEY {next(_numbers)}\n"
        names = {field: asked[field] for field in ("name", "groups", "hosts", "addresses")}
        return {"key": key, "request": _BEGIN + json.dumps({**names, "key": key}) + _END}
    lines = asked["certificate"].splitlines()
    found = [json.loads(line.removeprefix("CERT ")) for line in lines if line.startswith("CERT ")]
    if not found:
        raise CertificateError("no certificate")
    key = found[0].pop("key")
    if asked.get("key") and asked["key"] != key:
        raise CertificateError("the certificate is not that of the key")
    return {**found[0], "ends": min(one["not_after"] for one in found)}


def certificate(not_before: float, not_after: float, key: str = "", **names: Any) -> str:
    """Return a certificate."""
    known = {"name": "", "groups": [], "hosts": [], "addresses": [], **names}
    told = {**known, "not_before": not_before, "not_after": not_after, "key": key}
    return f"CERT {json.dumps(told)}\n"


class Signer:
    """Signs what is asked of a fake API server, as an authority whose certificates live so long."""

    def __init__(self, kube: FakeKube, clock: WallClock, lifetime: float = 3600.0) -> None:
        self.kube, self.clock, self.lifetime = kube, clock, lifetime

    @property
    def requests(self) -> list[CertificateSigningRequest]:
        """All requests, oldest first."""
        return self.kube.all(CertificateSigningRequest)

    async def wait_requests(self, count: int) -> CertificateSigningRequest:
        """Wait for that many requests and return the last."""
        await self.kube.wait_until(lambda _kube: len(self.requests) >= count)
        (found,) = [r for r in self.requests if not (r.status and r.status.certificate)][-1:]
        return found

    def sign(self, request: CertificateSigningRequest) -> None:
        """Sign one."""
        assert request.spec is not None
        text = base64.b64decode(request.spec.request).decode()
        asked = json.loads(text.removeprefix(_BEGIN).removesuffix(_END))
        now = self.clock.time()
        made = certificate(now, now + self.lifetime, **asked)
        self._change(request, "status", {"certificate": base64.b64encode(made.encode()).decode()})

    def deny(self, request: CertificateSigningRequest) -> None:
        """Deny one."""
        denied = {"type": "Denied", "status": "True", "reason": "No", "message": "not you"}
        self._change(request, "approval", {"conditions": [denied]})

    def _change(self, request: CertificateSigningRequest, part: str, status: Any) -> None:
        assert request.metadata is not None
        name = request.metadata.name or ""
        self.kube.change(CertificateSigningRequest, name, {"status": status}, subresource=part)
