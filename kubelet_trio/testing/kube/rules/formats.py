"""Check formats of single values: names, labels, addresses. Each returns a list of errors."""

from __future__ import annotations

import ipaddress
import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_FEATURE = r"[A-Z][A-Za-z0-9]*(/[A-Za-z][A-Za-z0-9]*)*"

# Texts are upstream's, double spaces included.
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
    "'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
    f"regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
    f"regex used for validation is '{_LABEL}')"
)
_PART_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME_PART}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    f"'12345', regex used for validation is '{_VALUE}')"
)
IP_TEXT = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
CIDR_TEXT = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def subdomain(name: str) -> list[str]:
    """Check the name of most kinds."""
    found = ["must be no more than 253 characters"] if len(name) > 253 else []
    return found if re.fullmatch(_SUBDOMAIN, name) else [*found, _SUBDOMAIN_TEXT]


def dns_label(name: str) -> list[str]:
    """Check a namespace's name."""
    found = ["must be no more than 63 bytes"] if len(name) > 63 else []
    return found if re.fullmatch(_LABEL, name) else [*found, _LABEL_TEXT]


def path_segment(name: str) -> list[str]:
    """Check a name that only has to fit into a URL path."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{mark}'" for mark in ("/", "%") if mark in name]


def qualified_name(name: str) -> list[str]:
    """Check a key of labels and annotations, of taints, and of conditions."""
    prefix, slash, part = name.rpartition("/")
    if "/" in prefix:
        return [f"a qualified name {_PART_TEXT}"]
    found = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash:
        found += [f"prefix part {text}" for text in subdomain(prefix)]
    if not part:
        found.append("name part must be non-empty")
    elif len(part) > 63:
        found.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_NAME_PART, part):
        found.append(f"name part {_PART_TEXT}")
    return found


def label_value(value: str) -> list[str]:
    found = ["must be no more than 63 bytes"] if len(value) > 63 else []
    return found if re.fullmatch(_VALUE, value) else [*found, _VALUE_TEXT]


def declared_feature(name: str) -> list[str]:
    """Check a name in `status.declaredFeatures`."""
    if len(name) > 253:
        return [f'invalid feature name "{name}": must be no more than 253 characters']
    if re.fullmatch(_FEATURE, name):
        return []
    return [
        f'invalid feature name "{name}": must start with an UpperCamelCase segment, with '
        "subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and "
        "contain only alphanumeric characters and slashes"
    ]


def ip_version(text: str) -> int:
    """Return 4 or 6, or 0 if it is no address."""
    try:
        return ipaddress.ip_address(text).version
    except ValueError:
        return 0


def cidr_version(text: str) -> int:
    """Return 4 or 6, or 0 if it is no CIDR."""
    try:
        # As Go's ParseCIDR: host bits may be set, but a prefix length is required.
        return ipaddress.ip_network(text, strict=False).version if "/" in text else 0
    except ValueError:
        return 0
