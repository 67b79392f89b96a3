"""Keys, requests and certificates, made in a process of its own.

`cryptography` takes 20 MB and is needed for a moment a month, so the agent never imports it:
it runs `python -m kubelet_trio.kube.pki`, which reads one JSON object, prints another and ends.

    {"do": "request", "name", "groups", "hosts", "addresses"} -> {"key", "request"}
    {"do": "dates", "certificate"}                            -> {"not_before", "not_after"}

Keys, requests and certificates are PEM, dates Unix seconds.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


def _key() -> tuple[ec.EllipticCurvePrivateKey, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        _PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return key, text.decode()


def _subject(name: str, groups: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(asked: dict[str, Any]) -> x509.SubjectAlternativeName | None:
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in asked.get("hosts", ())]
    names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in asked.get("addresses", ())]
    return x509.SubjectAlternativeName(names) if names else None


def request(asked: dict[str, Any]) -> dict[str, Any]:
    """Make a key and a certificate signing request for it."""
    key, text = _key()
    subject = _subject(asked["name"], asked.get("groups", ()))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    names = _names(asked)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    signed = builder.sign(key, hashes.SHA256())
    return {"key": text, "request": signed.public_bytes(_PEM).decode()}


def dates(asked: dict[str, Any]) -> dict[str, Any]:
    """Tell how long the first certificate of a PEM text is valid."""
    found = x509.load_pem_x509_certificate(asked["certificate"].encode())
    return {
        "not_before": found.not_valid_before_utc.timestamp(),
        "not_after": found.not_valid_after_utc.timestamp(),
    }


_DEEDS = {"request": request, "dates": dates}


def main() -> None:
    """Do what standard input asks for."""
    asked = json.load(sys.stdin)
    json.dump(_DEEDS[asked["do"]](asked), sys.stdout)


if __name__ == "__main__":
    main()
