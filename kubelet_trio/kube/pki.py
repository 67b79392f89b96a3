"""Makes keys and certificate signing requests, and reads certificates, in a separate process.

`cryptography` takes 20 MB of memory and is needed about once a month, so the agent does not import
it. It runs `python -m kubelet_trio.kube.pki`, which reads one JSON object and prints another.

    {"do": "request", "name", "groups", "hosts", "addresses"} -> {"key", "request"}
    {"do": "describe", "certificate", "key"}                  -> {"name", "groups", "hosts",
                                     "addresses", "not_before", "not_after", "ends"}
    {"do": "stub", "key_type"}                                -> {"key", "request"}

Keys, requests and certificates are PEM, dates Unix seconds. The request of a stub is DER in base64.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import sys
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_PUBLIC_EXPONENT = 65537
# By the key type of a pod's certificate: an RSA key's bits, or a curve and the hash that goes
# with it (signingParamsForKey in Go's crypto/x509).
_RSA = {"RSA3072": 3072, "RSA4096": 4096}
_CURVES: dict[str, tuple[type[ec.EllipticCurve], type[hashes.HashAlgorithm]]] = {
    "ECDSAP256": (ec.SECP256R1, hashes.SHA256),
    "ECDSAP384": (ec.SECP384R1, hashes.SHA384),
    "ECDSAP521": (ec.SECP521R1, hashes.SHA512),
}
_PUBLIC = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _key() -> tuple[ec.EllipticCurvePrivateKey, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        # "EC PRIVATE KEY", as the Go kubelet writes it.
        _PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
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


def stub(asked: dict[str, Any]) -> dict[str, Any]:
    """Make a key of a type, and an empty request that proves its possession.

    Raises ValueError for an unknown type.
    """
    kind = asked["key_type"]
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    algorithm: hashes.HashAlgorithm | None = hashes.SHA256()
    if kind in _RSA:
        key = rsa.generate_private_key(_PUBLIC_EXPONENT, _RSA[kind])
    elif kind in _CURVES:
        curve, digest = _CURVES[kind]
        key, algorithm = ec.generate_private_key(curve()), digest()
    elif kind == "ED25519":
        key, algorithm = ed25519.Ed25519PrivateKey.generate(), None
    else:
        raise ValueError(f'unknown key type "{kind}"')
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    # The two types of hashes that the signature of an elliptic key may have are narrower here.
    signed = builder.sign(key, algorithm)  # type: ignore[arg-type]
    text = key.private_bytes(
        _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    der = signed.public_bytes(serialization.Encoding.DER)
    return {"key": text, "request": base64.b64encode(der).decode()}


def describe(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of the first certificate of a PEM text.

    `ends` is the time at which the first of all certificates in the text expires. Raises
    ValueError if a `key` is given that is not the certificate's.
    """
    found = x509.load_pem_x509_certificates(asked["certificate"].encode())
    first = found[0]
    if key := asked.get("key"):
        own = serialization.load_pem_private_key(key.encode(), None).public_key()
        if own.public_bytes(*_PUBLIC) != first.public_key().public_bytes(*_PUBLIC):
            raise ValueError("the key does not match the certificate")
    names = _alternative_names(first)
    common = first.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = first.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return {
        "name": str(common[0].value) if common else "",
        "groups": [str(group.value) for group in groups],
        "hosts": [name.value for name in names if isinstance(name, x509.DNSName)],
        "addresses": [str(name.value) for name in names if isinstance(name, x509.IPAddress)],
        "not_before": first.not_valid_before_utc.timestamp(),
        "not_after": first.not_valid_after_utc.timestamp(),
        "ends": min(one.not_valid_after_utc.timestamp() for one in found),
    }


def _alternative_names(certificate: x509.Certificate) -> Sequence[x509.GeneralName]:
    try:
        return list(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except x509.ExtensionNotFound:
        return ()


_OPERATIONS = {"request": request, "describe": describe, "stub": stub}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Carry out the operation in `do`. Raises ValueError for malformed input."""
    return _OPERATIONS[asked["do"]](asked)


def main() -> None:
    """Answer the request on standard input."""
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
