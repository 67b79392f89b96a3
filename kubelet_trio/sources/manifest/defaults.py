"""Sets the fields that a manifest omits, as the API server does.

Pure and idempotent: returns a new Pod. Source: pkg/apis/core/v1/defaults.go. Fields that the
agent refuses today are defaulted as well where that is simple.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar

from lightkube.models.core_v1 import (
    Container,
    ContainerPort,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    EnvVar,
    EphemeralContainer,
    HTTPGetAction,
    Lifecycle,
    ObjectFieldSelector,
    Pod,
    PodSecurityContext,
    PodSpec,
    Probe,
    ProjectedVolumeSource,
    ResourceRequirements,
    Volume,
    VolumeProjection,
)
from msgspec import Struct
from msgspec.structs import replace

from kubelet_trio.containers import total_quantities
from kubelet_trio.model import canonical_quantity

T = TypeVar("T", bound=Struct)
V = TypeVar("V")
S = TypeVar("S", bound=Struct)
Which = Literal["requests", "limits"]

TERMINATION_MESSAGE_PATH = "/dev/termination-log"
GRACE_PERIOD = 30  # seconds: DefaultTerminationGracePeriodSeconds
FILE_MODE = 0o644  # ConfigMapVolumeSourceDefaultMode and its like


def default_pod(pod: Pod) -> Pod:
    """Return the pod with every omitted field that has a default set to it."""
    return replace(pod, spec=_spec(pod.spec)) if pod.spec is not None else pod


def _spec(spec: PodSpec) -> PodSpec:
    host_network = bool(spec.hostNetwork)
    # First: the pod's requests default to those of the containers.
    spec = replace(
        spec,
        containers=[_container(c, host_network) for c in spec.containers],
        initContainers=_each(spec.initContainers, lambda c: _container(c, host_network)),
    )
    return replace(
        spec,
        resources=spec.resources and _pod_resources(spec, spec.resources),
        volumes=_each(spec.volumes, _volume),
        dnsPolicy=spec.dnsPolicy or "ClusterFirst",
        restartPolicy=spec.restartPolicy or "Always",
        schedulerName=spec.schedulerName or "default-scheduler",
        securityContext=spec.securityContext or PodSecurityContext(),
        terminationGracePeriodSeconds=_or(spec.terminationGracePeriodSeconds, GRACE_PERIOD),
        enableServiceLinks=_or(spec.enableServiceLinks, True),
    )


def default_ephemeral(container: EphemeralContainer) -> EphemeralContainer:
    """Return an ephemeral container with every omitted field that has a default set to it.

    It may have nothing but what any container has: `resources`, which it may not, is left out.
    """
    return replace(
        container,
        imagePullPolicy=container.imagePullPolicy or pull_policy(container.image or ""),
        terminationMessagePath=container.terminationMessagePath or TERMINATION_MESSAGE_PATH,
        terminationMessagePolicy=container.terminationMessagePolicy or "File",
        env=_each(container.env, _env),
    )


def _container(container: Container, host_network: bool) -> Container:
    return replace(
        container,
        imagePullPolicy=container.imagePullPolicy or pull_policy(container.image or ""),
        terminationMessagePath=container.terminationMessagePath or TERMINATION_MESSAGE_PATH,
        terminationMessagePolicy=container.terminationMessagePolicy or "File",
        env=_each(container.env, _env),
        ports=_each(container.ports, lambda p: _port(p, host_network)),
        resources=_resources(container.resources or ResourceRequirements()),
        lifecycle=container.lifecycle and _lifecycle(container.lifecycle),
        livenessProbe=container.livenessProbe and _probe(container.livenessProbe),
        readinessProbe=container.readinessProbe and _probe(container.readinessProbe),
        startupProbe=container.startupProbe and _probe(container.startupProbe),
    )


def pull_policy(image: str) -> str:
    """Return Always for the tag `latest` and for no tag, else IfNotPresent.

    An image with a digest and no tag has IfNotPresent.
    """
    name, _, digest = image.partition("@")
    # A colon before the last slash belongs to the registry's port.
    _, colon, tag = name.rpartition("/")[2].partition(":")
    if not colon:
        tag = "" if digest else "latest"
    return "Always" if tag == "latest" else "IfNotPresent"


def _port(port: ContainerPort, host_network: bool) -> ContainerPort:
    # As defaultHostNetworkPorts in defaults.go.
    host_port = port.hostPort or (port.containerPort if host_network else None)
    return replace(port, protocol=port.protocol or "TCP", hostPort=host_port)


def _resources(resources: ResourceRequirements) -> ResourceRequirements:
    """Default requests to limits, and write quantities canonically."""
    limits = {k: _quantity(v) for k, v in (resources.limits or {}).items()}
    requests = {k: _quantity(v) for k, v in (resources.requests or {}).items()}
    return replace(resources, limits=limits or None, requests={**limits, **requests} or None)


def _pod_resources(spec: PodSpec, own: ResourceRequirements) -> ResourceRequirements:
    """Default pod-level huge pages to those of the containers, and requests where limits are set.

    A request is the sum of the containers' requests, else the pod's limit (KEP-2837).
    """
    limits = {k: _quantity(v) for k, v in (own.limits or {}).items()}
    requests = {k: _quantity(v) for k, v in (own.requests or {}).items()}
    if not limits and not requests:
        return own
    # As defaultHugePagePodLimits, then defaultPodRequests.
    limits = {**_of_containers(spec, "limits", _is_huge, but=requests), **limits}
    if limits:
        requests = {**_of_containers(spec, "requests", _is_shared), **requests}
        pods_own = {k: v for k, v in limits.items() if _is_shared(k) or _is_huge(k)}
        requests = {**pods_own, **requests}
    return replace(own, limits=limits or None, requests=requests or None)


def _of_containers(
    spec: PodSpec, which: Which, is_wanted: Callable[[str], bool], but: Collection[str] = ()
) -> dict[str, str]:
    try:
        total = total_quantities(Pod(spec=spec), which)
    except ValueError:
        return {}  # validation reports the bad quantity
    return {name: text for name, text in total.items() if is_wanted(name) and name not in but}


def _is_shared(name: str) -> bool:
    return name in ("cpu", "memory")


def _is_huge(name: str) -> bool:
    return name.startswith("hugepages-")


def _quantity(text: str) -> str:
    try:
        return canonical_quantity(text)
    except ValueError:
        return text  # validation reports it


def _volume(volume: Volume) -> Volume:
    sources = [f for f in volume.__struct_fields__ if f != "name"]
    # SetDefaults_Volume: a volume without a source is an emptyDir.
    if all(getattr(volume, f) is None for f in sources):
        return replace(volume, emptyDir=EmptyDirVolumeSource())
    changed: dict[str, Any] = {}
    if volume.hostPath is not None and volume.hostPath.type is None:
        changed["hostPath"] = replace(volume.hostPath, type="")
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        source = getattr(volume, kind)
        if source is not None:
            changed[kind] = _content(source)
    image = volume.image
    if image is not None and not image.pullPolicy:
        changed["image"] = replace(image, pullPolicy=pull_policy(image.reference or ""))
    return replace(volume, **changed) if changed else volume


def _content(source: S) -> S:
    """Default a volume of files: its mode, and the apiVersion of its field references."""
    changed: dict[str, Any] = {"defaultMode": _or(getattr(source, "defaultMode", None), FILE_MODE)}
    if isinstance(source, DownwardAPIVolumeSource):
        changed["items"] = _each(source.items, _downward_file)
    if isinstance(source, ProjectedVolumeSource):
        changed["sources"] = _each(source.sources, _projection)
    return replace(source, **changed)


def _projection(source: VolumeProjection) -> VolumeProjection:
    if source.downwardAPI is None:
        return source
    items = _each(source.downwardAPI.items, _downward_file)
    return replace(source, downwardAPI=replace(source.downwardAPI, items=items))


def _downward_file(item: DownwardAPIVolumeFile) -> DownwardAPIVolumeFile:
    return replace(item, fieldRef=item.fieldRef and _field_ref(item.fieldRef))


def _field_ref(ref: ObjectFieldSelector) -> ObjectFieldSelector:
    return replace(ref, apiVersion=ref.apiVersion or "v1")


def _env(variable: EnvVar) -> EnvVar:
    source = variable.valueFrom
    if source is None or source.fieldRef is None:
        return variable
    return replace(variable, valueFrom=replace(source, fieldRef=_field_ref(source.fieldRef)))


def _probe(probe: Probe) -> Probe:
    return replace(
        probe,
        # Zero means "not set" in these fields (SetDefaults_Probe).
        timeoutSeconds=probe.timeoutSeconds or 1,
        periodSeconds=probe.periodSeconds or 10,
        successThreshold=probe.successThreshold or 1,
        failureThreshold=probe.failureThreshold or 3,
        httpGet=probe.httpGet and _http_get(probe.httpGet),
        grpc=probe.grpc and replace(probe.grpc, service=probe.grpc.service or ""),
    )


def _http_get(action: HTTPGetAction) -> HTTPGetAction:
    return replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")


def _lifecycle(lifecycle: Lifecycle) -> Lifecycle:
    hooks = {}
    for name in ("postStart", "preStop"):
        hook = getattr(lifecycle, name)
        if hook is not None and hook.httpGet is not None:
            hooks[name] = replace(hook, httpGet=_http_get(hook.httpGet))
    return replace(lifecycle, **hooks) if hooks else lifecycle


def _each(items: list[T] | None, change: Callable[[T], T]) -> list[T] | None:
    return None if items is None else [change(item) for item in items]


def _or(value: V | None, default: V) -> V:
    return default if value is None else value
