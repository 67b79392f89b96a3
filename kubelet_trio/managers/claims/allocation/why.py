"""Says why there are no devices for claims, in one line for the pod's event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kubelet_trio.managers.claims.allocation.devices import (
    AllocationError,
    DeviceId,
    Offered,
    untolerated,
)
from kubelet_trio.managers.claims.allocation.pools import Pool
from kubelet_trio.managers.claims.allocation.requests import Asked, Option

_SHOWN = 3  # names of each kind in a message


def explain(
    asked: Sequence[Asked],
    pools: Sequence[Pool],
    in_use: Mapping[DeviceId, str],
    matches: Callable[[Option, Offered], bool],
) -> str:
    """Return why the search found nothing: the first request that cannot be satisfied even alone.

    If each could be alone, it is their combination: counters, constraints, or a device that two
    of them need.
    """
    for one in asked:
        for options in one.requests:
            told = [_shortage(option, pools, in_use, matches) for option in options]
            if all(told):
                return f"{one}: no device: {'; '.join(told)}{_problems(pools)}"
    names = ", ".join(str(one) for one in asked)
    return (
        f"{names}: no devices: every request can be satisfied alone, but not all of them together "
        f"with the constraints and counters{_problems(pools)}"
    )


def _shortage(
    option: Option,
    pools: Sequence[Pool],
    in_use: Mapping[DeviceId, str],
    matches: Callable[[Option, Offered], bool],
) -> str:
    """Return what is missing for one option alone; "": nothing."""
    free: list[Offered] = []
    held: list[str] = []
    out: list[str] = []
    for device in (device for pool in pools for device in pool.devices):
        try:
            if not matches(option, device):
                continue
        except AllocationError:  # was not evaluated before, because it is in use
            continue
        taint = next(untolerated(device.device, option.tolerations), None)
        if device.refused:
            out.append(f"{device.id} {device.refused}")
        elif device.id in in_use and not option.admin:
            held.append(f"{device.id} is in use by {in_use[device.id]}")
        elif taint is not None:
            out.append(f"{device.id} has taint {taint.key}:{taint.effect}")
        else:
            free.append(device)
    wanted = option.count
    if wanted is None:
        if free and not held and not out:
            return ""
        text = f"all of class {option.class_name} wanted, {len(free)} free"
    elif len(free) >= wanted:
        return ""
    else:
        text = f"{wanted} of class {option.class_name} wanted, {len(free)} free"
    details = list(_details(held + out)) or list(_places(pools, free))
    return f"request {option.name}: {text}" + (f" ({', '.join(details)})" if details else "")


def _details(items: Sequence[str]) -> Iterator[str]:
    yield from items[:_SHOWN]
    if len(items) > _SHOWN:
        yield f"and {len(items) - _SHOWN} more"


def _places(pools: Sequence[Pool], free: Sequence[Offered]) -> Iterator[str]:
    """Yield the pools that were looked at."""
    if not pools:
        yield "no ResourceSlice is of this node"
    elif free:
        names = dict.fromkeys(f"pool {device.id.driver}/{device.id.pool}" for device in free)
        yield from _details(list(names))
    else:
        yield from _details([f"none of pool {pool} matches" for pool in pools if not pool.problem])


def _problems(pools: Sequence[Pool]) -> str:
    return "".join(f"; {pool.problem}" for pool in pools if pool.problem)
