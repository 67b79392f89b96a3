"""Who holds what of the machine, for `kubelet-trio topology`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.managers.devices.types import DeviceState
from kubelet_trio.managers.node.devices import DEVICES, DeviceManagers
from kubelet_trio.managers.node.holdings import ResourceManagers
from kubelet_trio.managers.settings import ManagerSettings
from kubelet_trio.managers.topology import (
    ContainerHoldings,
    MachineDevice,
    MachineHoldings,
    MemoryHolding,
)
from kubelet_trio.model import PodKey, PodUid, pod_containers, pod_key, pod_uid


def machine_holdings(
    managers: ResourceManagers, settings: ManagerSettings, pods: Iterable[Pod]
) -> MachineHoldings:
    """Return who holds what; a pod that is not among `pods` is shown by its UID."""
    known = {pod_uid(pod): pod for pod in pods}
    cpus, memory, devices = _cpus(managers), _memory(managers), _devices(managers)
    reserved, shared = _pools(managers)
    found: list[ContainerHoldings] = []
    for uid in dict.fromkeys(uid for held in (cpus, memory, devices) for uid, _ in held):
        pod = known.get(uid)
        key = pod_key(pod) if pod is not None else PodKey("", uid)
        found += [
            ContainerHoldings(
                *(key.namespace, key.name, name),
                cpus=cpus.get((uid, name), frozenset()),
                memory=memory.get((uid, name), ()),
                devices=devices.get((uid, name), {}),
            )
            for name in _names(uid, pod, cpus, memory, devices)
        ]
    return MachineHoldings(
        reserved=reserved,
        shared=shared,
        containers=tuple(found),
        devices=tuple(_all_devices(managers)),
        reserved_memory=tuple(_reserved_memory(managers)),
        policies={
            "cpu": settings.cpu_policy,
            "memory": settings.memory_policy,
            "topology": settings.topology_policy,
        },
    )


_Held = tuple[PodUid, str]


def _names(uid: PodUid, pod: Pod | None, *held: Mapping[_Held, object]) -> Iterator[str]:
    """Yield the containers of a pod that hold something, in the order in which they start."""
    names = dict.fromkeys(name for each in held for owner, name in each if owner == uid)
    order = [c.spec.name for c in pod_containers(pod)] if pod is not None else sorted(names)
    return (name for name in order if name in names)


def _pools(managers: ResourceManagers) -> tuple[frozenset[int], frozenset[int]]:
    state, provider = managers.state("cpu"), managers.provider("cpu")
    if state is None or provider is None:
        return frozenset(), frozenset()
    from kubelet_trio.managers.cpus import cpu_ids
    from kubelet_trio.managers.node.providers import CpuProvider

    reserved = provider.rules.reserved if isinstance(provider, CpuProvider) else 0
    return cpu_ids(reserved), cpu_ids(state.shared)


def _cpus(managers: ResourceManagers) -> dict[_Held, frozenset[int]]:
    state = managers.state("cpu")
    if state is None:
        return {}
    from kubelet_trio.managers.cpus import cpu_ids

    return {
        (uid, name): cpu_ids(own)
        for uid, containers in state.exclusive.items()
        for name, own in containers.items()
    }


def _memory(managers: ResourceManagers) -> dict[_Held, tuple[MemoryHolding, ...]]:
    state = managers.state("memory")
    if state is None:
        return {}
    return {
        (uid, name): tuple(MemoryHolding(b.type, b.nodes, b.size) for b in blocks)
        for uid, containers in state.blocks.items()
        for name, blocks in containers.items()
    }


def _devices(managers: ResourceManagers) -> dict[_Held, dict[str, tuple[str, ...]]]:
    state: DeviceState | None = managers.state(DEVICES)
    found: dict[_Held, dict[str, tuple[str, ...]]] = {}
    for uid, name, resource, share in state.each() if state is not None else ():
        found.setdefault((uid, name), {})[resource] = tuple(sorted(share.ids))
    return found


def _all_devices(managers: ResourceManagers) -> Iterator[MachineDevice]:
    if not isinstance(managers, DeviceManagers):
        return
    for resource, listed in sorted(managers.listed.items()):
        healthy = listed.healthy
        for name, device in sorted(listed.devices.items()):
            yield MachineDevice(resource, name, device.mask or None, name in healthy)


def _reserved_memory(managers: ResourceManagers) -> Iterator[MemoryHolding]:
    state = managers.state("memory")
    for node, memory in sorted(state.nodes.items()) if state is not None else ():
        for name, table in memory.tables.items():
            if table.system_reserved:
                yield MemoryHolding(name, 1 << node, table.system_reserved)
