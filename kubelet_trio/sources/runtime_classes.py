"""The overhead of runtime classes, which an API server's admission would fill in."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from lightkube.models.core_v1 import Pod
from lightkube.models.node_v1 import RuntimeClass

from kubelet_trio.model import is_static, spec
from kubelet_trio.objects import runtime_class_key
from kubelet_trio.sources.source import Desired


def with_overhead(desired: Desired) -> Desired:
    """Return the pods, static ones with the overhead of their runtime class.

    An overhead in the manifest takes precedence.
    """
    pods = {uid: _with_overhead(pod, desired) for uid, pod in desired.pods.items()}
    return replace(desired, pods=pods)


def _with_overhead(pod: Pod, desired: Desired) -> Pod:
    body = spec(pod)
    # Pods of an API server have passed its RuntimeClass admission plugin (KEP-688).
    if not body.runtimeClassName or body.overhead is not None or not is_static(pod):
        return pod
    found = desired.objects.get(runtime_class_key(body.runtimeClassName))
    if not isinstance(found, RuntimeClass) or found.overhead is None:
        return pod
    changed = msgspec.structs.replace(body, overhead=found.overhead.podFixed)
    return msgspec.structs.replace(pod, spec=changed)
