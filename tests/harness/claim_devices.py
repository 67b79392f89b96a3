"""Which devices a claim gets on a node: what the scheduler's plugin DynamicResources decides.

First fit over ResourceSlices, without constraints between devices and without consumable
capacity. Of CEL it understands comparisons of `device.driver` and of attributes, joined by `&&`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.harness.pods import Json

Device = tuple[str, str, str]  # driver, pool, name
_TERM = re.compile(
    r'device\.(?P<what>driver|attributes\["(?P<domain>[^"]+)"\]\.(?P<id>\w+)) == (?P<value>.+)'
)


class NoDeviceError(Exception):
    """No devices of this node are left for a claim."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A device of a slice."""

    driver: str
    pool: str
    content: Json
    is_local: bool  # only this node can use it

    @property
    def id(self) -> Device:
        return self.driver, self.pool, self.content["name"]

    def satisfies(self, selectors: Sequence[Json]) -> bool:
        return all(self._holds(selector["cel"]["expression"]) for selector in selectors)

    def is_tolerated(self, tolerations: Sequence[Json]) -> bool:
        return all(
            taint["effect"] == "None" or any(_tolerates(one, taint) for one in tolerations)
            for taint in self.content.get("taints") or ()
        )

    def _holds(self, expression: str) -> bool:
        for term in expression.split(" && "):
            match = _TERM.fullmatch(term.strip())
            if match is None:
                raise ValueError(f"this scheduler does not understand {term!r}")
            if self._value(match) != json.loads(match["value"].replace("'", '"')):
                return False
        return True

    def _value(self, match: re.Match[str]) -> Any:
        if match["what"] == "driver":
            return self.driver
        attributes = self.content.get("attributes") or {}
        found = attributes.get(f"{match['domain']}/{match['id']}")
        if found is None and match["domain"] == self.driver:  # the domain that a bare name has
            found = attributes.get(match["id"])
        return next(iter((found or {}).values()), None)


@dataclass(slots=True)
class Choice:
    """An allocation in the making: its results, and the devices that nobody else may have."""

    taken: set[Device]
    results: list[Json] = field(default_factory=list)
    classes: dict[str, Json] = field(default_factory=dict)  # by the request's name
    is_local: bool = False


def offers(slices: Sequence[Json], node: str) -> list[Offer]:
    """Return the devices that a node can use: of complete pools, in their newest generation."""
    pools: dict[tuple[str, str], list[Json]] = {}
    for one in slices:
        pools.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one)
    return [offer for pool in pools.values() for offer in _of_pool(pool, node)]


def _of_pool(slices: list[Json], node: str) -> Iterator[Offer]:
    newest = max(one["spec"]["pool"].get("generation", 0) for one in slices)
    current = [one for one in slices if one["spec"]["pool"].get("generation", 0) == newest]
    if len(current) != current[0]["spec"]["pool"]["resourceSliceCount"]:
        return
    for one in current:
        spec = one["spec"]
        for device in spec.get("devices") or ():
            where = device if spec.get("perDeviceNodeSelection") else spec
            if where.get("nodeName") == node or where.get("allNodes"):
                yield Offer(spec["driver"], spec["pool"]["name"], device, "nodeName" in where)


def allocate(
    claim: Json,
    available: Sequence[Offer],
    classes: dict[str, Json],
    taken: set[Device],
    node: str,
) -> Json:
    """Return the `status.allocation` of a claim; `taken` is what other claims have.

    Raises:
        NoDeviceError: a request cannot be satisfied.
    """
    devices = claim["spec"].get("devices") or {}
    assert not devices.get("constraints"), "this scheduler knows no constraints"
    choice = Choice(set(taken))
    for request in devices.get("requests") or ():
        _satisfy(request, available, classes, choice)
    found: Json = {"devices": {"results": choice.results}}
    if config := _config(devices, choice):
        found["devices"]["config"] = config
    if choice.is_local:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return found


def _satisfy(
    request: Json, available: Sequence[Offer], classes: dict[str, Json], choice: Choice
) -> None:
    """Choose the devices of a request: of its first alternative for which there are enough."""
    name = request["name"]
    alternatives = (
        [(name, request["exactly"])]
        if "exactly" in request
        else [(f"{name}/{one['name']}", one) for one in request["firstAvailable"]]
    )
    for full_name, wish in alternatives:
        device_class = classes.get(wish["deviceClassName"])
        chosen = [] if device_class is None else _fitting(wish, device_class, available, choice)
        if not chosen:
            continue
        assert device_class is not None
        choice.classes[full_name] = device_class
        is_admin = bool(wish.get("adminAccess"))
        for offer in chosen:
            driver, pool, device = offer.id
            result = {"request": full_name, "driver": driver, "pool": pool, "device": device}
            choice.results.append(result | ({"adminAccess": True} if is_admin else {}))
            choice.is_local |= offer.is_local
            if not is_admin:
                choice.taken.add(offer.id)
        return
    raise NoDeviceError(name)


def _fitting(
    wish: Json, device_class: Json, available: Sequence[Offer], choice: Choice
) -> list[Offer]:
    """Return the devices of a wish; none if there are not enough."""
    selectors = [*(device_class["spec"].get("selectors") or ()), *(wish.get("selectors") or ())]
    suitable = [
        offer
        for offer in available
        if offer.satisfies(selectors) and offer.is_tolerated(wish.get("tolerations") or ())
    ]
    # Whoever has admin access may use what others have.
    free = [o for o in suitable if wish.get("adminAccess") or o.id not in choice.taken]
    if wish.get("allocationMode", "ExactCount") == "All":
        return free if len(free) == len(suitable) else []
    count = wish.get("count") or 1
    return free[:count] if len(free) >= count else []


def _config(devices: Json, choice: Choice) -> list[Json]:
    """Return the configuration of classes and then of the claim, as a driver reads it."""
    found = [
        {"source": "FromClass", "requests": [name], **config}
        for name, device_class in choice.classes.items()
        for config in device_class["spec"].get("config") or ()
    ]
    return found + [{"source": "FromClaim", **one} for one in devices.get("config") or ()]


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    is_any = toleration.get("operator", "Equal") == "Exists"
    return is_any or bool(toleration.get("value", "") == taint.get("value", ""))
