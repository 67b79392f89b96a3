"""Rules of `metadata`, for every kind."""

from __future__ import annotations

from collections.abc import Callable

from kubelet_trio.kube import Resource
from kubelet_trio.testing.kube.rules.formats import (
    dns_label,
    label_value,
    path_segment,
    qualified_name,
    subdomain,
)
from kubelet_trio.testing.kube.rules.problems import Problems, invalid
from kubelet_trio.testing.kube.store import Json

_NAMES: dict[str, Callable[[str], list[str]]] = {
    "Namespace": dns_label,
    "Event": lambda _name: [],
    "CertificateSigningRequest": path_segment,
}
_ANNOTATIONS_LIMIT = 256 * 1024  # TotalAnnotationSizeLimitB: of keys and values together


def check_name(route: Resource, name: str) -> None:
    """Raise `KubeError` if a new object has no name."""
    if not name:
        raise invalid(route, "", "metadata.name: Required value: name or generateName is required")


def check_meta(problems: Problems, route: Resource, meta: Json) -> None:
    """Check the metadata of a new object, or of a changed one."""
    name = meta.get("name") or ""
    for text in _NAMES.get(route.kind, subdomain)(name):
        problems.invalid("metadata.name", name, text)
    if route.kind == "Event":
        return  # as upstream, which then checks no other part
    check_changeable(problems, meta)


def check_changeable(problems: Problems, meta: Json) -> None:
    """Check the mutable part of metadata."""
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    for key, value in labels.items():
        for text in qualified_name(key):
            problems.invalid("metadata.labels", key, text)
        for text in label_value(value):
            problems.invalid("metadata.labels", value, text)
    # As ValidateAnnotations (objectmeta.go): case does not matter in their keys.
    for key in annotations:
        for text in qualified_name(key.lower()):
            problems.invalid("metadata.annotations", key, text)
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > _ANNOTATIONS_LIMIT:
        problems.too_long("metadata.annotations", _ANNOTATIONS_LIMIT)
    for finalizer in meta.get("finalizers") or ():
        for text in qualified_name(finalizer):
            problems.invalid("metadata.finalizers", finalizer, text)
    _check_owners(problems, meta.get("ownerReferences") or [])


def _check_owners(problems: Problems, owners: list[Json]) -> None:
    controllers = []
    for at, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{at}]"
        for field, word in (
            ("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid"),
        ):  # fmt: skip
            if not owner.get(field):
                problems.invalid(f"{path}.{field}", "", f"{word} must not be empty")
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        text = (
            "Only one reference can have Controller set to true. Found "
            f'"true" in references for {" and ".join(controllers[:2])}'
        )
        problems.invalid("metadata.ownerReferences", controllers, text)
