"""The downward API: values of fieldRef and resourceFieldRef.

Environment variables and files of downwardAPI volumes have the same values; validation
(`sources`) checks which paths each of them allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Container, Pod, ResourceFieldSelector

from kubelet_trio.containers.errors import ContainerConfigError
from kubelet_trio.containers.resources.amounts import amounts
from kubelet_trio.model import metadata, pod_containers, pod_key, pod_uid
from kubelet_trio.model import spec as pod_spec

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")
# Without a limit a container may use all that the node has for pods.
_DEFAULTED = ("cpu", "memory", "ephemeral-storage")
_MILLI = 10**6  # nano-units


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Facts for the downward API besides the manifest. Amounts in nano-units by resource name."""

    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    allocatable: Mapping[str, int] = field(default_factory=dict)


def field_value(pod: Pod, path: str, facts: PodFacts) -> str:
    """Return the value of a pod's field. Raises `ContainerConfigError` for an unknown path."""
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript is not None:
        return str((_map(pod, subscript[1])).get(subscript[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        return format_map(_map(pod, path.removeprefix("metadata.")))
    values = {
        "metadata.name": pod_key(pod).name,
        "metadata.namespace": pod_key(pod).namespace,
        "metadata.uid": pod_uid(pod),
        "spec.nodeName": pod_spec(pod).nodeName or "",
        "spec.host": pod_spec(pod).nodeName or "",  # its old name: ConvertDownwardAPIFieldLabel
        "spec.serviceAccountName": pod_spec(pod).serviceAccountName or "",
        "status.hostIP": next(iter(facts.host_ips), ""),
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": next(iter(facts.pod_ips), ""),
        "status.podIPs": ",".join(facts.pod_ips),
    }
    if path not in values:
        raise ContainerConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def resource_value(
    pod: Pod, own: Container | None, selector: ResourceFieldSelector, facts: PodFacts
) -> str:
    """Return a container's request or limit in units of the divisor, rounded up.

    Args:
        pod: the pod.
        own: the container that asks, for a selector that names none.
        selector: the resource, the container and the divisor.
        facts: the node's allocatable resources.

    Raises:
        ContainerConfigError: the pod has no such container, or there is no such resource.
        ValueError: for a quantity that does not parse.
    """
    container = _named(pod, selector.containerName) if selector.containerName else own
    if container is None:
        raise ContainerConfigError(f"container {selector.containerName or ''} not found")
    which, _, name = selector.resource.partition(".")
    if which not in ("limits", "requests") or not name:
        raise ContainerConfigError(f"unsupported container resource : {selector.resource}")
    found = amounts(getattr(container.resources, which) if container.resources else None)
    amount = found.get(name, 0)
    if which == "limits" and not amount and name in _DEFAULTED:
        amount = _pod_limit(pod, name) or facts.allocatable.get(name, 0)
    divisor = amounts({"divisor": selector.divisor}).get("divisor", 0) if selector.divisor else 0
    unit = _MILLI if name == "cpu" else 1000 * _MILLI
    # As upstream, round both up to the resource's unit (milli-CPU, bytes) before dividing.
    return str(-(-_rounded(amount, unit) // (_rounded(divisor, unit) or 1000 * _MILLI // unit)))


def format_map(values: Mapping[str, str]) -> str:
    """Return labels or annotations as sorted lines `key="value"`, quoted as in Go."""
    return "\n".join(f"{key}={quote(values[key])}" for key in sorted(values))


def quote(text: str) -> str:
    """Quote a string as Go's %q does."""
    return f'"{"".join(_quoted(text))}"'


def _quoted(text: str) -> Iterable[str]:
    for char in text:
        code = ord(char)
        if char in _ESCAPES:
            yield _ESCAPES[char]
        elif char.isprintable():
            yield char
        # Go's strconv.Quote: \x for control characters, \u or \U for others that do not print.
        elif code < 0x80:
            yield f"\\x{code:02x}"
        else:
            yield f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}


def _map(pod: Pod, name: str) -> Mapping[str, str]:
    return getattr(metadata(pod), name) or {}


def _named(pod: Pod, name: str) -> Container | None:
    return next((c.spec for c in pod_containers(pod) if c.spec.name == name), None)


def _pod_limit(pod: Pod, name: str) -> int:
    own = pod_spec(pod).resources
    return amounts(own.limits).get(name, 0) if own is not None else 0


def _rounded(nano: int, unit: int) -> int:
    return -(-nano // unit)
