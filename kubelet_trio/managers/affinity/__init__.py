"""The topology manager: which NUMA nodes a container's CPUs, memory and devices are taken from.

Managers offer hints, `merge` picks the best set of nodes that all of them can serve, and
`Affinity` admits a pod container by container, or as a whole. Pure. Source: KEP-693 and
pkg/kubelet/cm/topologymanager.
"""

from kubelet_trio.managers.affinity.admission import Affinity, Verdict
from kubelet_trio.managers.affinity.merge import NodeSets, merge, offers

__all__ = ["Affinity", "NodeSets", "Verdict", "merge", "offers"]
