"""Rules of the requests and limits in a pod's spec: of its containers, and of the pod (KEP-2837).

Source: ValidateContainerResourceRequirements and validatePodResources in pkg/apis/core/validation.
Quantities are canonical here, as defaulting leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import total_quantities
from kubelet_trio.kube import from_json
from kubelet_trio.model import parse_quantity
from kubelet_trio.testing.kube.rules.formats import qualified_name
from kubelet_trio.testing.kube.rules.problems import NOT_NEGATIVE, Problems
from kubelet_trio.testing.kube.store import Json

_HUGE = "hugepages-"
_OF_CONTAINERS = ("cpu", "memory", "ephemeral-storage")
_OF_PODS = ("cpu", _HUGE, "memory")  # sorted, as messages list them
_NOT_STANDARD = "must be a standard resource type or fully qualified"
_NOT_FOR_CONTAINERS = "must be a standard resource for containers"

NameCheck = Callable[[Problems, str, str], None]


def check_resources(problems: Problems, spec: Json) -> None:
    """Check all requests and limits of a pod's spec."""
    for field in ("containers", "initContainers"):
        for at, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{at}].resources"
            _check_list(problems, path, container.get("resources") or {}, _check_container_name)
    if (own := spec.get("resources")) is not None:
        if own.get("claims"):
            problems.forbidden(
                "spec.resources.claims", "claims may not be set for Resources at pod-level"
            )
        _check_list(problems, "spec.resources", own, _check_pod_name)
        _check_consistency(problems, spec, own)


def _check_list(problems: Problems, path: str, resources: Json, check_name: NameCheck) -> None:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
            where = f"{path}.{field}[{name}]"
            check_name(problems, where, name)
            if quantity.startswith("-"):
                problems.invalid(where, quantity, NOT_NEGATIVE)
            if field == "requests":
                _check_request(problems, path, name, quantity, limits)
    names = {*limits, *requests}
    if any(name.startswith(_HUGE) for name in names) and not names & {"cpu", "memory"}:
        problems.forbidden(path, "HugePages require cpu or memory")


def _check_request(
    problems: Problems, path: str, name: str, quantity: str, limits: Mapping[str, str]
) -> None:
    # IsOvercommitAllowed: not for huge pages, nor for resources of a domain.
    may_differ = not name.startswith(_HUGE) and ("/" not in name or "kubernetes.io/" in name)
    if name not in limits:
        if not may_differ:
            text = "Limit must be set for non overcommitable resources"
            problems.required(f"{path}.limits", text)
        return
    request, limit = parse_quantity(quantity), parse_quantity(limits[name])
    if request != limit and not may_differ:
        text = f"must be equal to {name} limit of {limits[name]}"
        problems.invalid(f"{path}.requests", quantity, text)
    elif request > limit:
        text = f"must be less than or equal to {name} limit of {limits[name]}"
        problems.invalid(f"{path}.requests", quantity, text)


def _check_container_name(problems: Problems, path: str, name: str) -> None:
    found = qualified_name(name)
    for text in found:
        problems.invalid(path, name, text)
    if "/" not in name and name not in _OF_CONTAINERS and not name.startswith(_HUGE):
        if not found:
            problems.invalid(path, name, _NOT_STANDARD)
        problems.invalid(path, name, _NOT_FOR_CONTAINERS)


def _check_pod_name(problems: Problems, path: str, name: str) -> None:
    found = qualified_name(name)
    for text in found:
        problems.invalid(path, name, text)
    if found or name in _OF_PODS or name.startswith(_HUGE):
        return
    if "/" in name or name in _OF_CONTAINERS:
        problems.unsupported(path, name, _OF_PODS)
    else:
        problems.invalid(path, name, _NOT_STANDARD)


def _check_consistency(problems: Problems, spec: Json, own: Json) -> None:
    """Check that a pod's resources cover those of its containers."""
    pod = from_json({"spec": spec}, Pod)
    for field in ("requests", "limits"):
        given = own.get(field) or {}
        for name, least in total_quantities(pod, field).items():
            # Limits of containers may add up to more, but huge pages are not shared.
            counts = name in given and (field == "requests" or name.startswith(_HUGE))
            if counts and parse_quantity(least) > parse_quantity(given[name]):
                text = f"must be greater than or equal to aggregate container {field} of {least}"
                problems.invalid(f"spec.resources.{field}[{name}]", given[name], text)
    limits = own.get("limits") or {}
    # Not of init containers. The path is upstream's.
    for at, container in enumerate(spec.get("containers") or ()):
        of_container = (container.get("resources") or {}).get("limits") or {}
        for name, limit in of_container.items():
            if name in limits and parse_quantity(limit) > parse_quantity(limits[name]):
                path = f"spec.resources.containers[{at}][{name}].limits"
                text = f"must be less than or equal to pod limits of {limits[name]}"
                problems.invalid(path, limit, text)
