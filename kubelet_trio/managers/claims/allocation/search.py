"""Searches devices for claims: the first solution in a fixed order, within a number of steps.

All claims that are given are allocated together: a device that one of them could take is left to
another one that needs it. Requests are tried in order, their alternatives in order of preference,
and devices in the order of the names of their pools and slices. The devices of one request are
taken in ascending order: constraints and counters do not depend on the order, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightkube.models.resource_v1 import AllocationResult, DeviceClass, ResourceClaim

from kubelet_trio.managers.claims.allocation.counters import Counters
from kubelet_trio.managers.claims.allocation.devices import (
    AllocationError,
    AttributeValue,
    DeviceId,
    Offered,
    untolerated,
)
from kubelet_trio.managers.claims.allocation.pools import Pool
from kubelet_trio.managers.claims.allocation.requests import (
    MAX_DEVICES,
    Asked,
    Constraint,
    Option,
    read_claim,
)
from kubelet_trio.managers.claims.allocation.result import Taken, result_of
from kubelet_trio.managers.claims.allocation.selectors import Selectors
from kubelet_trio.managers.claims.allocation.why import explain

MAX_STEPS = 100_000  # tried devices; about a second


def allocate(
    claims: Sequence[ResourceClaim],
    pools: Sequence[Pool],
    classes: Mapping[str, DeviceClass],
    in_use: Mapping[DeviceId, str],
    selectors: Selectors,
    *,
    max_steps: int = MAX_STEPS,
) -> list[AllocationResult]:
    """Return an allocation for each of the claims: all of them, or none. Blocks for a while.

    Args:
        claims: without an allocation, usually of one pod.
        pools: that this node can reach: see `gather_pools`.
        classes: by name.
        in_use: allocated devices, with who holds each, for messages; without admin access.
        selectors: evaluates CEL.
        max_steps: after which the search gives up.

    Raises:
        AllocationError: why there is none, of the first claim that has none.
    """
    selectors.begin()
    asked = [read_claim(claim, classes) for claim in claims]
    search = _Search(asked, pools, in_use, selectors, max_steps)
    taken = search.run()
    if taken is None:
        raise AllocationError(explain(asked, pools, in_use, search.matches))
    return [result_of(one, taken[index]) for index, one in enumerate(asked)]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the search is: which request, which of its options, and how many devices it has."""

    request: int = 0
    option: Option | None = None
    count: int = 0
    start: int = 0  # the first device that may be tried


class _Search:
    def __init__(
        self,
        asked: Sequence[Asked],
        pools: Sequence[Pool],
        in_use: Mapping[DeviceId, str],
        selectors: Selectors,
        max_steps: int,
    ) -> None:
        self._asked = asked
        self._requests = [(i, options) for i, one in enumerate(asked) for options in one.requests]
        self._pools = pools
        self._devices = [device for pool in pools for device in pool.devices]
        self._in_use = in_use
        self._selectors = selectors
        self._max_steps = max_steps
        self._steps = 0
        self._counters = Counters(pools, in_use)
        self._matched: dict[tuple[str, int, DeviceId], bool] = {}
        self._taken: list[list[Taken]] = [[] for _ in asked]
        # The claims that have taken a device in this attempt, with admin access or without.
        self._by_claim: dict[DeviceId, list[int]] = {}
        # The values of each constraint's attribute so far.
        self._values: list[list[list[AttributeValue]]] = [
            [[] for _ in one.constraints] for one in asked
        ]

    def run(self) -> list[list[Taken]] | None:
        """Return what each claim takes, or None if there is no solution."""
        # A stack of its own: a pod may ask for more devices than Python may nest calls.
        stack = [self._choices(_Place())]
        while stack:
            place = next(stack[-1], None)
            if place is None:
                stack.pop()
            elif place.request == len(self._requests):
                return self._taken
            else:
                stack.append(self._choices(place))
        return None

    def _choices(self, place: _Place) -> Iterator[_Place]:
        """Make one choice after the other, yield where each leads, and undo it."""
        if place.request == len(self._requests):
            yield place
            return
        claim, options = self._requests[place.request]
        if place.option is None:
            for option in options:
                if len(self._taken[claim]) + self._count(option) <= MAX_DEVICES:
                    yield _Place(place.request, option)
        elif place.count == self._count(place.option):
            # None at all: a request for all devices needs one at least.
            if place.count:
                yield _Place(place.request + 1)
        else:
            yield from self._devices_for(place, place.option, claim)

    def _devices_for(self, place: _Place, option: Option, claim: int) -> Iterator[_Place]:
        if option.count is None:
            candidates = iter([(0, self._all(option)[place.count])])
        else:
            rest = range(place.start, len(self._devices))
            candidates = iter((index, self._devices[index]) for index in rest)
        for index, device in candidates:
            self._step(claim)
            if not self._is_free(device, option, claim) or not self._take(device, option, claim):
                continue
            yield _Place(place.request, option, place.count + 1, index + 1)
            self._give_back(device, option, claim)

    def _step(self, claim: int) -> None:
        self._steps += 1
        if self._steps > self._max_steps:
            raise AllocationError(
                f"{self._asked[claim]}: no devices found in {self._max_steps} steps: ask for fewer "
                "devices, or with fewer constraints"
            )

    def _count(self, option: Option) -> int:
        return option.count if option.count is not None else len(self._all(option))

    def _all(self, option: Option) -> list[Offered]:
        for pool in self._pools:
            if pool.problem:
                raise AllocationError(f"request {option.name} asks for all devices: {pool.problem}")
        return [device for device in self._devices if self.matches(option, device)]

    def matches(self, option: Option, device: Offered) -> bool:
        """Return whether a device is what an option asks for, free or not."""
        key = (option.name, id(option), device.id)
        if key not in self._matched:
            self._matched[key] = all(
                device.capacity.get(_own(name, device), -1) >= least
                for name, least in option.capacity
            ) and all(self._selectors.matches(one, device) for one in option.selectors)
        return self._matched[key]

    def _is_free(self, device: Offered, option: Option, claim: int) -> bool:
        if device.refused:
            return False
        taken = self._by_claim.get(device.id, ())
        if claim in taken or (not option.admin and (taken or device.id in self._in_use)):
            return False
        return self.matches(option, device) and not any(
            untolerated(device.device, option.tolerations)
        )

    def _take(self, device: Offered, option: Option, claim: int) -> bool:
        concerned = self._concerned(option, claim)
        values = []
        for constraint, so_far in concerned:
            value = device.attribute(constraint.attribute)
            if value is None or not _fits(constraint, value, so_far, self._asked[claim]):
                return False
            values.append(value)
        if not self._counters.take(device):
            return False
        for (_, so_far), value in zip(concerned, values, strict=True):
            so_far.append(value)
        self._by_claim.setdefault(device.id, []).append(claim)
        self._taken[claim].append(Taken(option, device))
        return True

    def _give_back(self, device: Offered, option: Option, claim: int) -> None:
        self._taken[claim].pop()
        self._by_claim[device.id].pop()
        if not self._by_claim[device.id]:
            del self._by_claim[device.id]
        for _, so_far in self._concerned(option, claim):
            so_far.pop()
        self._counters.give_back(device)

    def _concerned(
        self, option: Option, claim: int
    ) -> list[tuple[Constraint, list[AttributeValue]]]:
        constraints = self._asked[claim].constraints
        return [
            (constraint, so_far)
            for constraint, so_far in zip(constraints, self._values[claim], strict=True)
            if constraint.concerns(option)
        ]


def _own(name: str, device: Offered) -> str:
    """Return a capacity's name as the device has it: without a domain if that is the driver's."""
    domain, slash, short = name.partition("/")
    if name not in device.capacity and slash and domain == device.id.driver:
        return short
    if name not in device.capacity and not slash:
        return f"{device.id.driver}/{name}"
    return name


def _fits(
    constraint: Constraint, value: AttributeValue, so_far: list[AttributeValue], asked: Asked
) -> bool:
    if isinstance(value, tuple):
        raise AllocationError(
            f"{asked}: attribute {constraint.attribute} of a constraint is a list, which this "
            "agent does not compare"
        )
    # Values of different types differ: True is not 1, and a version is not a string.
    same = [type(one) is type(value) and one == value for one in so_far]
    return not any(same) if constraint.distinct else all(same)
