"""Rules of CertificateSigningRequest."""

from __future__ import annotations

import base64
import binascii
import re

from kubelet_trio.testing.kube.rules.formats import subdomain
from kubelet_trio.testing.kube.rules.problems import IMMUTABLE, Problems
from kubelet_trio.testing.kube.store import Json

USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign",
    "data encipherment", "decipher only", "digital signature", "email protection", "encipher only",
    "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment",
    "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing",
    "timestamping",
)  # fmt: skip
_LEAST = 600
_PEM = re.compile(rb"-----BEGIN (NEW )?CERTIFICATE REQUEST-----\s.*-----END ", re.DOTALL)


def check_request(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    if not _is_request(spec.get("request") or ""):
        text = "PEM block type must be CERTIFICATE REQUEST"
        problems.invalid("spec.request", spec.get("request"), text)
    usages = spec.get("usages") or []
    if not usages:
        problems.required("spec.usages")
    for at, usage in enumerate(usages):
        if usage not in USAGES:
            problems.unsupported(f"spec.usages[{at}]", usage, USAGES)
        if usage in usages[:at]:
            problems.duplicate(f"spec.usages[{at}]", usage)
    _check_signer(problems, spec.get("signerName") or "")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _LEAST:
        text = "may not specify a duration less than 600 seconds (10 minutes)"
        problems.invalid("spec.expirationSeconds", seconds, text)


def check_changed_request(problems: Problems, old: Json, new: Json) -> None:
    if old.get("spec") != new.get("spec"):
        problems.invalid("spec", new.get("spec"), IMMUTABLE)


def _is_request(encoded: str) -> bool:
    try:
        return _PEM.search(base64.b64decode(encoded, validate=True)) is not None
    except (binascii.Error, ValueError):
        return False


def _check_signer(problems: Problems, name: str) -> None:
    path = "spec.signerName"
    if not name:
        problems.required(path)
        return
    domain, slash, rest = name.partition("/")
    if not slash or not rest:
        text = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        problems.invalid(path, name, text)
        return
    for text in subdomain(domain):
        problems.invalid(path, domain, text)
    if "." not in domain:
        problems.invalid(
            path, domain, "should be a domain with at least two segments separated by dots"
        )
