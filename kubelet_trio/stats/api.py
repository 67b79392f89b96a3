"""The types of `/stats/summary`: `stats.k8s.io/v1alpha1`.

Source: staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go (1.36). The JSON omits a field
that is None. Times are RFC 3339 in whole seconds. Bytes and counts are integers, CPU is
nanoseconds of one core and nanocores, `total` of pressure is microseconds, its averages percent.
"""

from __future__ import annotations

import msgspec


class _Shape(msgspec.Struct, omit_defaults=True, rename="camel", kw_only=True):
    """A part of the response."""


class PsiData(_Shape):
    total: int
    avg10: float
    avg60: float
    avg300: float


class PsiStats(_Shape):
    full: PsiData | None = None
    some: PsiData | None = None


class CpuStats(_Shape):
    time: str
    usage_nano_cores: int | None = None
    usage_core_nano_seconds: int | None = None
    psi: PsiStats | None = None


class MemoryStats(_Shape):
    time: str
    available_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    psi: PsiStats | None = None


class IoStats(_Shape):
    time: str
    psi: PsiStats | None = None


class SwapStats(_Shape):
    time: str
    swap_available_bytes: int | None = None
    swap_usage_bytes: int | None = None


class InterfaceStats(_Shape):
    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None


class NetworkStats(_Shape):
    """All interfaces; the other fields are those of the default interface, if there is one."""

    time: str
    name: str = ""
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None
    interfaces: list[InterfaceStats] = msgspec.field(default_factory=list)


class FsStats(_Shape):
    time: str
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None


class PvcReference(_Shape):
    name: str
    namespace: str


class VolumeHealthStats(_Shape):
    abnormal: bool


class VolumeStats(FsStats):
    name: str = ""
    pvc_ref: PvcReference | None = None
    volume_health_stats: VolumeHealthStats | None = None


# Not a `_Shape`: Go's tag `process_count` is the only one in snake case.
class ProcessStats(msgspec.Struct, kw_only=True):
    process_count: int


class RlimitStats(_Shape):
    time: str
    maxpid: int | None = None
    curproc: int | None = None


class RuntimeStats(_Shape):
    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


class ContainerStats(_Shape):
    name: str
    # Without a default: Go's tag has no `omitempty`, so an unknown time is null. So in a pod.
    start_time: str | None
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    rootfs: FsStats | None = None
    logs: FsStats | None = None
    swap: SwapStats | None = None
    io: IoStats | None = None


class PodReference(_Shape):
    name: str
    namespace: str
    uid: str


class PodStats(
    msgspec.Struct,
    omit_defaults=True,
    kw_only=True,
    # Go's tag `ephemeral-storage` has a hyphen, so `rename="camel"` does not fit.
    rename={
        "pod_ref": "podRef",
        "start_time": "startTime",
        "ephemeral_storage": "ephemeral-storage",
    },
):
    pod_ref: PodReference
    start_time: str | None
    containers: list[ContainerStats]
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    network: NetworkStats | None = None
    volume: list[VolumeStats] = msgspec.field(default_factory=list)
    ephemeral_storage: FsStats | None = None
    process_stats: ProcessStats | None = None
    swap: SwapStats | None = None
    io: IoStats | None = None


class NodeStats(_Shape):
    node_name: str
    start_time: str | None
    system_containers: list[ContainerStats] = msgspec.field(default_factory=list)
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    network: NetworkStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStats | None = None
    rlimit: RlimitStats | None = None
    swap: SwapStats | None = None
    io: IoStats | None = None


class Summary(msgspec.Struct, kw_only=True):
    node: NodeStats
    pods: list[PodStats]
