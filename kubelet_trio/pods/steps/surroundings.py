"""What a pod's sandbox needs that is not in the pod: its runtime handler and its users.

A runtime class is an object like a config map is, and names the handler. A pod with
`hostUsers: false` has ids of its own, if its handler can do that.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.core_v1 import Pod
from lightkube.models.node_v1 import RuntimeClass

from kubelet_trio.containers import SandboxConfigError
from kubelet_trio.cri import v1
from kubelet_trio.model import pod_uid, spec
from kubelet_trio.objects import ObjectError, ObjectNotFoundError, runtime_class_key
from kubelet_trio.pods.records.userns import UserNamespaceError
from kubelet_trio.pods.services import PodServices


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Beside the pod: which handler runs it, and its user namespace if it has its own."""

    handler: str = ""
    users: v1.UserNamespace | None = None


async def surroundings(services: PodServices, pod: Pod) -> Surroundings:
    """Look them up. Raises `SandboxConfigError`, in upstream's words."""
    handler = await _handler(services, pod)
    if spec(pod).hostUsers is not False:
        return Surroundings(handler)
    if handler not in services.runtime_state.value.user_namespaces:
        who = f'RuntimeClass handler "{handler}"' if handler else "runtime"
        raise SandboxConfigError(
            f"can't set `spec.hostUsers: false`, {who} does not support user namespaces"
        )
    try:
        return Surroundings(handler, await services.users.get_or_create(pod_uid(pod)))
    except (UserNamespaceError, OSError) as exc:
        raise SandboxConfigError(f"create user namespace: {exc}") from exc


async def _handler(services: PodServices, pod: Pod) -> str:
    name = spec(pod).runtimeClassName
    if not name:
        return ""
    try:
        found = await services.objects.get(runtime_class_key(name), pod_uid(pod))
    except ObjectNotFoundError as exc:
        raise SandboxConfigError(str(exc)) from exc
    except ObjectError as exc:
        raise SandboxConfigError(f"failed to lookup RuntimeClass {name}: {exc}") from exc
    assert isinstance(found, RuntimeClass)
    return found.handler
