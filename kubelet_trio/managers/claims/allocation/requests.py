"""What a claim asks for, request by request; and what it may not ask for on this node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)

from kubelet_trio.managers.claims.allocation.devices import AllocationError
from kubelet_trio.model import parse_quantity

MAX_DEVICES = 32  # of one claim: AllocationResultsMaxSize


@dataclass(frozen=True, slots=True)
class Selector:
    """A CEL expression, and whose it is: `class gpu.example.com: selector #0`."""

    expression: str
    owner: str


@dataclass(frozen=True, slots=True)
class Option:
    """One way to satisfy a request: the request itself, or one of its prioritized alternatives.

    Attributes:
        request: the name of the request.
        name: `request`, or `request/subrequest`.
        device_class: of its devices.
        selectors: all of them must match: the class's, then the request's.
        count: of devices; None: all that match.
        tolerations: of devices' taints.
        admin: whether devices in use may be taken, too.
        capacity: in nano-units by qualified name; a device must have as much.
    """

    request: str
    name: str
    device_class: DeviceClass
    selectors: tuple[Selector, ...]
    count: int | None
    tolerations: tuple[DeviceToleration, ...] = ()
    admin: bool = False
    capacity: tuple[tuple[str, int], ...] = ()

    @property
    def class_name(self) -> str:
        return _name(self.device_class.metadata)


@dataclass(frozen=True, slots=True)
class Constraint:
    """An attribute that is the same in all devices of some requests, or another in each.

    Attributes:
        attribute: its fully qualified name.
        distinct: whether the values must differ.
        requests: names of requests or `request/subrequest`; empty: of all.
    """

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def concerns(self, option: Option) -> bool:
        names = self.requests
        return not names or option.request in names or option.name in names


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a claim asks for: one option of each request, in order of preference."""

    claim: ResourceClaim
    requests: tuple[tuple[Option, ...], ...]
    constraints: tuple[Constraint, ...]

    def __str__(self) -> str:
        return f"ResourceClaim {_name(self.claim.metadata)}"


def devices_of(claim: ResourceClaim) -> DeviceClaim:
    """Return a claim's wishes; an empty one wants nothing."""
    return (claim.spec or ResourceClaimSpec()).devices or DeviceClaim()


def read_claim(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> Asked:
    """Return what a claim asks for.

    Raises:
        AllocationError: a class is not there, or the claim asks for what this node cannot give.
    """
    where = f"ResourceClaim {_name(claim.metadata)}"
    wanted = devices_of(claim)
    requests = tuple(tuple(_options(request, classes, where)) for request in wanted.requests or ())
    least = sum(min(option.count or 1 for option in options) for options in requests if options)
    if least > MAX_DEVICES:
        raise AllocationError(
            f"{where}: number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}"
        )
    constraints = []
    for index, each in enumerate(wanted.constraints or ()):
        attribute = each.matchAttribute or each.distinctAttribute
        if not attribute:
            raise AllocationError(
                f"{where}, constraint #{index}: empty constraint (unsupported constraint type?)"
            )
        distinct = not each.matchAttribute
        constraints.append(Constraint(attribute, distinct, frozenset(each.requests or ())))
    return Asked(claim, requests, tuple(constraints))


def _options(
    request: DeviceRequest, classes: Mapping[str, DeviceClass], where: str
) -> Iterator[Option]:
    if request.exactly is not None:
        yield _option(request.name, request.name, request.exactly, classes, where)
        return
    if not request.firstAvailable:
        raise AllocationError(f"{where}, request {request.name}: unsupported request type")
    for sub in request.firstAvailable:
        yield _option(request.name, f"{request.name}/{sub.name}", sub, classes, where)


def _option(
    request: str,
    name: str,
    wish: ExactDeviceRequest | DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
    where: str,
) -> Option:
    label = f"{where}, request {name}"
    device_class = classes.get(wish.deviceClassName)
    if device_class is None:
        raise AllocationError(f"{label}: there is no DeviceClass {wish.deviceClassName}")
    if wish.derivedAttributes:
        raise AllocationError(f"{label}: derived attributes are not supported by this agent")
    mode = wish.allocationMode or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise AllocationError(f"{label}: unsupported count mode {mode}")
    own = device_class.spec.selectors if device_class.spec is not None else None
    try:
        capacity = tuple(
            (each, parse_quantity(text))
            for each, text in ((wish.capacity.requests if wish.capacity else None) or {}).items()
        )
    except ValueError as exc:
        raise AllocationError(f"{label}: capacity: {exc}") from exc
    return Option(
        request,
        name,
        device_class,
        (
            *_selectors(own or (), f"class {wish.deviceClassName}"),
            *_selectors(wish.selectors or (), label),
        ),
        None if mode == "All" else (wish.count or 1),
        tuple(wish.tolerations or ()),
        isinstance(wish, ExactDeviceRequest) and bool(wish.adminAccess),
        capacity,
    )


def _selectors(given: Sequence[object], owner: str) -> Iterator[Selector]:
    for index, each in enumerate(given):
        cel = getattr(each, "cel", None)
        if cel is None:
            raise AllocationError(
                f"{owner}, selector #{index}: CEL expression empty (unsupported selector type?)"
            )
        yield Selector(cel.expression, f"{owner}: selector #{index}")


def _name(meta: ObjectMeta | None) -> str:
    return (meta.name if meta is not None else None) or ""
