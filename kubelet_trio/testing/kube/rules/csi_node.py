"""Rules of CSINode."""

from __future__ import annotations

from kubelet_trio.testing.kube.rules.formats import qualified_name, subdomain
from kubelet_trio.testing.kube.rules.problems import NOT_NEGATIVE, Problems, shown
from kubelet_trio.testing.kube.store import Json


def check_csi_node(problems: Problems, obj: Json) -> None:
    names = set()
    for at, driver in enumerate((obj.get("spec") or {}).get("drivers") or ()):
        path = f"spec.drivers[{at}]"
        _check_driver(problems, path, driver)
        name = driver.get("name") or ""
        if name in names:
            problems.duplicate(f"{path}.name", name)
        names.add(name)


def check_changed_csi_node(problems: Problems, old: Json, new: Json) -> None:
    """A driver may come and go; what it said of itself stays, but for the count (KEP-4876)."""
    check_csi_node(problems, new)
    before = {d.get("name"): d for d in (old.get("spec") or {}).get("drivers") or ()}
    for at, driver in enumerate((new.get("spec") or {}).get("drivers") or ()):
        was = before.get(driver.get("name"))
        if was is not None and {**was, "allocatable": None} != {**driver, "allocatable": None}:
            problems.invalid(f"spec.drivers[{at}]", shown(driver), "field is immutable")


def _check_driver(problems: Problems, path: str, driver: Json) -> None:
    name, node_id = driver.get("name") or "", driver.get("nodeID") or ""
    if not name:
        problems.required(f"{path}.name")
    else:
        if len(name) > 63:
            problems.too_long(f"{path}.name", 63)
        for text in subdomain(name.lower()) if name.islower() else subdomain(name):
            problems.invalid(f"{path}.name", name, text)
    if not node_id:
        problems.required(f"{path}.nodeID")
    elif len(node_id) > 256:
        problems.invalid(f"{path}.nodeID", node_id, "must be 256 characters or less")
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        problems.invalid(f"{path}.allocatable.count", count, NOT_NEGATIVE)
    keys = set()
    for key in driver.get("topologyKeys") or ():
        if not key:
            problems.required(path)
        if key in keys:
            problems.duplicate(path, key)
        keys.add(key)
        for text in qualified_name(key):
            problems.invalid(path, key, text)
