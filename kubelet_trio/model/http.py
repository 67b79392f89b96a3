"""For HTTP clients and servers: the TLS context, addresses, and URLs without secrets."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit


def system_tls() -> ssl.SSLContext:
    """Return a client context that trusts the system's certificate authorities. Blocks."""
    context = ssl.create_default_context()
    # Go does not verify so strictly, and Python does so only since 3.13: it then refuses CAs
    # without a key identifier, which many companies have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def without_user(url: str) -> str:
    """Return a URL without user and password."""
    scheme, slashes, rest = url.partition("//")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def without_secrets(url: str) -> str:
    """Return a URL for logs and pages: without user, password, query and fragment."""
    return without_user(url).partition("?")[0].partition("#")[0]


def url_scheme(url: str) -> str:
    """Return the scheme of a URL, "" if it is none, as with a port that is not a number."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # urlsplit checks the port only when it is read
    except ValueError:
        return ""
    return parts.scheme


def is_ip(text: str) -> bool:
    """Whether a host is given by its address, of IPv4 or IPv6, and not by name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def pod_addresses(ips: Iterable[str], node_ips: Sequence[str]) -> tuple[str, ...]:
    """Return a pod's addresses as its status and its variables show them: one of each IP family.

    The family of the node's first address comes first; IPv4 if that is not known. What is no
    address is left out. Source: sortPodIPs in kubelet_pods.go.
    """
    first: dict[bool, str] = {}
    for text in ips:
        # As ParseIPSloppy: zeros at the beginning of an IPv4 address' numbers do not count.
        parts = text.split(".")
        plain = ".".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in parts)
        try:
            ip = ipaddress.ip_address(text if ":" in text else plain)
        except ValueError:
            continue
        first.setdefault(ip.version == 6, str(ip))
    v6_first = bool(node_ips) and ":" in node_ips[0]
    return tuple(first[family] for family in (v6_first, not v6_first) if family in first)
