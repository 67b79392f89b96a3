"""The rules by which containers get devices: pure functions of an immutable state.

Admission reserves devices with them (`hints`, `pod_hints`, `allocate`), in the order of a pod's
containers. Later, in the pod's own task, each reservation is confirmed: `choose` returns the
devices anew, with what the plugin prefers, and `DeviceState.with_share` keeps its answer.

Source: pkg/kubelet/cm/devicemanager/manager.go and topology_hints.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.devices.choice import Choice, Wish, choose_devices
from kubelet_trio.managers.devices.hints import device_hints
from kubelet_trio.managers.devices.requests import container_limits, pod_limits
from kubelet_trio.managers.devices.types import DeviceShare, DeviceState, Listed
from kubelet_trio.managers.types import Hint, Hints, Refusal
from kubelet_trio.model import ContainerKind, PodUid, is_claimed, pod_containers, pod_uid

UNEXPECTED = "UnexpectedAdmissionError"


def never(_uid: PodUid, _container: str) -> bool:
    """Return that no container was admitted before."""
    return False


def refusal(problem: str) -> Refusal:
    """Return the refusal of a pod whose devices cannot be allocated, in upstream's words."""
    return Refusal(UNEXPECTED, f"Allocate failed due to {problem}, which is unexpected")


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """What is known of devices and machine at one moment; a `Manager[DeviceState]`.

    Attributes:
        listed: the devices by resource. A resource whose plugin has not come back yet after a
            restart of the agent is there, without devices.
        machine: the mask of the machine's NUMA nodes.
        was_admitted: whether a container was admitted before: by its pod's record, or because it
            runs already. It has its devices, and keeps them.
    """

    listed: Mapping[str, Listed] = field(default_factory=dict)
    machine: int = 1
    was_admitted: Callable[[PodUid, str], bool] = never

    def hints(self, state: DeviceState, pod: Pod, container: Container) -> Hints:
        """Return the ways to place each resource that a container asks for."""
        shares = state.shares(pod_uid(pod), container.name)
        return {
            resource: self._hints(
                state,
                resource,
                count,
                shares[resource].ids if resource in shares else frozenset(),
                self.reusable(state, pod, container.name, resource),
            )
            for resource, count in container_limits(container).items()
            if self.knows(state, resource)
        }

    def pod_hints(self, state: DeviceState, pod: Pod) -> Hints:
        """Return the ways to place each resource that a pod asks for."""
        own = state.pods.get(pod_uid(pod), {})
        return {
            resource: self._hints(
                state,
                resource,
                count,
                frozenset().union(*(s[resource].ids for s in own.values() if resource in s)),
                frozenset(),
            )
            for resource, count in pod_limits(pod).items()
            if self.knows(state, resource)
        }

    def allocate(
        self, state: DeviceState, pod: Pod, container: Container, affinity: Hint
    ) -> DeviceState | Refusal:
        """Reserve what a container asks for. A refusal has upstream's reason and message."""
        uid = pod_uid(pod)
        for resource, count in container_limits(container).items():
            if not self.knows(state, resource) or is_claimed(pod, container.name, resource):
                continue
            share = state.shares(uid, container.name).get(resource)
            problem = self._problem(uid, container.name, resource, count, share)
            if problem is not None:
                return refusal(problem)
            if share is not None or not count or self.was_admitted(uid, container.name):
                continue
            empty = DeviceShare({}, affinity=affinity.nodes)
            choice = self.choose(
                state.with_share(uid, container.name, resource, empty),
                pod,
                container,
                resource,
            )
            if isinstance(choice, str):
                return refusal(choice)
            state = self.reserve(state, uid, container.name, resource, choice, affinity.nodes)
        return state

    def release(self, state: DeviceState, uid: PodUid) -> DeviceState:
        """Return the state without the devices of a pod."""
        return state.without(uid)

    def choose(
        self,
        state: DeviceState,
        pod: Pod,
        container: Container,
        resource: str,
        preferred: Collection[str] = (),
    ) -> Choice | str:
        """Choose the devices for a reservation; where it can, those that it has.

        Args:
            state: with a share for the reservation.
            pod: the pod.
            container: its container.
            resource: what is reserved.
            preferred: the IDs that the plugin would like.

        Returns why there are too few healthy devices by now, if so.
        """
        uid = pod_uid(pod)
        share = state.shares(uid, container.name)[resource]
        others = state.without_share(uid, container.name, resource)
        reusable = self.reusable(state, pod, container.name, resource)
        wish = Wish(
            resource,
            container_limits(container).get(resource, 0),
            share.affinity,
            reusable,
            # What later containers take over from this one is its own first.
            (others.used(resource) - share.ids) | reusable,
            (frozenset(preferred), share.ids),
        )
        return choose_devices(wish, self.listed.get(resource, Listed(is_served=False)))

    def reserve(
        self,
        state: DeviceState,
        uid: PodUid,
        container: str,
        resource: str,
        choice: Choice,
        affinity: int | None,
    ) -> DeviceState:
        """Return the state with the devices of a choice reserved for a container."""
        by_node = self.listed[resource].by_node(choice.ids)
        share = DeviceShare(by_node, affinity=affinity)
        return state.with_share(uid, container, resource, share)

    def knows(self, state: DeviceState, resource: str) -> bool:
        """Whether devices of a resource are here, or were; others are no business of devices."""
        return resource in self.listed or state.is_shared(resource)

    def reusable(
        self, state: DeviceState, pod: Pod, container: str, resource: str
    ) -> frozenset[str]:
        """Return the devices of the pod's init containers that a later container may take over.

        Init containers have ended by then; sidecars go on, and main containers run side by side.
        """
        found: set[str] = set()
        uid = pod_uid(pod)
        for other in pod_containers(pod):
            if other.spec.name == container:
                break
            share = state.shares(uid, other.spec.name).get(resource)
            if share is None:
                continue
            if other.kind is ContainerKind.INIT and not other.is_sidecar:
                found |= share.ids
            else:
                found -= share.ids
        listed = self.listed.get(resource)
        return frozenset(found & listed.healthy) if listed is not None else frozenset()

    def _hints(
        self,
        state: DeviceState,
        resource: str,
        count: int,
        allocated: frozenset[str],
        reusable: frozenset[str],
    ) -> tuple[Hint, ...] | None:
        listed = self.listed.get(resource)
        if listed is None or not listed.has_nodes:
            return None
        if allocated:
            if len(allocated) != count:
                return ()
            here = allocated & listed.devices.keys()
            return device_hints(listed, self.machine, here, (), count)
        available = listed.healthy - state.used(resource)
        if len(available | reusable) < count:
            return ()
        return device_hints(listed, self.machine, available, reusable, count)

    def _problem(
        self, uid: PodUid, container: str, resource: str, count: int, share: DeviceShare | None
    ) -> str | None:
        """Return why a container may not get, or keep, devices of a resource. Upstream's order."""
        held = share.ids if share is not None else frozenset()
        if share is not None and len(held) != count:
            return (
                f'pod "{uid}" container "{container}" changed request for resource '
                f'"{resource}" from {len(held)} to {count}'
            )
        if self.was_admitted(uid, container):
            return None  # the agent was restarted, or took the node over: issues 109595 and 118559
        listed = self.listed.get(resource)
        if listed is None:
            return f"cannot allocate unregistered device {resource}"
        healthy = listed.healthy
        if not healthy:
            return f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        if not held <= healthy:
            return (
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )
        return None
