"""Parse field and label selectors, as an API server does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kubelet_trio.kube import KubeError

Json = dict[str, Any]
Match = Callable[[Json], bool]

_FIELDS = {
    "Pod": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "Node": ("spec.unschedulable",),
    "Namespace": ("status.phase",),
    "Secret": ("type",),
    "Service": ("spec.clusterIP", "spec.type"),
    "CertificateSigningRequest": ("spec.signerName",),
    "ClusterTrustBundle": ("spec.signerName",),
    "PodCertificateRequest": ("spec.signerName", "spec.podName", "spec.nodeName"),
    "ResourceSlice": ("spec.nodeName", "spec.driver"),
    "Event": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
    ),
}  # fmt: skip
_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s+\((?P<values>[^)]*)\)$")


def selector(kind: str, namespace: str, fields: str, labels: str) -> Match:
    """Return a predicate for a namespace ("": any) and both selectors.

    Raises:
        KubeError: 400, the field is not supported for selection.
    """
    tests = [_field(kind, term) for term in fields.split(",") if term]
    # A comma within the parentheses of `in (a,b)` does not end a term.
    tests += [_label(term) for term in re.split(r",(?![^(]*\))", labels) if term.strip()]

    def matches(obj: Json) -> bool:
        if namespace and obj["metadata"].get("namespace", "") != namespace:
            return False
        return all(test(obj) for test in tests)

    return matches


def _field(kind: str, term: str) -> Match:
    path, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1) if "=" in term else (term,) * 3
    if path not in ("metadata.name", "metadata.namespace", *_FIELDS.get(kind, ())):
        message = f'Unable to find "{kind}" that match label selector "", field selector "{term}"'
        raise KubeError(400, "BadRequest", f"{message}: field label not supported: {path}")

    def test(obj: Json) -> bool:
        found: Any = obj
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        # Fields are compared as Go prints them: a bool in lower case, a missing one as "".
        shown = str(found).lower() if isinstance(found, bool) else str(found or "")
        return (shown == value) is (operator != "!=")

    return test


def _label(term: str) -> Match:
    term = term.strip()
    if match := _SET.match(term):
        values = {value.strip() for value in match["values"].split(",")}
        # As upstream, `notin` and `!=` also match objects without the label.
        wanted = match["op"] == "in"
        return lambda obj: (_labels(obj).get(match["key"]) in values) is wanted
    if "=" in term:
        key, operator, value = (part.strip() for part in re.split(r"(!=|==|=)", term, maxsplit=1))
        return lambda obj: (_labels(obj).get(key) == value) is (operator != "!=")
    if term.startswith("!"):
        return lambda obj: term[1:].strip() not in _labels(obj)
    return lambda obj: term in _labels(obj)


def _labels(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}
