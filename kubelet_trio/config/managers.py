"""Checks the settings of the CPU, memory and topology managers, and turns them into values.

Source: ValidateKubeletConfiguration and validation_reserved_memory.go in
pkg/kubelet/apis/config/validation, and policy_options.go of the CPU and topology managers. The Go
kubelet checks options and policies only when it builds the managers; here they are configuration
problems like all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kubelet_trio.config.table import BY_PATH
from kubelet_trio.config.types import DEFAULTS, KubeletConfiguration
from kubelet_trio.config.values import parse_bool
from kubelet_trio.model import NANO, parse_cpus, parse_quantity

if TYPE_CHECKING:
    from kubelet_trio.managers import ManagerSettings, TopologyOptions

# cpuManagerPolicyOptions, each with the feature gate that it needs.
_STABLE, _BETA, _ALPHA = "", "CPUManagerPolicyBetaOptions", "CPUManagerPolicyAlphaOptions"
_CPU_OPTIONS = {
    "full-pcpus-only": _STABLE,
    "strict-cpu-reservation": _STABLE,
    "prefer-align-cpus-by-uncorecache": _STABLE,
    "distribute-cpus-across-numa": _BETA,
    "align-by-socket": _ALPHA,
    "distribute-cpus-across-cores": _ALPHA,
}
_EXCLUSIVE = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)
_CLOSEST, _MOST_NODES = "prefer-closest-numa-nodes", "max-allowable-numa-nodes"
_LEAST_MAXIMUM = 8  # upstream's defaultMaxAllowableNUMANodes: the option may only raise it
_HUGEPAGES = "hugepages-"


def manager_problems(config: KubeletConfiguration) -> Iterator[str]:
    """Yield the problems of the managers' settings, each with its field."""
    yield from _cpu_problems(config)
    yield from _memory_problems(config)
    if config.topology_manager_policy != "none":
        try:
            _topology_options(config)
        except ValueError as exc:
            yield f"{_name('topologyManagerPolicyOptions')}: {exc}"


def idle_fields(config: KubeletConfiguration) -> Iterator[tuple[str, str]]:
    """Yield each field that has no effect because its manager's policy is none, and why."""
    if config.cpu_manager_policy == "none":
        period = config.cpu_manager_reconcile_period
        if period != DEFAULTS.cpu_manager_reconcile_period:
            yield "cpuManagerReconcilePeriod", "cpuManagerPolicy is none"
    if config.memory_manager_policy == "None" and config.reserved_memory:
        yield "reservedMemory", "memoryManagerPolicy is None"
    if config.topology_manager_policy == "none":
        if config.topology_manager_scope != DEFAULTS.topology_manager_scope:
            yield "topologyManagerScope", "topologyManagerPolicy is none"
        if config.topology_manager_policy_options:
            yield "topologyManagerPolicyOptions", "topologyManagerPolicy is none"


def manager_settings(
    config: KubeletConfiguration, reservation: Mapping[str, int]
) -> ManagerSettings:
    """Return the managers' settings of a valid configuration.

    `reservation` is all that the node keeps from its pods, in nano-units by resource
    (`node.reserved_amounts`).
    """
    from kubelet_trio.managers import ManagerSettings, TopologyOptions

    topology = TopologyOptions()
    if config.topology_manager_policy != "none":
        topology = _topology_options(config)
    gates = config.feature_gates
    return ManagerSettings(
        cpu_policy=config.cpu_manager_policy,
        cpu_options=_cpu_options(config),
        reconcile_period=config.cpu_manager_reconcile_period,
        reserved_cpus=parse_cpus(config.reserved_system_cpus) or None,
        reserved_cpu_milli=-(-reservation.get("cpu", 0) * 1000 // NANO),
        memory_policy=config.memory_manager_policy,
        reserved_memory=tuple((each.numa_node, each.limits) for each in config.reserved_memory),
        reserved_memory_bytes={
            name: -(-amount // NANO)
            for name, amount in reservation.items()
            if amount and _is_memory(name)
        },
        topology_policy=config.topology_manager_policy,
        topology_scope=config.topology_manager_scope,
        topology_options=topology,
        unlimited_exclusive_cpus=gates.get("DisableCPUQuotaWithExclusiveCPUs", True),
        device_health=gates.get("ResourceHealthStatus", True),
        device_health_message=gates.get("ResourceHealthStatusMessage", True),
        pod_resources_active=gates.get("KubeletPodResourcesListUseActivePods", True),
        claims=gates.get("DynamicResourceAllocation", True),
        extended_claims=gates.get("DRAExtendedResource", True),
        show_claims=gates.get("KubeletPodResourcesDynamicResources", True),
        pods_api=gates.get("PodsAPI", False),
    )


def _cpu_problems(config: KubeletConfiguration) -> Iterator[str]:
    name, given = _name("cpuManagerPolicyOptions"), config.cpu_manager_policy_options
    if config.cpu_manager_policy != "static":
        if given:
            yield f"{name}: the policy none has no options, and {', '.join(sorted(given))} is given"
        return
    try:
        options = _cpu_options(config)
    except ValueError as exc:
        yield f"{name}: {exc}"
        return
    for one, other in _EXCLUSIVE:
        if options.get(one) and options.get(other):
            yield f"{name}: {one} and {other} can not be used at the same time"
    if options.get("align-by-socket") and config.topology_manager_policy == "single-numa-node":
        yield (
            f"{name}: align-by-socket is incompatible with {_name('topologyManagerPolicy')} "
            "single-numa-node"
        )
    if not _reserves_cpu(config):
        # Else containers could take all CPUs, and the shared pool would be empty.
        yield (
            f"{_name('cpuManagerPolicy')} static requires systemReserved.cpu + kubeReserved.cpu "
            f"to be greater than zero: set one of them, or {_name('reservedSystemCPUs')}"
        )


def _cpu_options(config: KubeletConfiguration) -> dict[str, bool]:
    """Return cpuManagerPolicyOptions. Raises ValueError naming the option."""
    options = {}
    for name, text in config.cpu_manager_policy_options.items():
        gate = _CPU_OPTIONS.get(name)
        if gate is None:
            raise ValueError(
                f'unknown CPU Manager Policy option: "{name}" (there are {", ".join(_CPU_OPTIONS)})'
            )
        # The gate of beta options is on by default.
        if gate and not config.feature_gates.get(gate, gate == _BETA):
            raise ValueError(f'option "{name}" needs the feature gate {gate}')
        options[name] = _option(name, text)
    return options


def _reserves_cpu(config: KubeletConfiguration) -> bool:
    texts = [part.get("cpu", "0") for part in (config.system_reserved, config.kube_reserved)]
    try:
        return bool(config.reserved_system_cpus) or any(parse_quantity(text) > 0 for text in texts)
    except ValueError:
        return True  # the reservation's own problem, which is told


def _memory_problems(config: KubeletConfiguration) -> Iterator[str]:
    policy, name = config.memory_manager_policy, _name("memoryManagerPolicy")
    if policy == "BestEffort":
        yield f'{name} "BestEffort" exists on Windows only: it must be "None" or "Static"'
    elif policy not in ("None", "Static"):
        yield f'{name} "{policy}" must be one of: "None", "Static"'
    seen = set()
    for reservation in config.reserved_memory:
        node = reservation.numa_node
        for resource, text in reservation.limits.items():
            yield from _limit_problems(node, resource, text)
            if (node, resource) in seen:
                yield (
                    "the reserved memory has a duplicate value for NUMA node "
                    f'{node} and resource "{resource}"'
                )
            seen.add((node, resource))


def _limit_problems(node: int, resource: str, text: str) -> Iterator[str]:
    name = _name("reservedMemory")
    if not _is_memory(resource):
        yield (
            f'the limit type "{resource}" for NUMA node {node} is not supported, only '
            "[memory hugepages-<HugePageSize>] is accepted"
        )
    try:
        amount = parse_quantity(text)
    except ValueError as exc:
        yield f"{name}: NUMA node {node}: {resource}: {exc}"
        return
    if amount == 0:
        yield f'reserved memory may not be zero for NUMA node {node} and resource "{resource}"'
    elif amount < 0:
        yield f"{name}: NUMA node {node}: {resource}: {text} must not be negative"


def _topology_options(config: KubeletConfiguration) -> TopologyOptions:
    """Return topologyManagerPolicyOptions. Raises ValueError naming the option."""
    from kubelet_trio.managers import TopologyOptions

    closest, most = False, _LEAST_MAXIMUM
    for name, text in config.topology_manager_policy_options.items():
        if name == _CLOSEST:
            closest = _option(name, text)
        elif name != _MOST_NODES:
            raise ValueError(
                f'unknown Topology Manager Policy option: "{name}" (there are {_CLOSEST}, '
                f"{_MOST_NODES})"
            )
        elif not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            raise ValueError(f'unable to convert policy option to integer "{name}": "{text}"')
        else:
            most = int(text)
    if most < _LEAST_MAXIMUM:
        raise ValueError(
            f'the minimum value of "{_MOST_NODES}" should not be less than {_LEAST_MAXIMUM}'
        )
    return TopologyOptions(closest, most)


def _option(name: str, text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError as exc:
        raise ValueError(f'bad value for option "{name}": {exc}') from exc


def _is_memory(resource: str) -> bool:
    return resource == "memory" or resource.startswith(_HUGEPAGES)


def _name(path: str) -> str:
    return BY_PATH[path].name
