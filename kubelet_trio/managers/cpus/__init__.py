"""The CPU manager: which containers have CPUs of their own, and which share the rest.

Everything here is pure: `CpuManager` has the rules of one machine, `CpuState` who has what.
"""

from kubelet_trio.managers.cpus.checkpoint import (
    MOST_BYTES,
    NONE,
    STATE_FILE,
    STATIC,
    advice,
    check_state,
    decode_checkpoint,
    encode_checkpoint,
    restore,
)
from kubelet_trio.managers.cpus.errors import (
    CpuCheckpointError,
    CpuConfigError,
    CpuManagerError,
    NotEnoughCpusError,
)
from kubelet_trio.managers.cpus.manager import (
    SMT_ALIGNMENT_ERROR,
    CpuManager,
    exclusive_cpus,
    pod_exclusive_cpus,
    reserve_cpus,
)
from kubelet_trio.managers.cpus.masks import cpu_ids, cpu_mask, format_mask, parse_mask
from kubelet_trio.managers.cpus.numbers import CpuNumbers, aligned_boundaries, cpu_numbers
from kubelet_trio.managers.cpus.options import NO_OPTIONS, CpuOptions, check_options, cpu_options
from kubelet_trio.managers.cpus.state import CpuState, cpusets, has_exclusive

__all__ = [
    "MOST_BYTES",
    "NONE",
    "NO_OPTIONS",
    "SMT_ALIGNMENT_ERROR",
    "STATE_FILE",
    "STATIC",
    "CpuCheckpointError",
    "CpuConfigError",
    "CpuManager",
    "CpuManagerError",
    "CpuNumbers",
    "CpuOptions",
    "CpuState",
    "NotEnoughCpusError",
    "advice",
    "aligned_boundaries",
    "check_options",
    "check_state",
    "cpu_ids",
    "cpu_mask",
    "cpu_numbers",
    "cpu_options",
    "cpusets",
    "decode_checkpoint",
    "encode_checkpoint",
    "exclusive_cpus",
    "format_mask",
    "has_exclusive",
    "parse_mask",
    "pod_exclusive_cpus",
    "reserve_cpus",
    "restore",
]
