"""Rules of the status of a ResourceClaim: allocation, consumers, what drivers say of devices.

Source: ValidateResourceClaimStatusUpdate in pkg/apis/resource/validation, and the strategy in
pkg/registry/resource/resourceclaim.
"""

from __future__ import annotations

import re

from kubelet_trio.testing.kube.rules.claims import (
    MOST,
    Requests,
    check_config,
    check_driver,
    check_label,
    check_pool,
    check_reference,
    check_set,
    request_names,
)
from kubelet_trio.testing.kube.rules.problems import IMMUTABLE, Problems
from kubelet_trio.testing.kube.store import Json

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_MOST_CONSUMERS = 256
_SOURCES = ("FromClaim", "FromClass")
_ADDED = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
_NOT_ADMIN = (
    f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
)
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def prepare_claim_status(old: Json, new: Json) -> None:
    """Drop what drivers said of devices that a claim no longer has."""
    # dropDeallocatedStatusDevices in pkg/registry/resource/resourceclaim/strategy.go
    status = new.get("status") or {}
    gone = _devices(old.get("status") or {}) - _devices(status)
    if gone and status.get("devices"):
        left = [device for device in status["devices"] if _device(device) not in gone]
        new["status"] = {**status, "devices": left}
        if not left:
            del new["status"]["devices"]


def check_admin(problems: Problems, old: Json | None, new: Json, namespace: Json) -> None:
    """Check that only claims in namespaces of administrators ask for admin access, or get it.

    `old` is None for a new claim or template.
    """
    # AuthorizedForAdmin and AuthorizedForAdminStatus in pkg/registry/resource; the path of a
    # template's request is upstream's.
    if (namespace["metadata"].get("labels") or {}).get(ADMIN_LABEL) == "true":
        return
    if old is None:
        spec = new.get("spec") or {}
        requests = ((spec.get("spec") or spec).get("devices") or {}).get("requests") or []
        asked = [bool((request.get("exactly") or {}).get("adminAccess")) for request in requests]
        path = "spec.devices.requests"
    elif any(result.get("adminAccess") for result in _results(old.get("status") or {})):
        return
    else:
        results = _results(new.get("status") or {})
        asked = [bool(result.get("adminAccess")) for result in results]
        path = "status.allocation.devices.results"
    if True in asked:
        problems.forbidden(f"{path}[{asked.index(True)}].adminAccess", _NOT_ADMIN)


def check_claim_status(problems: Problems, old: Json, new: Json) -> None:
    """Check a status against the claim's spec and the previous status."""
    was, now = old.get("status") or {}, new.get("status") or {}
    names = request_names((new.get("spec") or {}).get("devices") or {})
    allocation, consumers = now.get("allocation"), now.get("reservedFor") or []
    path = "status.reservedFor"
    is_short = check_set(problems, path, consumers, _MOST_CONSUMERS, lambda c: c.get("uid"))
    for at, consumer in enumerate(consumers if is_short else ()):
        for field in ("resource", "name", "uid"):
            if not consumer.get(field):
                problems.required(f"{path}[{at}].{field}")
    _check_told(problems, now)
    if consumers and allocation is None:
        problems.forbidden(path, "may not be specified when `allocated` is not set")
    elif "deletionTimestamp" in new["metadata"]:
        known = [consumer.get("uid") for consumer in was.get("reservedFor") or ()]
        if any(consumer.get("uid") not in known for consumer in consumers):
            problems.forbidden(path, _ADDED)
    if allocation is not None and was.get("allocation") is not None:
        if allocation != was["allocation"]:
            problems.invalid("status.allocation", allocation, IMMUTABLE)
    elif allocation is not None:
        _check_allocation(problems, allocation, names)


def _check_told(problems: Problems, status: Json) -> None:
    """Check what drivers say of the devices of a claim (KEP-4817)."""
    told, allocated = status.get("devices") or [], _devices(status)
    check_set(problems, "status.devices", told, None, _device)
    for at, device in enumerate(told):
        if _device(device) not in allocated:
            value = {field: device.get(field) for field in ("driver", "pool", "device")}
            text = "must be an allocated device in the claim"
            problems.invalid(f"status.devices[{at}]", value, text)


def _check_allocation(problems: Problems, allocation: Json, names: Requests) -> None:
    path, devices = "status.allocation.devices", allocation.get("devices") or {}
    results = devices.get("results") or []
    is_short = check_set(problems, f"{path}.results", results, MOST, None)
    for at, result in enumerate(results if is_short else ()):
        where = f"{path}.results[{at}]"
        check_reference(problems, f"{where}.request", result.get("request") or "", names)
        check_driver(problems, f"{where}.driver", result.get("driver") or "")
        check_pool(problems, f"{where}.pool", result.get("pool") or "")
        check_label(problems, f"{where}.device", result.get("device") or "")
        share = result.get("shareID")
        if share is not None and not _UID.fullmatch(share):
            problems.invalid(f"{where}.shareID", share, "error validating uid: invalid UUID format")
    for at, config in enumerate(devices.get("config") or ()):
        where = f"{path}.config[{at}]"
        if not config.get("source"):
            problems.required(f"{where}.source")
        elif config["source"] not in _SOURCES:
            problems.unsupported(f"{where}.source", config["source"], _SOURCES)
        check_config(problems, where, config, names)


def _results(status: Json) -> list[Json]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or []


def _device(result: Json) -> tuple[str, ...]:
    return tuple(result.get(field) or "" for field in ("driver", "pool", "device", "shareID"))


def _devices(status: Json) -> set[tuple[str, ...]]:
    return {_device(result) for result in _results(status)}
