"""Rules of ResourceClaim, ResourceClaimTemplate and DeviceClass (KEP-4381).

Source: pkg/apis/resource/validation. CEL expressions are checked for their length only: nothing
here compiles them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping

from kubelet_trio.testing.kube.rules.formats import dns_label, subdomain
from kubelet_trio.testing.kube.rules.problems import IMMUTABLE, Problems
from kubelet_trio.testing.kube.store import Json

MOST = 32  # requests, constraints, configurations, selectors and results
_MOST_SUBREQUESTS = 8
_MOST_POOL = 253  # characters
_MOST_EXPRESSION = 10 * 1024  # bytes
_MODES = ("All", "ExactCount")
_ONE = "exactly one of `exactly` or `firstAvailable` is required"
_REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest "
    "separated by '/'"
)
_EXTENDED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

# The names of a claim's requests, each with those of its subrequests.
Requests = Mapping[str, frozenset[str]]


def default_claim(spec: Json) -> None:
    """Set the defaults of a claim's spec (pkg/apis/resource/v1/defaults.go)."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if one is not None and not one.get("allocationMode"):
                one["allocationMode"] = "ExactCount"
            if one is not None and one["allocationMode"] == "ExactCount" and not one.get("count"):
                one["count"] = 1


def check_claim(problems: Problems, obj: Json) -> None:
    _check_devices(problems, "spec.devices", (obj.get("spec") or {}).get("devices") or {})


def check_template(problems: Problems, obj: Json) -> None:
    spec = (obj.get("spec") or {}).get("spec") or {}
    _check_devices(problems, "spec.spec.devices", spec.get("devices") or {})


def check_same_spec(problems: Problems, old: Json, new: Json) -> None:
    """Check a change of a claim or of a template: their specs are immutable."""
    if old.get("spec") != new.get("spec"):
        problems.invalid("spec", new.get("spec"), IMMUTABLE)


def check_class(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    _check_selectors(problems, "spec.selectors", spec.get("selectors") or [])
    for at, config in enumerate(spec.get("config") or ()):
        check_config(problems, f"spec.config[{at}]", config, None)
    name = spec.get("extendedResourceName")
    if name is not None and (not _EXTENDED.fullmatch(name) or name.startswith("requests.")):
        problems.invalid(
            "spec.extendedResourceName", name, "must be a valid extended resource name"
        )


def _check_devices(problems: Problems, path: str, devices: Json) -> None:
    names = request_names(devices)
    requests = devices.get("requests") or []
    if check_set(problems, f"{path}.requests", requests, MOST, lambda r: r.get("name")):
        for at, request in enumerate(requests):
            _check_request(problems, f"{path}.requests[{at}]", request)
    for at, constraint in enumerate(devices.get("constraints") or ()):
        where = f"{path}.constraints[{at}]"
        for number, name in enumerate(constraint.get("requests") or ()):
            check_reference(problems, f"{where}.requests[{number}]", name, names)
        if not (constraint.get("matchAttribute") or constraint.get("distinctAttribute")):
            problems.required(f"{where}.matchAttribute")
    for at, config in enumerate(devices.get("config") or ()):
        check_config(problems, f"{path}.config[{at}]", config, names)


def _check_request(problems: Problems, path: str, request: Json) -> None:
    check_label(problems, f"{path}.name", request.get("name") or "")
    exactly, first = request.get("exactly"), request.get("firstAvailable") or []
    if exactly is not None and first:
        problems.invalid(path, None, f"{_ONE}, but multiple fields are set")
    elif exactly is not None:
        _check_wish(problems, f"{path}.exactly", exactly)
    elif first:
        below = f"{path}.firstAvailable"
        if check_set(problems, below, first, _MOST_SUBREQUESTS, lambda s: s.get("name")):
            for at, one in enumerate(first):
                check_label(problems, f"{below}[{at}].name", one.get("name") or "")
                _check_wish(problems, f"{below}[{at}]", one)
    else:
        problems.required(path, _ONE)


def _check_wish(problems: Problems, path: str, wish: Json) -> None:
    """Check what a request and a subrequest have in common: class, selectors, count."""
    name, count = wish.get("deviceClassName") or "", wish.get("count") or 0
    if not name:
        problems.required(f"{path}.deviceClassName")
    else:
        for text in subdomain(name):
            problems.invalid(f"{path}.deviceClassName", name, text)
    _check_selectors(problems, f"{path}.selectors", wish.get("selectors") or [])
    mode = wish.get("allocationMode") or ""
    if mode not in _MODES:
        problems.unsupported(f"{path}.allocationMode", mode, _MODES)
    elif mode == "All" and count:
        text = "must not be specified when allocationMode is 'All'"
        problems.invalid(f"{path}.count", count, text)
    elif mode == "ExactCount" and count <= 0:
        problems.invalid(f"{path}.count", count, "must be greater than zero")


def _check_selectors(problems: Problems, path: str, selectors: list[Json]) -> None:
    is_short = check_set(problems, path, selectors, MOST, None)
    for at, selector in enumerate(selectors if is_short else ()):
        expression = (selector.get("cel") or {}).get("expression")
        if expression is None:
            problems.required(f"{path}[{at}].cel")
        elif len(expression.encode()) > _MOST_EXPRESSION:
            problems.too_long(f"{path}[{at}].cel.expression", _MOST_EXPRESSION)


def check_config(problems: Problems, path: str, config: Json, names: Requests | None) -> None:
    for at, name in enumerate(config.get("requests") or ()):
        check_reference(problems, f"{path}.requests[{at}]", name, names or {})
    opaque = config.get("opaque")
    if opaque is None:
        problems.required(f"{path}.opaque")
        return
    check_driver(problems, f"{path}.opaque.driver", opaque.get("driver") or "")
    if not opaque.get("parameters"):
        problems.required(f"{path}.opaque.parameters")


def check_driver(problems: Problems, path: str, name: str) -> None:
    """Check the name of a driver: the rules of CSI's drivers."""
    if not name:
        problems.required(path)
        return
    if len(name) > 63:
        problems.too_long(path, 63)
    for text in subdomain(name.lower()):
        problems.invalid(path, name, text)


def check_pool(problems: Problems, path: str, name: str) -> None:
    """Check the name of a pool: subdomains between slashes."""
    if not name:
        problems.required(path)
        return
    if len(name) > _MOST_POOL:
        problems.too_long(path, _MOST_POOL)
    for part in name.split("/"):
        for text in subdomain(part):
            problems.invalid(path, part, text)


def check_label(problems: Problems, path: str, name: str) -> None:
    for text in dns_label(name):
        problems.invalid(path, name, text)


def check_reference(problems: Problems, path: str, name: str, names: Requests) -> None:
    request, slash, below = name.partition("/")
    if "/" in below:
        problems.invalid(path, name, _REFERENCE)
        return
    for part in (request, below) if slash else (request,):
        check_label(problems, path, part)
    if request not in names or (slash and below not in names[request]):
        problems.invalid(path, name, _REFERENCE)


def check_set(
    problems: Problems,
    path: str,
    items: list[Json],
    most: int | None,
    key: Callable[[Json], Hashable] | None,
) -> bool:
    """Check that a list is not too long and, with a key, that its items differ.

    Returns False if it is too long: then, as upstream, nothing in it is to be checked.
    """
    if most is not None and len(items) > most:
        problems.too_many(path, len(items), most)
        return False
    seen = set[Hashable]()
    for at, item in enumerate(items if key is not None else ()):
        assert key is not None
        if (value := key(item)) in seen:
            problems.duplicate(f"{path}[{at}]", "/".join(map(str, _flat(value))))
        seen.add(value)
    return True


def _flat(value: Hashable) -> Iterable[Hashable]:
    return value if isinstance(value, tuple) else (value,)


def request_names(devices: Json) -> Requests:
    return {
        request.get("name") or "": frozenset(
            one.get("name") or "" for one in request.get("firstAvailable") or ()
        )
        for request in devices.get("requests") or ()
    }
