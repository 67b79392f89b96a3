"""Name what the text of a rejection does not: upstream's predicates tell only that they failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import pod_key, spec
from kubelet_trio.pods.admission.decision import AdmissionNode, shortages
from kubelet_trio.pods.admission.held import Sums, host_ports


def rejection_hints(pod: Pod, others: Sequence[Pod], node: AdmissionNode) -> Iterator[str]:
    """Yield which pods have the host ports, which labels differ and what is short, as of now."""
    for other in others:
        held = Sums([other])
        for _, protocol, number in filter(held.has_port, dict.fromkeys(host_ports(pod))):
            yield f"host port {number}/{protocol} is that of pod {pod_key(other)}"
    for key, value in (spec(pod).nodeSelector or {}).items():
        has = node.labels.get(key)
        if has != value:
            found = f"no label {key}" if has is None else f"the label {key}={has}"
            yield f"the node has {found}; its nodeSelector wants {key}={value}"
    for short in shortages(pod, (Sums(others),), node):
        yield short.rejection().message
