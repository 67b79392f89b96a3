"""Loads the managers: reads the machine and the checkpoints, and refuses what does not fit.

A changed policy, machine or reservation is no state to go on from: running containers would keep
CPUs that the new state gives to others. As with the Go kubelet the agent does not start then, and
says which file to delete once the node is drained. Everything here blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kubelet_trio.managers.affinity import Affinity
from kubelet_trio.managers.devices.provider import load_devices
from kubelet_trio.managers.loading import read_checkpoint
from kubelet_trio.managers.node.holdings import LoadedManagers, Provider
from kubelet_trio.managers.settings import ManagerSettings
from kubelet_trio.managers.shares import ManagerStateError
from kubelet_trio.managers.types import Machine


def load_static(
    settings: ManagerSettings, root_dir: Path, machine: Machine, *, device_plugins: bool = False
) -> LoadedManagers:
    """Return the managers of a node.

    Args:
        settings: their policies.
        root_dir: has the checkpoints.
        machine: this machine.
        device_plugins: whether it has device plugins.

    Raises `ManagerStateError`, and OSError for a checkpoint that cannot be read.
    """
    providers: dict[str, tuple[Provider[Any], Any]] = {}
    written: set[str] = set()
    try:
        aligner = Affinity(
            settings.topology_policy,
            settings.topology_scope,
            settings.topology_options,
            machine,
        )
    except ValueError as exc:
        raise ManagerStateError(str(exc)) from exc
    if settings.gives_cpus:
        providers["cpu"] = _load_cpus(settings, root_dir, machine)
    if settings.gives_memory:
        providers["memory"] = _load_memory(settings, root_dir, machine)
    for name, (provider, state) in providers.items():
        if read_checkpoint(root_dir / provider.file) == provider.encode(state):
            written.add(name)
    devices = load_devices(root_dir) if device_plugins else None
    return LoadedManagers(machine, providers, aligner, frozenset(written), devices)


def _load_cpus(
    settings: ManagerSettings, root_dir: Path, machine: Machine
) -> tuple[Provider[Any], Any]:
    from kubelet_trio.managers import cpus
    from kubelet_trio.managers.node.providers import CpuProvider

    path = root_dir / cpus.STATE_FILE
    data = read_checkpoint(path)
    try:
        options = cpus.cpu_options(settings.cpu_options)
        cpus.check_options(options, machine, settings.topology_policy)
        reserved = cpus.reserve_cpus(
            machine, settings.reserved_cpu_milli, options, settings.reserved_cpus
        )
        rules = cpus.CpuManager(machine, reserved, options)
        state = rules.initial() if data is None else cpus.restore(data, rules, str(path))
    except cpus.CpuManagerError as exc:
        raise ManagerStateError(str(exc)) from exc
    return CpuProvider(rules, settings.unlimited_exclusive_cpus), state


def _load_memory(
    settings: ManagerSettings, root_dir: Path, machine: Machine
) -> tuple[Provider[Any], Any]:
    from kubelet_trio.managers import memory
    from kubelet_trio.managers.node.providers import MemoryProvider

    path = root_dir / memory.FILE_NAME
    data = read_checkpoint(path)
    try:
        reserved = memory.parse_reserved_memory(
            machine, settings.reserved_memory, settings.reserved_memory_bytes
        )
        rules = memory.MemoryManager(machine, reserved)
        state = memory.restore_state(rules, data, str(path))
    except memory.MEMORY_ERRORS as exc:
        raise ManagerStateError(str(exc)) from exc
    return MemoryProvider(rules), state
