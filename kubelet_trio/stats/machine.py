"""The machine's families on `/metrics/cadvisor`. No I/O.

Source: lib/metrics/prometheus_machine.go of cAdvisor, the set that the Go kubelet includes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.stats.read import NodeUsage
from kubelet_trio.stats.text import Exposition, label_text


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Constant properties of the machine."""

    cores: int = 0
    physical_cores: int = 0
    sockets: int = 0
    books: int = 0  # of s390: sockets are in books, and these in drawers
    drawers: int = 0
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel: str = ""
    os: str = ""
    version: str = ""  # the agent's own


def write_machine(page: Exposition, machine: MachineInfo, node: NodeUsage) -> None:
    """Write the families of the machine."""
    versions = (
        ("cadvisorRevision", ""),
        ("cadvisorVersion", machine.version),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel),
        ("osVersion", machine.os),
    )
    page.add("cadvisor_version_info", "gauge", _VERSION, 1, label_text(versions))
    ids = (
        ("boot_id", machine.boot_id),
        ("machine_id", machine.machine_id),
        ("system_uuid", machine.system_uuid),
    )
    labels = label_text(ids)
    for name, help_text, value in (
        ("cpu_cores", "Number of logical CPU cores.", machine.cores),
        ("cpu_physical_cores", "Number of physical CPU cores.", machine.physical_cores),
        ("cpu_sockets", "Number of CPU sockets.", machine.sockets),
        ("cpu_books", "Number of CPU books.", machine.books),
        ("cpu_drawers", "Number of CPU drawers.", machine.drawers),
        ("memory_bytes", "Amount of memory installed on the machine.", node.memory_capacity),
        ("swap_bytes", "Amount of swap memory available on the machine.", node.swap_total),
        # As a Go kubelet that was built without the library of NVM: always 0.
        ("nvm_avg_power_budget_watts", "NVM power budget.", 0),
    ):
        page.add(f"machine_{name}", "gauge", help_text, value, labels)
    for mode in ("app_direct_mode", "memory_mode"):
        page.add(
            "machine_nvm_capacity", "gauge", _NVM, 0, label_text((*ids[:2], ("mode", mode), ids[2]))
        )
    page.add("machine_scrape_error", "gauge", _ERROR, 0)


_VERSION = (
    "A metric with a constant '1' value labeled by kernel version, OS version, docker version, "
    "cadvisor version & cadvisor revision."
)
_NVM = "NVM capacity value labeled by NVM mode (memory mode or app direct mode)."
_ERROR = "1 if there was an error while getting machine metrics, 0 otherwise."
