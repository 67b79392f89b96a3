"""Create a pod's sandbox: make its config, and create first what it depends on.

The pod's RuntimeClass, an object of the API, names the runtime handler. A pod with
`hostUsers: false` gets its own user ids, if its handler supports that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio
from lightkube.models.core_v1 import Pod
from lightkube.models.node_v1 import RuntimeClass

from kubelet_trio.cgroups import CgroupError
from kubelet_trio.containers import (
    NodeSettings,
    SandboxConfigError,
    pod_dns,
    read_resolv_conf,
    sandbox_config,
)
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.managers import ClaimError
from kubelet_trio.model import RuntimePod, SandboxId, node_ref, pod_object_ref, pod_uid, spec
from kubelet_trio.objects import ObjectError, ObjectNotFoundError, runtime_class_key
from kubelet_trio.pods.plan import PodPlan, StartContainer
from kubelet_trio.pods.records.files import ContainerFiles, PodFiles
from kubelet_trio.pods.records.userns import UserNamespaceError
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.concurrency import run_alongside, run_together
from kubelet_trio.pods.steps.errors import PodRejectedError, StepError
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.tracing import NO_SPAN, Attributes, span
from kubelet_trio.volumes import AttachLimitError, VolumeError

# Seconds: the loop is to send RunPodSandbox first, which takes any runtime much longer than this.
_PREPARE_AFTER = 0.003
ATTACH_LIMIT = "VolumeAttachmentLimitExceeded"  # of pkg/kubelet/volumemanager


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """How a pod's sandbox is run: its runtime handler, its user namespace, its config."""

    handler: str
    users: v1.UserNamespace | None  # None: the host's
    config: v1.PodSandboxConfig


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A sandbox that containers start in."""

    id: SandboxId
    spec: SandboxSpec
    ips: Sequence[str] = ()
    # Made while it was created, by container name. The hosts file lacks the addresses.
    files: Mapping[str, ContainerFiles] = field(default_factory=dict)


async def sandbox_spec(
    services: PodServices, pod: Pod, node: NodeSettings, attempt: int
) -> SandboxSpec:
    """Return how a pod's sandbox is run.

    Raises `SandboxConfigError`, in upstream's words, and `VolumeError`.
    """
    handler = await _handler(services, pod)
    users = None
    if spec(pod).hostUsers is False:
        users = await _user_namespace(services, pod, handler)
    groups = await services.volumes.groups(pod)
    config = sandbox_config(pod, node, attempt=attempt, users=users, volume_groups=groups)
    return SandboxSpec(handler, users, config)


async def _user_namespace(services: PodServices, pod: Pod, handler: str) -> v1.UserNamespace:
    if handler not in services.runtime_state.value.user_namespaces:
        who = f'RuntimeClass handler "{handler}"' if handler else "runtime"
        raise SandboxConfigError(
            f"can't set `spec.hostUsers: false`, {who} does not support user namespaces"
        )
    try:
        return await services.users.get_or_create(pod_uid(pod))
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


def count_users(services: PodServices, pod: Pod, *, failed: bool = False) -> None:
    """Count a pod that is started with a user namespace of its own, or that this failed.

    Not the sandbox alone: a failure of any of the containers that are started with it counts too,
    once (SyncPod of pkg/kubelet/kuberuntime).
    """
    if spec(pod).hostUsers is False:
        which = "errors_total" if failed else "total"
        services.meter.count(f"kubelet_started_user_namespaced_pods_{which}")


async def create_sandbox(
    services: PodServices,
    pod: Pod,
    node: NodeSettings,
    plan: PodPlan,
    observed: RuntimePod,
    progress: Progress,
) -> RunningSandbox:
    """Create a pod's sandbox and read its status, which has its addresses, into the observer.

    Raises `StepError`, and `PodRejectedError` if the node can attach no more volumes, or has lost
    devices of the pod.
    """
    lost = services.managers.lost(pod)
    if lost is not None:
        error = PodRejectedError if services.is_replaced(pod) else StepError
        raise error(lost.reason, lost.message)
    with span("createPodSandbox"):
        return await _create_sandbox(services, pod, node, plan, observed, progress)


async def _prepare(services: PodServices, pod: Pod, node: NodeSettings) -> NodeSettings:
    """Make cgroup and directories; meanwhile read the host's resolver file. Return the settings."""
    read: list[NodeSettings] = []

    async def resolver() -> None:
        read.append(await _with_resolver(services, pod, node))

    directories = partial(services.offload, PodFiles(pod, node).prepare)
    steps = (partial(services.cgroups.ensure, pod), directories, resolver)
    await run_together(steps, (CgroupError, OSError, StepError))
    return read[0]


async def _with_resolver(services: PodServices, pod: Pod, node: NodeSettings) -> NodeSettings:
    """Return the settings with the host's resolver file as it is now, if the pod needs it.

    As getDNSConfig of network/dns, for each sandbox: it may have been written, by a DHCP client for
    one, since the agent began.
    """
    if not node.resolver_file or spec(pod).dnsPolicy == "None":
        return node
    try:
        conf = await services.offload(read_resolv_conf, node.resolver_file)
    except (OSError, ValueError) as exc:
        why = (exc.strerror if isinstance(exc, OSError) else None) or exc
        text = f"Failed to create pod sandbox: {node.resolver_file}: {why}"
        raise StepError("FailedCreatePodSandBox", text) from exc
    return replace(node, resolv_conf=conf)


async def _create_sandbox(
    services: PodServices,
    pod: Pod,
    node: NodeSettings,
    plan: PodPlan,
    observed: RuntimePod,
    progress: Progress,
) -> RunningSandbox:
    try:
        progress.at("preparing the sandbox")
        # The order of the Go kubelet's syncPod: cgroup and directories, which need nothing of each
        # other, volumes, claims, then the sandbox, whose config names cgroup and log directory.
        node = await _prepare(services, pod, node)
        _emit_events(services, pod, node, observed)
        made = await sandbox_spec(services, pod, node, plan.sandbox_attempt)
        progress.at("setting up volumes")
        with span("mountVolumes", pod, _about_volumes) if spec(pod).volumes else NO_SPAN:
            await services.volumes.mount(pod)
        progress.at("preparing devices of claims")
        with span("prepareClaims") if spec(pod).resourceClaims else NO_SPAN:
            await services.claims.prepare(pod)
        progress.at("creating the sandbox")
        sandbox = await _run_sandbox(services, pod, node, plan, made)
    except CgroupError as exc:
        message = f"unable to ensure pod container exists: {exc}"
        raise StepError("FailedCreatePodContainer", message) from exc
    except AttachLimitError as exc:
        raise PodRejectedError(ATTACH_LIMIT, str(exc)) from exc
    except VolumeError as exc:
        raise StepError("FailedMount", str(exc)) from exc
    except ClaimError as exc:
        text = f"Failed to prepare dynamic resources: {exc}"
        raise StepError("FailedPrepareDynamicResources", text) from exc
    except OSError as exc:
        raise StepError("Failed", f"error making pod data directories: {exc}") from exc
    except (RuntimeCallError, SandboxConfigError) as exc:
        count_users(services, pod)
        count_users(services, pod, failed=True)
        cause = exc.go_text if isinstance(exc, RuntimeCallError) else exc
        raise StepError("FailedCreatePodSandBox", f"Failed to create pod sandbox: {cause}") from exc
    count_users(services, pod)
    try:
        await services.observer.refresh(pod_uid(pod), sandboxes=[sandbox.id])
    except RuntimeCallError as exc:
        count_users(services, pod, failed=True)
        text = f"Unable to get pod sandbox status: {exc.go_text}"
        raise StepError("FailedPodSandBoxStatus", text) from exc
    return sandbox


async def _run_sandbox(
    services: PodServices, pod: Pod, node: NodeSettings, plan: PodPlan, made: SandboxSpec
) -> RunningSandbox:
    """Run the sandbox; meanwhile look for the image of the next container, and make its files."""
    ids: list[SandboxId] = []
    files: dict[str, ContainerFiles] = {}

    async def run() -> None:
        ids.append(await services.runtime.run_pod_sandbox(made.config, made.handler))

    async def prepare(start: StartContainer) -> None:
        await trio.sleep(_PREPARE_AFTER)
        await services.images.look(pod, start.container)
        make, container = PodFiles(pod, node).container_files, start.container.spec
        with contextlib.suppress(OSError):  # its start tries again, and says what is wrong
            files[container.name] = await services.offload(
                make, container, (), start.attempt, counts_logs=start.unrecorded
            )

    await run_alongside(run, [partial(prepare, s) for s in plan.start[:1]], (RuntimeCallError,))
    return RunningSandbox(ids[0], made, files=files)


def _about_volumes(pod: Pod) -> Attributes:
    return {"kubelet_trio.volumes": ", ".join(v.name for v in spec(pod).volumes or ())}


def _emit_events(services: PodServices, pod: Pod, node: NodeSettings, observed: RuntimePod) -> None:
    ref, events = pod_object_ref(pod), services.events
    if observed.sandboxes:
        text = "Pod sandbox changed, it will be killed and re-created."
        events.emit(ref, "Normal", "SandboxChanged", text)
    for warning in pod_dns(pod, node).warnings:
        events.emit(ref, "Warning", warning.reason, warning.message)
        if warning.node_message:
            on_node = node_ref(node.node_name)
            events.emit(on_node, "Warning", warning.reason, warning.node_message)
