"""What this agent does otherwise than the Go kubelet 1.36.2, each with its reason: the one list.

A difference that is not here fails, and so does an entry that nothing differs by any more.
Patterns are regular expressions for the whole text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.golden.tables import Difference


class Meant(NamedTuple):
    """A difference that is meant, or known to come to an end with a feature that is not there."""

    table: str
    subject: str
    what: str
    reason: str

    def covers(self, found: Difference) -> bool:
        return (
            found.table == self.table
            and re.fullmatch(self.subject, found.subject) is not None
            and re.fullmatch(self.what, found.what) is not None
        )


_CLOSED = (
    "the directory of such a volume is root's and of mode 0755: the Go kubelet has it open to all"
)
_PSI = (
    "on cgroup version 1 the kernel has no pressure of a cgroup: the Go kubelet writes zeros there"
)
_MANAGERS = "the managers are not loaded while all their policies are none"
_VOLUMES = "no volume fails to be found on disk: its teardown needs no more than its directory"
_ZEROS = "an optional field is written even where it is zero"
_GO = "comes with a Go library, and tells of that library"

# Those that the Go kubelet synced once more after the API server had their phase Running.
_SEEN_RUNNING = (
    "plain|probes|selinux|bad-command|crash-always|exit0-never|exit3-never|exit3-onfailure"
    "|liveness-fails|liveness-tcp|poststart-fails|restart-rules|sidecar-job|two-one-dies"
)

# ruff: noqa: E501  # a table is read by its columns
# fmt: off
MEANT = (
    # Pods
    Meant("pods", _SEEN_RUNNING, r"status\.resources(\.limits\.memory)?", "a pod's cgroup without a memory limit is not reported as one of 8 EiB, as cgroup version 1 reads"),
    Meant("pods", "fields", r"status\.resources\.(requests|limits)\.ephemeral-storage", "only CPU and memory are a running pod's; the Go kubelet reports so from its second sync on, a minute later"),
    # The node
    Meant("node", "node", r"status\.nodeInfo\.kubeletVersion", "says whose it is, behind the Kubernetes version"),
    # Volumes of objects: closed to containers, where they are not mounted at all too
    Meant("files", "pods", r"ROOT/pods/UID/volumes/kubernetes\.io~(configmap|downward-api|projected|secret)/[^/]+", _CLOSED),
    Meant("inside", "fsgroup|vol-all", "(mode|mount) /(cm|d|p|s|sec)", _CLOSED),
    # Metrics
    Meant("metrics", "metrics", "(go|apiserver|authentication|authorization|aggregator|workqueue)_.*", _GO),
    Meant("metrics", "metrics", "rest_client_.*", "the API server of the recording is a fake, asked without HTTP"),
    Meant("metrics", "metrics", "(cardinality_enforcement|disabled_metrics|hidden_metrics|registered_metrics)_.*", _GO),
    Meant("metrics", "metrics", "kubelet_trio_.*", "the agent's own"),
    Meant("metrics", "metrics", "dra_operations_duration_seconds.*", "measured for pods that claim devices, and not for all"),
    Meant("metrics", "metrics", "kubelet_(cpu_manager|memory_manager|topology_manager)_.*", _MANAGERS),
    Meant("metrics", "metrics", "force_cleaned_failed_volume.*", _VOLUMES),
    Meant("metrics", "metrics", "kubelet_pleg_discard_events", "a part of the Go kubelet that has no like here"),
    Meant("metrics", "metrics", "kubelet_evented_pleg_connection_latency_seconds.*", "shown once the runtime has sent an event"),
    Meant("metrics", "metrics", "kubelet_imagemanager_inmemory_.*", "all records are in memory: there is no cache that fills"),
    Meant("metrics", "metrics", "kubelet_(image_garbage_collected_total|restarted_pods_total|http_requests_duration_seconds.*)", "a family with labels is shown once something was counted"),
    Meant("metrics", "metrics", "kubelet_graceful_shutdown_(start|end)_time_seconds", "shown once the node shuts down, not as 1970 before"),
    Meant("metrics", "metrics_cadvisor", "container_pressure_.*", "the kernel counts the node's pressure on cgroup version 1 too"),
    Meant("metrics", "metrics_cadvisor", "container_creation_time_seconds", "told beside the start time, which restarts of the agent do not change"),
    # Shapes
    Meant("shapes", "stats_summary", r".*\.(io|psi)\..*", _PSI),
    Meant("shapes", "stats_summary", r"\.pods\[\]\.network\..*", "the network of pods is told where the Go kubelet has lost it: cAdvisor finds no sandbox of containerd 1.6 under a cgroup root of its own"),
    Meant("shapes", "stats_summary", r"\.pods\[\]\.process_stats\..*", "told where cgroups have it; the Go kubelet looks for processes under another cgroup root"),
    Meant("shapes", "stats_summary", r"\.pods\[\]\.containers\[\]", "a pod of which nothing runs has an empty list"),
    Meant("shapes", "configz", r"\.kubeletconfig\..*", _ZEROS),
    # Files
    Meant("files", "pods", r"ROOT/pods/UID/kubelet-trio\.json", "the pod's record: an agent that starts knows from it what was decided"),
    Meant("files", "pods", r"ROOT/pods/UID/plugins/kubernetes\.io~empty-dir/wrapped_.*", "volumes of objects are mounted directly and not by way of an emptyDir"),
    Meant("files", "pods", r"ROOT/pods/UID/volumes/kubernetes\.io~[a-z-]+", "nobody but root has business in between; the directory above is closed in both"),
)
# fmt: on
