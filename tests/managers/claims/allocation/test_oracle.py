"""The search against a brute force that tries every combination, in small worlds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.resource_v1 import ResourceClaim

from kubelet_trio.managers.claims.allocation import AllocationError, DeviceId
from tests.managers.claims.allocation.worlds import (
    DRIVER,
    claim,
    device,
    device_class,
    exactly,
    names,
    resource_slice,
    run,
)

TAINT = [{"key": "k", "effect": "NoSchedule"}]
TOLERATES = [{"operator": "Exists"}]
COUNTERS = [{"name": "set", "counters": {"c": {"value": "2"}}}]
CLASSES = [device_class(), device_class("even", f'"{DRIVER}" == device.driver', "true")]


@st.composite
def devices(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for index in range(draw(st.integers(0, 5))):
        fields: dict[str, Any] = {"attributes": {}}
        if draw(st.integers(0, 4)):
            fields["attributes"] = {"numa": draw(st.integers(0, 1))}
        if not draw(st.integers(0, 4)):
            fields["taints"] = TAINT
        if draw(st.booleans()):
            used = {"c": {"value": str(draw(st.integers(0, 2)))}}
            fields["consumesCounters"] = [{"counterSet": "set", "counters": used}]
        found.append(device(f"d{index}", **fields))
    return found


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    wish: dict[str, Any] = {"deviceClassName": draw(st.sampled_from([DRIVER, "even"]))}
    if draw(st.integers(0, 5)):
        wish["count"] = draw(st.integers(1, 3))
    else:
        wish["allocationMode"] = "All"
    if draw(st.booleans()):
        wish["tolerations"] = TOLERATES
    return wish


@st.composite
def claims(draw: st.DrawFn, name: str) -> ResourceClaim:
    requests: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 3))):
        request = f"r{index}"
        if draw(st.integers(0, 2)):
            admin = {"adminAccess": True} if not draw(st.integers(0, 4)) else {}
            requests.append({"name": request, "exactly": {**draw(wishes()), **admin}})
        else:
            options = [{"name": f"o{n}", **draw(wishes())} for n in range(draw(st.integers(1, 2)))]
            requests.append({"name": request, "firstAvailable": options})
    constraints: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        targets = draw(st.sampled_from([[], ["r0"], ["r0", "r1"], ["r1/o0"]]))
        constraints.append({kind: f"{DRIVER}/numa", "requests": targets})
    return claim(*requests, name=name, constraints=constraints)


Choice = tuple[str, Any, tuple[int, ...]]  # name, wish, devices


def choices(request: Any, everything: range) -> Iterator[Choice]:
    """Yield every way to satisfy a request, as if it were alone on an idle node."""
    if request.exactly is not None:
        options = [(request.name, request.exactly)]
    else:
        options = [(f"{request.name}/{o.name}", o) for o in request.firstAvailable]
    for name, wish in options:
        if wish.allocationMode == "All":
            if everything:
                yield name, wish, tuple(everything)
        else:
            for chosen in itertools.combinations(everything, wish.count or 1):
                yield name, wish, chosen


def is_valid(
    wanted: list[ResourceClaim],
    found: list[list[Choice]],
    offered: list[dict[str, Any]],
    used: set[int],
) -> bool:
    holders: dict[int, int] = {}  # takes without admin access
    takes: list[int] = []
    for one, chosen in zip(wanted, found, strict=True):
        within = [index for _, _, indices in chosen for index in indices]
        if len(set(within)) < len(within):
            return False
        takes += within
        for _, wish, indices in chosen:
            admin = getattr(wish, "adminAccess", None)
            for index in indices:
                if offered[index].get("taints") and not wish.tolerations:
                    return False
                if not admin and index in used:
                    return False
                holders[index] = holders.get(index, 0) + (not admin)
        for constraint in one.spec.devices.constraints or ():  # type: ignore[union-attr]  # each has devices
            names_ = constraint.requests or []
            values = [
                offered[index]["attributes"].get("numa", {}).get("int")
                for name, _, indices in chosen
                if not names_ or name in names_ or name.partition("/")[0] in names_
                for index in indices
            ]
            if None in values:
                return False
            different = len(set(values))
            if constraint.matchAttribute and different > 1:
                return False
            if constraint.distinctAttribute and different < len(values):
                return False
    # Without admin access, and after somebody else: never.
    order: dict[int, bool] = {}
    for chosen in found:
        for _, wish, indices in chosen:
            for index in indices:
                if index in order and not getattr(wish, "adminAccess", None):
                    return False
                order[index] = True
    consumed = 0
    for index in [*takes, *used]:
        for use in offered[index].get("consumesCounters", ()):
            consumed += int(use["counters"]["c"]["value"])
    return consumed <= 2 or not any(
        int(use["counters"]["c"]["value"]) >= 0
        for index in takes
        for use in offered[index].get("consumesCounters", ())
    )


def brute_force(
    wanted: list[ResourceClaim], offered: list[dict[str, Any]], used: set[int]
) -> list[list[str]] | None:
    ways = [
        list(choices(request, range(len(offered))))
        for one in wanted
        for request in one.spec.devices.requests  # type: ignore[union-attr]  # each has devices
    ]
    sizes = [len(one.spec.devices.requests or ()) for one in wanted]  # type: ignore[union-attr]  # each has devices
    for combination in itertools.product(*ways):
        rest = iter(combination)
        found = [list(itertools.islice(rest, size)) for size in sizes]
        if is_valid(wanted, found, offered, used):
            return [
                [f"{name}=d{index}" for name, _, indices in chosen for index in indices]
                for chosen in found
            ]
    return None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_search_finds_what_a_brute_force_finds_first(data: st.DataObject) -> None:
    offered = data.draw(devices())
    wanted = [data.draw(claims("a"))]
    if data.draw(st.booleans()):
        wanted.append(data.draw(claims("b")))
    used = {i for i in range(len(offered)) if data.draw(st.integers(0, 4)) == 0}
    slices = [
        resource_slice(name="s0", count=2, sharedCounters=COUNTERS),
        resource_slice(*offered, count=2),
    ]
    in_use = {DeviceId(DRIVER, "n1", f"d{index}"): "default/other" for index in used}
    expected = brute_force(wanted, offered, used)
    try:
        found = [names(result) for result in run(wanted, slices, CLASSES, in_use)]
    except AllocationError:
        assert expected is None
    else:
        assert found == expected


def test_the_oracle_knows_the_plain_case() -> None:
    offered = [device("d0"), device("d1")]
    assert brute_force([claim(exactly(count=2))], offered, set()) == [["r=d0", "r=d1"]]
    assert brute_force([claim(exactly(count=2))], offered, {1}) is None
