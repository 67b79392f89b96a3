"""Set a machine up as a node: checks, installation, and their undoing.

`checks`, `contents` and `plan` are pure decisions on the facts that `gather` reads; `files` and
`system` carry them out. The agent itself imports nothing of this room.
"""

from kubelet_trio.install.checks import run_checks
from kubelet_trio.install.cni import PodCidrError
from kubelet_trio.install.containerd import ContainerdConfigError
from kubelet_trio.install.contents import Options, unit_text
from kubelet_trio.install.facts import Facts, Wanted
from kubelet_trio.install.files import InstallError, Plan, Tree
from kubelet_trio.install.findings import Finding, as_json, problems
from kubelet_trio.install.gather import agent_pid, gather, has_systemd, load_wanted
from kubelet_trio.install.reset import ask_pods, carry_out, plan_reset, run_end, stop_agent
from kubelet_trio.install.system import (
    after_install,
    after_uninstall,
    before_uninstall,
    run_commands,
    set_sysctls,
)

__all__ = [
    "ContainerdConfigError",
    "Facts",
    "Finding",
    "InstallError",
    "Options",
    "Plan",
    "PodCidrError",
    "Tree",
    "Wanted",
    "after_install",
    "after_uninstall",
    "agent_pid",
    "as_json",
    "ask_pods",
    "before_uninstall",
    "carry_out",
    "gather",
    "has_systemd",
    "load_wanted",
    "plan_reset",
    "problems",
    "run_checks",
    "run_commands",
    "run_end",
    "set_sysctls",
    "stop_agent",
    "unit_text",
]
