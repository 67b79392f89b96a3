"""Settings of the machine: kernel tunables, cgroups of its processes, iptables, the lock file.

Only the daemon uses this room. An embedded agent changes nothing of the machine that its pods do
not need.
"""

from kubelet_trio.host.iptables import IptablesError, IptablesProgram, KubeletChains
from kubelet_trio.host.left_out import (
    USER_NAMESPACE_GATE,
    Denied,
    LeftOut,
    denied_parts,
    kernel_log_problem,
    report,
)
from kubelet_trio.host.lock import Contention, lock_file
from kubelet_trio.host.processes import OwnProcess, SystemProcesses, write_oom_score
from kubelet_trio.host.tunables import PROC_SYS, Difference, differences, set_tunables

__all__ = [
    "PROC_SYS",
    "USER_NAMESPACE_GATE",
    "Contention",
    "Denied",
    "Difference",
    "IptablesError",
    "IptablesProgram",
    "KubeletChains",
    "LeftOut",
    "OwnProcess",
    "SystemProcesses",
    "denied_parts",
    "differences",
    "kernel_log_problem",
    "lock_file",
    "report",
    "set_tunables",
    "write_oom_score",
]
