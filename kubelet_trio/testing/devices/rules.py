"""What a kubelet must keep towards a device plugin, as a state machine without I/O.

A plugin notes what it has listed, and asks `DeviceRules` before each call. What the kubelet may
never do is refused, and recorded by name: `violations` must be empty at the end of a test.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.devices import calls
from kubelet_trio.testing.devices.calls import AskedDevices, DeviceCall, FakeDevice

_FOREVER = float("inf")


class DeviceRule(enum.StrEnum):
    """What a kubelet must keep; each value is the name of a violation."""

    OPTION = "a call that the plugin's options do not offer"
    NOT_EMPTY = "nothing is asked for"
    LISTED = "a device that the plugin does not list"
    HEALTHY = "a device that is unhealthy"
    ONCE = "one device twice in a call"
    OWN_DEVICE = "a device that another container has"
    ALLOCATED = "prepared for a start without having been allocated"
    MUST_BE_AVAILABLE = "a device must be included that is not available"
    SIZE = "fewer devices than must be included, or more than are available"


@dataclass(frozen=True, slots=True)
class DeviceViolation:
    """A call that broke a rule."""

    rule: DeviceRule
    text: str
    call: DeviceCall

    def __str__(self) -> str:
        return f"{self.call.method}: {self.rule}: {self.text}"


class DeviceRules:
    """What a plugin has listed and allocated, and whether the kubelet keeps the rules."""

    def __init__(
        self,
        *,
        prefers: bool = False,
        needs_pre_start: bool = False,
        is_exclusive: bool = False,
        settle: float = 1.0,
    ) -> None:
        """Create rules for a plugin that has listed nothing yet.

        Args:
            prefers: whether the plugin's options offer GetPreferredAllocation.
            needs_pre_start: whether they ask for PreStartContainer.
            is_exclusive: whether an allocated device must not be allocated again before the test
                says `give_back`: the API has no call for that. A kubelet gives the devices of an
                init container to the next containers of its pod, which this counts as a violation.
            settle: seconds that the kubelet has to notice a new list.
        """
        self.prefers, self.needs_pre_start = prefers, needs_pre_start
        self.is_exclusive, self.settle = is_exclusive, settle
        self.violations: list[DeviceViolation] = []
        self.earlier: list[str] = []  # violations of earlier lives
        self.log: list[DeviceCall] = []
        self.allocated: Counter[str] = Counter()  # how often, by device
        self._held: set[str] = set()
        # Until when the kubelet may take devices for listed, and for healthy.
        self._listed: dict[str, float] = {}
        self._healthy: dict[str, float] = {}

    # What a test asks

    def check(self) -> None:
        """Raise AssertionError if the kubelet broke a rule."""
        if broken := self.broken():
            raise AssertionError("\n".join(broken))

    def broken(self) -> list[str]:
        """Return the violations of all lives of the plugin."""
        return [*self.earlier, *map(str, self.violations)]

    def give_back(self, *devices: str) -> None:
        """Note that no container has these devices any more; without any: all devices."""
        self._held -= set(devices) or set(self._held)

    # What a plugin asks

    def note_list(self, devices: Iterable[FakeDevice], now: float) -> None:
        """Note that the kubelet is sent a list, at a time in seconds."""
        listed = tuple(devices)
        _renew(self._listed, {device.id for device in listed}, now + self.settle)
        healthy = {device.id for device in listed if device.is_healthy}
        _renew(self._healthy, healthy, now + self.settle)

    def take(self, call: DeviceCall, now: float) -> None:
        """Check a call at a time in seconds. Raises `GRPCError`: the answer instead."""
        self.log.append(call)
        if call.method == calls.PREFER:
            self._check_option(call, self.prefers)
            self._check_not_empty(call)
            for asked in call.containers:
                self._check_preference(call, asked, now)
        elif call.method == calls.ALLOCATE:
            self._check_not_empty(call)
            self._check_usable(call, call.ids, now)
            if self.is_exclusive and (taken := sorted(self._held.intersection(call.ids))):
                self._break(DeviceRule.OWN_DEVICE, call, ", ".join(taken))
        elif call.method == calls.PRE_START:
            self._check_option(call, self.needs_pre_start)
            self._check_not_empty(call)
            if never := sorted(set(call.ids) - self.allocated.keys()):
                self._break(DeviceRule.ALLOCATED, call, ", ".join(never))

    def answer(self, call: DeviceCall) -> None:
        """Note that a call took effect."""
        if call.method == calls.ALLOCATE:
            self.allocated.update(call.ids)
            self._held.update(call.ids)

    def _check_option(self, call: DeviceCall, is_offered: bool) -> None:
        if not is_offered:
            self._break(DeviceRule.OPTION, call, call.method, Status.UNIMPLEMENTED)

    def _check_not_empty(self, call: DeviceCall) -> None:
        wanted = (asked.ids or asked.size for asked in call.containers)
        if not call.containers or not all(wanted):
            self._break(DeviceRule.NOT_EMPTY, call, str(call), Status.INVALID_ARGUMENT)

    def _check_preference(self, call: DeviceCall, asked: AskedDevices, now: float) -> None:
        self._check_usable(call, asked.available, now)
        if absent := sorted(set(asked.must_include) - set(asked.available)):
            self._break(DeviceRule.MUST_BE_AVAILABLE, call, ", ".join(absent))
        if not len(asked.must_include) <= asked.size <= len(asked.available):
            of = f"{asked.size} of {len(asked.available)}, {len(asked.must_include)} included"
            self._break(DeviceRule.SIZE, call, of, Status.INVALID_ARGUMENT)

    def _check_usable(self, call: DeviceCall, ids: tuple[str, ...], now: float) -> None:
        if twice := sorted(device for device, times in Counter(ids).items() if times > 1):
            self._break(DeviceRule.ONCE, call, ", ".join(twice), Status.INVALID_ARGUMENT)
        for rule, known in (
            (DeviceRule.LISTED, self._listed),
            (DeviceRule.HEALTHY, self._healthy),
        ):
            if wrong := sorted(device for device in ids if known.get(device, -_FOREVER) < now):
                self._break(rule, call, ", ".join(wrong))

    def _break(
        self,
        rule: DeviceRule,
        call: DeviceCall,
        text: str,
        status: Status = Status.FAILED_PRECONDITION,
    ) -> None:
        """Record a violation, and refuse the call."""
        self.violations.append(DeviceViolation(rule, text, call))
        raise GRPCError(status, f"{rule}: {text}")

    # Across a restart of the plugin

    def to_json(self) -> dict[str, Any]:
        """Return what must outlive the plugin."""
        return {
            "allocated": dict(self.allocated),
            "held": sorted(self._held),
            "violations": self.broken(),
        }

    def from_json(self, saved: Mapping[str, Any]) -> None:
        """Continue from what an earlier plugin saved."""
        self.allocated = Counter(saved["allocated"])
        self._held = set(saved["held"])
        self.earlier = list(saved["violations"])


def _renew(known: dict[str, float], now_so: set[str], others_until: float) -> None:
    """Let devices be so from now on, and those that were so no longer than until a time."""
    for device, until in known.items():
        known[device] = min(until, others_until)
    known.update(dict.fromkeys(now_so, _FOREVER))
