"""What the plugins list now, and since when those are gone that have stopped.

The single owner of the resources' devices. It does no I/O: the task of each plugin reports here.

    served     its devices count, and the healthy ones can be allocated
    stopped    the plugin has ended, or the agent has started: no device can be allocated; the
               capacity stays for 5 min, so that pods find the resource that they ask for
    removed    after that: the capacity is 0, and nobody gets such a device

Source: markResourceUnhealthy and GetCapacity of pkg/kubelet/cm/devicemanager/manager.go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.devices.rules import DeviceRules
from kubelet_trio.managers.devices.types import Device, DeviceState, Listed
from kubelet_trio.managers.types import Hint, Hints, Refusal
from kubelet_trio.model import PodUid

GRACE = 300.0  # s: endpointStopGracePeriod
MOST_RESOURCES = 256  # of a node, removed ones too; a machine with many kinds of devices has ten


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """The devices of a node, for its status: counts by resource.

    Attributes:
        capacity: all devices.
        allocatable: the healthy ones.
        removed: resources whose plugin has not come back: 0 of them. They stay in the status, so
            that nobody takes them for resources of the whole cluster.
    """

    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


class Inventory:
    """The devices of the node; a `Manager[DeviceState]` by what is known of them now."""

    def __init__(
        self,
        machine: int = 1,
        was_admitted: Callable[[PodUid, str], bool] = lambda _uid, _container: False,
    ) -> None:
        """Begin without resources; the arguments are those of `DeviceRules`."""
        self._rules = DeviceRules({}, machine, was_admitted)
        self._stopped: dict[str, float] = {}
        self._removed: frozenset[str] = frozenset()
        self.awaited: frozenset[str] = frozenset()  # restored, and not registered since

    @property
    def rules(self) -> DeviceRules:
        """The rules for the devices of this moment."""
        return self._rules

    @property
    def registered(self) -> Mapping[str, tuple[str, ...]]:
        """The healthy devices by resource, as checkpoints have them."""
        return {name: tuple(sorted(each.healthy)) for name, each in self._rules.listed.items()}

    def restore(self, resources: Iterable[str]) -> None:
        """Add the resources of an earlier agent, whose plugins have not come back yet."""
        for resource in resources:
            self._put(resource, Listed(is_served=False))
            self._stopped[resource] = math.inf
            self.awaited |= {resource}

    def start_grace(self, now: float) -> None:
        """Let the grace of the restored resources begin: plugins can register from now on."""
        waiting = [name for name, since in self._stopped.items() if since == math.inf]
        self._stopped |= dict.fromkeys(waiting, now)

    def register(self, resource: str) -> None:
        """Note that a plugin serves a resource. It has not listed its devices yet.

        Until it does, the resource is as it was: 0 healthy devices after a restart, those of its
        predecessor where a plugin has replaced another.
        """
        self._stopped.pop(resource, None)
        self.awaited -= {resource}

    def take(self, resource: str, devices: Mapping[str, Device]) -> frozenset[str]:
        """Take a plugin's list over; return the IDs with another health, or new to the agent."""
        before = self._rules.listed.get(resource, Listed()).devices
        self._put(resource, Listed(devices))
        self._removed -= {resource}
        return frozenset(
            name
            for name, device in devices.items()
            if name not in before or before[name].health != device.health
        )

    def stop(self, resource: str, now: float) -> None:
        """Note that a resource's plugin has ended: its devices cannot be allocated any more.

        One that ended before its first list leaves a resource without devices.
        """
        known = self._rules.listed.get(resource, Listed())
        self._put(resource, replace(known, is_served=False))
        self._removed -= {resource}
        self._stopped[resource] = now

    def expire(self, now: float) -> bool:
        """Remove resources whose grace has ended; return whether there were any."""
        # As `next_expiry` rounds it: `now - since` may be a little less at that very time.
        gone = {name for name, since in self._stopped.items() if now >= since + GRACE}
        for name in gone:
            del self._stopped[name]
        if gone:
            kept = {name: d for name, d in self._rules.listed.items() if name not in gone}
            self._rules = replace(self._rules, listed=kept)
            self._removed |= gone
        return bool(gone)

    @property
    def next_expiry(self) -> float:
        """When the next grace ends; infinite if no plugin is gone."""
        return min(self._stopped.values(), default=math.inf) + GRACE

    def capacity(self) -> DeviceCapacity:
        """Return how many devices there are."""
        listed = self._rules.listed
        return DeviceCapacity(
            {name: len(each.devices) for name, each in listed.items()},
            {name: len(each.healthy) for name, each in listed.items()},
            self._removed,
        )

    def _put(self, resource: str, listed: Listed) -> None:
        self._rules = replace(self._rules, listed={**self._rules.listed, resource: listed})

    # Manager

    def hints(self, state: DeviceState, pod: Pod, container: Container) -> Hints:
        """Return the ways to place each resource that a container asks for."""
        return self._rules.hints(state, pod, container)

    def pod_hints(self, state: DeviceState, pod: Pod) -> Hints:
        """Return the ways to place each resource that a pod asks for."""
        return self._rules.pod_hints(state, pod)

    def allocate(
        self, state: DeviceState, pod: Pod, container: Container, affinity: Hint
    ) -> DeviceState | Refusal:
        """Reserve what a container asks for."""
        return self._rules.allocate(state, pod, container, affinity)

    def release(self, state: DeviceState, uid: PodUid) -> DeviceState:
        """Return the state without the devices of a pod."""
        return self._rules.release(state, uid)
