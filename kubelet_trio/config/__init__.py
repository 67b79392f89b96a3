"""Settings of the agent: KubeletConfiguration, the Go kubelet's flags, and their validation."""

from kubelet_trio.config.allocatable import eviction_policy, reservations
from kubelet_trio.config.errors import ConfigError
from kubelet_trio.config.flags import KubeletFlags, parse_flags
from kubelet_trio.config.gates import gate_values
from kubelet_trio.config.host import (
    PROCESS,
    HostFacts,
    LocalFacts,
    parse_swaps,
    settle_locally,
    startup_refusals,
)
from kubelet_trio.config.load import Settings, check_file, settle
from kubelet_trio.config.managers import manager_settings
from kubelet_trio.config.show import encode_shown_config, run_flag_groups, run_help
from kubelet_trio.config.types import KubeletConfiguration

__all__ = [
    "PROCESS",
    "ConfigError",
    "HostFacts",
    "KubeletConfiguration",
    "KubeletFlags",
    "LocalFacts",
    "Settings",
    "check_file",
    "encode_shown_config",
    "eviction_policy",
    "gate_values",
    "manager_settings",
    "parse_flags",
    "parse_swaps",
    "reservations",
    "run_flag_groups",
    "run_help",
    "settle",
    "settle_locally",
    "startup_refusals",
]
