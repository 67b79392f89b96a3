"""The API's rules for names, labels and the like: each returns the error's text, or None."""

from __future__ import annotations

import ipaddress
import re

LABEL_MAX = 63
SUBDOMAIN_MAX = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
# With underscores (KEP-4427), which host names may not have.
_SEARCH = re.compile(r"[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?(\.[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PORT_NAME = re.compile(r"[-a-z0-9]+")
# Printable ASCII without "=": IsRelaxedEnvVarName (KEP-4369).
_ENV_NAME = re.compile(r"[ -<>-~]+")
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,127}")


def dns_label(text: str) -> str | None:
    """Check a DNS-1123 label, as container and volume names are."""
    if len(text) > LABEL_MAX:
        return f"must be no more than {LABEL_MAX} characters"
    if _LABEL.fullmatch(text):
        return None
    return "must be lower case letters, digits or '-', with a letter or digit at both ends"


def dns_subdomain(text: str) -> str | None:
    """Check a DNS-1123 subdomain: labels with dots between, as pod names are."""
    if len(text) > SUBDOMAIN_MAX:
        return f"must be no more than {SUBDOMAIN_MAX} characters"
    if _SUBDOMAIN.fullmatch(text):
        return None
    return "must be lower case letters, digits, '-' or '.', with a letter or digit at the ends"


def search_domain(text: str) -> str | None:
    """Check a DNS search path: a subdomain that may hold `_` and end in a dot; `.` alone too."""
    name = text.removesuffix(".")
    if len(name) <= SUBDOMAIN_MAX and (text == "." or _SEARCH.fullmatch(name)):
        return None
    return "must be a DNS name"


def qualified_name(text: str) -> str | None:
    """Check the key of a label or annotation: a name, or a prefix, a slash and a name."""
    prefix, slash, name = text.rpartition("/")
    if slash and (not prefix or dns_subdomain(prefix) is not None):
        return "the part before the slash must be a DNS name"
    if not _QUALIFIED.fullmatch(name) or len(name) > LABEL_MAX:
        return (
            f"must be up to {LABEL_MAX} letters, digits, '-', '_' or '.', "
            "with a letter or digit at both ends"
        )
    return None


def label_value(text: str) -> str | None:
    """Check a label's value; it may be empty."""
    if not text or (_QUALIFIED.fullmatch(text) and len(text) <= LABEL_MAX):
        return None
    return (
        f"must be empty or up to {LABEL_MAX} letters, digits, '-', '_' or '.', "
        "with a letter or digit at both ends"
    )


def port_name(text: str) -> str | None:
    """Check a port's name: an IANA service name (RFC 6335)."""
    if len(text) > 15:
        return "must be no more than 15 characters"
    if not _PORT_NAME.fullmatch(text):
        return "must be lower case letters, digits and '-' only"
    if not any(char.isalpha() for char in text):
        return "must contain a letter"
    if "--" in text or text[0] == "-" or text[-1] == "-":
        return "must not begin or end with '-' nor contain '--'"
    return None


def header_name(text: str) -> str | None:
    """Check the name of an HTTP header."""
    return None if _HEADER.fullmatch(text) else "must be letters, digits and '-' only"


def env_name(text: str) -> str | None:
    """Check the name of an environment variable (relaxed, as since Kubernetes 1.34)."""
    return (
        None if _ENV_NAME.fullmatch(text) else "must be printable ASCII characters other than '='"
    )


def pod_uid(text: str) -> str | None:
    """Check a UID from a manifest: it becomes a directory name."""
    return None if _UID.fullmatch(text) else "must be up to 128 letters, digits and '-'"


def ip_address(text: str) -> str | None:
    """Check an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "must be an IP address (such as 10.9.8.7 or 2001:db8::ffff)"
    # Python accepts IPv6 zones (fe80::1%eth0); Kubernetes does not.
    return None if "%" not in text else "must be an IP address without a zone"


def inside_path(text: str) -> str | None:
    """Check a path that must stay inside its volume."""
    if text.startswith("/"):
        return "must be a relative path"
    return no_way_up(text)


def no_way_up(text: str) -> str | None:
    """Check that no part of a path is `..`."""
    return "must not contain '..'" if ".." in text.split("/") else None
