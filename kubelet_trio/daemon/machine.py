"""The daemon's changes to its machine, other than those that pods need.

With the process runtime it changes only what the configuration names: there pods are processes of a
machine that may not be set up as a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kubelet_trio.cgroups import CgroupDriver, Delegation, cgroup_host, find_delegation
from kubelet_trio.config import PROCESS, Settings
from kubelet_trio.daemon.settings import keeps_cgroups
from kubelet_trio.host import (
    PROC_SYS,
    USER_NAMESPACE_GATE,
    Denied,
    IptablesProgram,
    KubeletChains,
    LeftOut,
    OwnProcess,
    SystemProcesses,
    denied_parts,
    kernel_log_problem,
    report,
    set_tunables,
)
from kubelet_trio.model import Offload, Purpose, in_user_namespace, thread_offload
from kubelet_trio.pressure import KMSG
from kubelet_trio.supervision import ChildSpec, RestartPolicy

# A failure here must not end the part that runs pods: restart for ever.
_FOR_EVER = RestartPolicy(limit=None)
_FAMILIES = (("ipv4", "iptables"), ("ipv6", "ip6tables"))


async def set_up_machine(
    settings: Settings, left_out: Sequence[LeftOut] = ()
) -> tuple[Settings, Denied]:
    """Set the kernel parameters, and say what this process may not do.

    Args:
        settings: the settings of the agent.
        left_out: what was refused before.

    Returns the settings with the notes for `status`, and what the agent need not try. Raises
    OSError if the table of mounts cannot be read.
    """
    found = [*left_out, *await set_kernel(settings)]
    denied, in_namespace = Denied(), in_user_namespace()
    if in_namespace:
        denied = await _threads()(partial(_find_denied, settings))
        found += denied_parts(denied)
    has_gate = settings.config.feature_gates.get(USER_NAMESPACE_GATE, False)
    notes = report(found, in_namespace=in_namespace, has_gate=has_gate)
    return replace(settings, notes=(*settings.notes, *notes)), denied


async def set_kernel(settings: Settings, root: Path = PROC_SYS) -> list[LeftOut]:
    """Set the kernel parameters of a node, unless the configuration keeps them.

    Returns what is refused.
    """
    if (
        settings.config.container_runtime_endpoint != PROCESS
        and not settings.config.protect_kernel_defaults
        and not settings.flags.keep_kernel_settings
    ):
        return await _threads()(partial(set_tunables, root))
    return []


def _find_denied(settings: Settings, kmsg: Path = KMSG) -> Denied:
    config, delegation = settings.config, Delegation()
    if keeps_cgroups(config):
        driver: CgroupDriver = "systemd" if config.cgroup_driver == "systemd" else "cgroupfs"
        delegation = find_delegation(cgroup_host(), config.cgroup_root, driver)
    return Denied(kernel_log_problem(kmsg), delegation)


def machine_children(settings: Settings) -> tuple[ChildSpec, ...]:
    """Return the tasks that keep the machine as configured."""
    return tuple(_children(settings))


def _children(settings: Settings) -> Iterator[ChildSpec]:
    config = settings.config
    own = OwnProcess(config.oom_score_adj, config.kubelet_cgroups, cgroup_host, _threads())
    yield ChildSpec("process", own.run, policy=_FOR_EVER)
    if config.system_cgroups:
        system = SystemProcesses(config.system_cgroups, cgroup_host, _threads())
        yield ChildSpec("system-processes", system.run, policy=_FOR_EVER)
    if config.make_iptables_util_chains and config.container_runtime_endpoint != PROCESS:
        for family, program in _FAMILIES:
            chains = KubeletChains(IptablesProgram(program), family)
            yield ChildSpec(f"iptables:{family}", chains.run, policy=_FOR_EVER)


def _threads() -> Offload:
    return thread_offload.of(Purpose.CGROUPS)
