"""Calls of drivers for batches of claims, and what their answers mean.

Errors are in upstream's words: see the convention at NewManager in pkg/kubelet/cm/dra/manager.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

import trio

from kubelet_trio.managers.claims.types import (
    Claim,
    ClaimDevice,
    ClaimDriver,
    ClaimDrivers,
    ClaimError,
    ClaimRef,
)

T = TypeVar("T")

_PREPARE, _UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


class Answers(Generic[T]):
    """What the drivers of a batch have answered.

    Attributes:
        done: for each claim's UID, what each driver returned that has succeeded.
        errors: what went wrong, by driver.
    """

    def __init__(self) -> None:
        self.done: dict[str, dict[str, T]] = {}
        self.errors: dict[str, ClaimError] = {}

    def is_whole(self, claim: Claim) -> bool:
        """Whether all drivers of a claim have succeeded."""
        return self.done.get(claim.ref.uid, {}).keys() == claim.drivers.keys()

    def check(self) -> None:
        """Raise the first error, by the names of the drivers."""
        for _, error in sorted(self.errors.items()):
            raise error

    def note(self, driver: str, uid: str, value: T) -> None:
        self.done.setdefault(uid, {})[driver] = value


def batches(claims: Iterable[Claim]) -> dict[str, list[ClaimRef]]:
    """Return the claims that each driver has a part in."""
    found: dict[str, list[ClaimRef]] = {}
    for claim in claims:
        for driver in sorted(claim.drivers):
            found.setdefault(driver, []).append(claim.ref)
    return found


async def prepare_all(
    drivers: Mapping[str, ClaimDriver], claims: Sequence[Claim]
) -> Answers[tuple[ClaimDevice, ...]]:
    """Let all drivers prepare claims, side by side."""
    answers = Answers[tuple[ClaimDevice, ...]]()
    async with trio.open_nursery() as calls:
        for name, refs in batches(claims).items():
            calls.start_soon(partial(_prepare, answers, name, drivers[name], refs))
    return answers


async def _prepare(
    answers: Answers[tuple[ClaimDevice, ...]], name: str, driver: ClaimDriver, refs: list[ClaimRef]
) -> None:
    try:
        results = await driver.prepare(refs)
    except ClaimError as exc:
        answers.errors[name] = ClaimError(f"{_PREPARE}: {exc}")
        return
    failed = {uid: r for uid, r in results.items() if isinstance(r, str)}
    for ref in refs:
        devices = results.get(ref.uid, "")
        if not isinstance(devices, str):
            answers.note(name, ref.uid, devices)
    problem = _problem(_PREPARE, refs, results, failed)
    if problem:
        answers.errors[name] = ClaimError(problem)


async def unprepare_all(drivers: ClaimDrivers, claims: Sequence[Claim]) -> Answers[None]:
    """Let all drivers undo their preparation of claims, side by side.

    One that is not registered is an error for its claims only.
    """
    answers = Answers[None]()
    async with trio.open_nursery() as calls:
        for name, refs in batches(claims).items():
            calls.start_soon(_unprepare, answers, name, drivers, refs)
    return answers


async def _unprepare(
    answers: Answers[None], name: str, drivers: ClaimDrivers, refs: list[ClaimRef]
) -> None:
    try:
        driver = drivers.find(name)
    except ClaimError as exc:
        answers.errors[name] = exc
        return
    try:
        results = await driver.unprepare(refs)
    except ClaimError as exc:
        answers.errors[name] = ClaimError(f"{_UNPREPARE}: {exc}")
        return
    failed = {uid: error for uid, error in results.items() if error}
    for ref in refs:
        if results.get(ref.uid) == "":
            answers.note(name, ref.uid, None)
    problem = _problem(_UNPREPARE, refs, results, failed)
    if problem:
        answers.errors[name] = ClaimError(problem)


def _problem(
    call: str, refs: Sequence[ClaimRef], results: Mapping[str, object], failed: Mapping[str, str]
) -> str:
    """Return what is wrong with an answer, "" if it is right."""
    names = {ref.uid: ref.name for ref in refs}
    for uid in sorted(results):
        if uid not in names:
            return f"{call} returned result for unknown claim UID {uid}"
        if uid in failed:
            return f"{call} failed for ResourceClaim {names[uid]}: {failed[uid]}"
    missing = len(names) - len(results)
    return f"{call} skipped {missing} ResourceClaims" if missing else ""
