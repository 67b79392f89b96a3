"""A certificate authority for one test run: what a cluster's own would have signed."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AGE = datetime.timedelta(minutes=5)  # clocks differ
_USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Pair:
    """Paths of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("kubelet-trio-test-ca")
        certificate = (
            _dated(self._name, datetime.timedelta(days=1))
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(ca_usage(), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "ca.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, name: str, *groups: str, hosts: tuple[str, ...] = ()) -> Pair:
        """Make a key and its certificate, for both sides of a connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(_subject(name, *groups))
        if hosts:
            request = request.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        pair = Pair(self.directory / f"{file}.pem", self.directory / f"{file}-key.pem")
        signed = self.sign(request.sign(key, hashes.SHA256()), datetime.timedelta(days=1))
        pair.certificate.write_bytes(signed)
        pair.key.write_bytes(_pem(key))
        pair.key.chmod(0o600)
        return pair

    def sign(
        self,
        request: x509.CertificateSigningRequest | bytes,
        lifetime: datetime.timedelta,
        age: datetime.timedelta = _AGE,
    ) -> bytes:
        """Return the certificate (PEM) for a request, its subject and names as asked for.

        It began `age` ago and has `lifetime` left.
        """
        if isinstance(request, bytes):
            request = x509.load_pem_x509_csr(request)
        builder = (
            _dated(request.subject, lifetime, age)
            .issuer_name(self._name)
            .public_key(request.public_key())
            .add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        for extension in request.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                builder = builder.add_extension(extension.value, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def signing_key(self, file: str) -> Pair:
        """Make a key pair that signs tokens; `certificate` is the public key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pair = Pair(self.directory / f"{file}.pub", self.directory / f"{file}.key")
        pair.key.write_bytes(_pem(key))
        pair.key.chmod(0o600)
        pair.certificate.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        return pair


def _dated(
    subject: x509.Name, lifetime: datetime.timedelta, age: datetime.timedelta = _AGE
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - age)
        .not_valid_after(now + lifetime)
    )


def _subject(name: str, *groups: str) -> x509.Name:
    named = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*named, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
