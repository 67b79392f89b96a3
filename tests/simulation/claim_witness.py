"""A witness of what DRA drivers are asked for, and of what containers get of claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import trio

from kubelet_trio.model import PodUid
from kubelet_trio.testing import FakeContainer
from kubelet_trio.testing.dra import DraCall, DraRules, FakeClaimDevice, calls

_HUGE = 1000  # characters of a name that is an injected fault
# Calls of a driver for one claim within so many seconds; pods that share it each ask anew.
_WINDOW, _MOST = 60.0, 60


class ClaimWitness:
    """Sees each call of each driver, and what containers are given; notes what is wrong.

    Attributes:
        wrong: what was.
        uses: the UIDs of the claims that a pod's sandbox was started with.
        drivers_of: the drivers of each claim that was ever allocated, by UID.
        given: what a driver has last answered for a claim, by driver and UID.
    """

    def __init__(
        self, rules: Mapping[str, DraRules], alive: Callable[[], list[FakeContainer]]
    ) -> None:
        self.wrong: list[str] = []
        self.uses: dict[PodUid, dict[str, str]] = {}  # UIDs by the claims' names
        self.drivers_of: dict[str, frozenset[str]] = {}
        self.given: dict[tuple[str, str], tuple[FakeClaimDevice, ...]] = {}
        self.times: list[tuple[float, str, str, str]] = []  # time, driver, method, UID
        self._rules = rules
        self._alive = alive
        self._busy: set[tuple[str, str]] = set()
        self._answered: set[tuple[str, str]] = set()

    def agent_ended(self) -> None:
        """The next agent may prepare once more what is in use."""
        self._answered.clear()

    def begins(self, driver: str, call: DraCall) -> None:
        for uid in call.uids:
            self.times.append((trio.current_time(), driver, call.method, uid))
            if (driver, uid) in self._busy:
                self._note(f"{call}: {driver} has a call for this claim already")
            if call.method == calls.UNPREPARE:
                self._check_unused(driver, uid)
            elif self._is_whole(uid):
                self._note(f"{call}: {driver} has prepared this claim already")
            self._busy.add((driver, uid))
            self._answered.discard((driver, uid))

    def ends(self, driver: str, call: DraCall) -> None:
        self._busy -= {(driver, uid) for uid in call.uids}

    def prepared(self, driver: str, uid: str, devices: tuple[FakeClaimDevice, ...]) -> None:
        if any(len(device.name) > _HUGE for device in devices):
            return  # which no client takes
        self.given[driver, uid] = devices
        self._answered.add((driver, uid))

    def is_prepared(self, uid: str) -> bool:
        """Whether all drivers of a claim have prepared it."""
        drivers = self.drivers_of.get(uid, frozenset())
        return all(uid in self._rules[driver].prepared for driver in drivers)

    def sandbox_starts(self, uid: PodUid, candidates: dict[str, list[str]]) -> None:
        """Take the claims of a pod whose sandbox starts: the UIDs that each name may stand for."""
        self.uses[uid] = {}
        for name, uids in candidates.items():
            ready = [each for each in uids if self.is_prepared(each)]
            if ready:
                self.uses[uid][name] = ready[-1]
            else:
                self._note(f"the sandbox of {uid} starts before {name} is prepared: {uids}")

    def container_is_created(
        self, uid: PodUid, name: str, asked: Iterable[tuple[str, str]], got: list[str]
    ) -> None:
        """Compare CDI devices with those of the claims and requests that a container names."""
        wanted = list[str]()
        for claim, request in asked:
            claim_uid = self.uses.get(uid, {}).get(claim, "")
            if not self.is_prepared(claim_uid):
                self._note(f"{name} of {uid} is created while {claim} is not prepared")
            wanted += self.ids(claim_uid, request)
        if sorted(set(wanted)) != sorted(got):
            self._note(f"{name} of {uid} gets {got}, should get {wanted}")

    def devices(self, uid: str, request: str) -> Iterator[tuple[str, FakeClaimDevice]]:
        """Yield the driver and each device of a claim for a request, "": all."""
        for driver in sorted(self.drivers_of.get(uid, ())):
            for device in self.given.get((driver, uid), ()):
                names = {name.partition("/")[0] for name in device.requests}
                if not request or request in names:
                    yield driver, device

    def ids(self, uid: str, request: str) -> list[str]:
        return [i for _, device in self.devices(uid, request) for i in device.cdi_ids or ()]

    def check(self, now: float) -> None:
        """Raise AssertionError for what was wrong so far, and is now."""
        assert not self.wrong, "\n".join(self.wrong)
        for container in self._alive():
            uids = self.uses.get(container.uid, {}).values()
            lost = [uid for uid in uids if not self.is_prepared(uid)]
            assert not lost, f"{container.name} of {container.uid} runs without {lost}"
        busiest = max(self.recent(now - _WINDOW).items(), key=_count, default=None)
        assert busiest is None or busiest[1] <= _MOST, f"a storm of calls: {busiest}"

    def recent(self, since: float) -> Counter[tuple[str, str, str]]:
        """Return how many calls there were since a moment, by driver, method and UID."""
        found = Counter[tuple[str, str, str]]()
        for time, *which in reversed(self.times):
            if time < since:
                break
            found[which[0], which[1], which[2]] += 1
        return found

    def _is_whole(self, uid: str) -> bool:
        drivers = self.drivers_of.get(uid, frozenset())
        return bool(drivers) and all((driver, uid) in self._answered for driver in drivers)

    def _check_unused(self, driver: str, uid: str) -> None:
        for container in self._alive():
            if uid in self.uses.get(container.uid, {}).values():
                text = f"{driver} is to unprepare {uid}: {container.name} of {container.uid} runs"
                self._note(text)

    def _note(self, text: str) -> None:
        self.wrong.append(f"t={trio.current_time():g}: {text}")


def _count(entry: tuple[object, int]) -> int:
    return entry[1]
