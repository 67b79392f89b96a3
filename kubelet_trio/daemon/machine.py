"""The daemon's changes to its machine, other than those that pods need.

With the process runtime it changes only what the configuration names: there pods are processes of a
machine that may not be set up as a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kubelet_trio.cgroups import cgroup_host
from kubelet_trio.config import PROCESS, Settings
from kubelet_trio.host import (
    PROC_SYS,
    IptablesProgram,
    KubeletChains,
    OwnProcess,
    SystemProcesses,
    set_tunables,
)
from kubelet_trio.model import Offload, Purpose, thread_offload
from kubelet_trio.supervision import ChildSpec, RestartPolicy

# A failure here must not end the part that runs pods: restart for ever.
_FOR_EVER = RestartPolicy(limit=None)
_FAMILIES = (("ipv4", "iptables"), ("ipv6", "ip6tables"))


async def set_kernel(settings: Settings, root: Path = PROC_SYS) -> None:
    """Set the kernel parameters of a node, unless the configuration keeps them."""
    if (
        settings.config.container_runtime_endpoint != PROCESS
        and not settings.config.protect_kernel_defaults
        and not settings.flags.keep_kernel_settings
    ):
        await _threads()(partial(set_tunables, root))


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
