"""Makes a key and a self-signed certificate for a host, and writes both to stdout as PEM.

`self_signed` runs it by its path, in a process of its own.

    python make_certificate.py HOST [ADDRESS...]
"""

from __future__ import annotations

import datetime
import ipaddress
import sys
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_LIFETIME = datetime.timedelta(days=3650)  # it is never renewed


def make(host: str, addresses: list[str]) -> bytes:
    """Return a key and a certificate for the host name and the addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    common_name = f"{host}@{int(time.time())}"[-64:]  # ub-common-name of RFC 5280
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(host)]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    usages = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # for clients whose clock is behind
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usages, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(pem)


if __name__ == "__main__":
    sys.stdout.buffer.write(make(sys.argv[1], sys.argv[2:]))
