"""The machine itself: kernel settings, its own processes' cgroups, iptables, the lock file.

Only the daemon uses this room. An agent in another program changes nothing of the machine
but what its pods need.
"""

from kubelet_trio.host.iptables import (
    IptablesError,
    IptablesProgram,
    KubeletChains,
)
from kubelet_trio.host.lock import (
    Contention,
    lock_file,
)
from kubelet_trio.host.processes import (
    OwnProcess,
    SystemProcesses,
    write_oom_score,
)
from kubelet_trio.host.tunables import (
    PROC_SYS,
    Difference,
    differences,
    set_tunables,
)

__all__ = [
    "PROC_SYS",
    "Contention",
    "Difference",
    "IptablesError",
    "IptablesProgram",
    "KubeletChains",
    "OwnProcess",
    "SystemProcesses",
    "differences",
    "lock_file",
    "set_tunables",
    "write_oom_score",
]
