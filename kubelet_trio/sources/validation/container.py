"""Validation of a pod's containers: names, images, ports, environment, mounts, resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import (
    Container,
    ContainerPort,
    ContainerRestartRule,
    EphemeralContainer,
    Pod,
    PodSpec,
    ResourceRequirements,
    VolumeMount,
)

from kubelet_trio.containers import RESIZABLE, amounts, container_amounts, total_quantities
from kubelet_trio.model import NANO, RESTART_ALL_CONTAINERS, as_container, parse_quantity
from kubelet_trio.sources.errors import FieldError
from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.env import validate_env
from kubelet_trio.sources.validation.field_errors import FieldErrors
from kubelet_trio.sources.validation.handlers import validate_handlers, validate_no_handlers
from kubelet_trio.sources.validation.security import validate_container_security

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROTOCOLS = ("TCP", "UDP", "SCTP")
PROPAGATION = ("None", "HostToContainer", "Bidirectional")
RECURSIVE_READ_ONLY = ("Disabled", "IfPossible", "Enabled")
RESTART_POLICIES = ("Always", "OnFailure", "Never")
RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_NO_RESTART = (
    "must be NotRequired when the pod's restartPolicy is Never, and for init containers that are "
    "not sidecars"
)

# Limits of KEP-5307.
_MAX_RULES = 20
_MAX_EXIT_CODES = 255

# The fields of a container that an ephemeral one does not have (allowedEphemeralContainerFields).
_NOT_EPHEMERAL = (
    *("ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"),
    *("restartPolicy", "restartPolicyRules", "resizePolicy"),
)
_EPHEMERAL = "cannot be set for an Ephemeral Container"

Placed = tuple[str, Container]  # path and container


def validate_containers(errors: FieldErrors, spec: PodSpec, volumes: frozenset[str]) -> None:
    """Check init and main containers: names, volumes and host ports are shared by all."""
    if not spec.containers:
        errors.required("spec.containers")
    init = [(f"spec.initContainers[{i}]", c) for i, c in enumerate(spec.initContainers or ())]
    main = [(f"spec.containers[{i}]", c) for i, c in enumerate(spec.containers)]
    seen: set[str] = set()
    for path, container in [*init, *main]:
        if container.name and container.name in seen:
            errors.duplicate(f"{path}.name", container.name)
        seen.add(container.name)
        _container(errors, spec, container, path, volumes)
        _ports(errors, container.ports or [], f"{path}.ports", bool(spec.hostNetwork))
        is_ordinary_init = (path, container) in init and container.restartPolicy != "Always"
        never = is_ordinary_init or spec.restartPolicy == "Never"
        _resize_policies(errors, container, path, may_restart=not never)
        if is_ordinary_init:
            validate_no_handlers(errors, container, path)
        else:
            validate_handlers(errors, spec, container, path)
    if spec.resources is not None:
        _pod_resources(errors, spec, spec.resources, [*init, *main])
    # Init containers run alone; sidecars and main containers at the same time.
    ordinary = [placed for placed in init if placed[1].restartPolicy != "Always"]
    for placed in ordinary:
        _host_ports(errors, [placed])
    _host_ports(errors, [placed for placed in [*init, *main] if placed not in ordinary])


def validate_ephemeral(spec: PodSpec, container: EphemeralContainer, path: str) -> list[FieldError]:
    """Return all errors of an ephemeral container that is to be added to a pod.

    Source: validateEphemeralContainers in pkg/apis/core/validation.
    """
    errors = FieldErrors()
    others = [c.name for c in (*(spec.initContainers or ()), *spec.containers)]
    if container.name in [*others, *(c.name for c in spec.ephemeralContainers or ())]:
        errors.duplicate(f"{path}.name", container.name)
    target = container.targetContainerName
    if target and target not in others:
        errors.not_found(f"{path}.targetContainerName", target)
    volumes = frozenset(volume.name for volume in spec.volumes or ())
    _container(errors, spec, as_container(container), path, volumes)
    for name in _NOT_EPHEMERAL:
        if getattr(container, name):
            errors.forbidden(f"{path}.{name}", _EPHEMERAL)
    for index, mount in enumerate(container.volumeMounts or ()):
        for name in ("subPath", "subPathExpr"):
            if getattr(mount, name):
                errors.forbidden(f"{path}.volumeMounts[{index}].{name}", _EPHEMERAL)
    return errors.found


def _container(
    errors: FieldErrors, spec: PodSpec, container: Container, path: str, volumes: frozenset[str]
) -> None:
    """Check what containers of every kind have."""
    errors.need(f"{path}.name", container.name, syntax.dns_label)
    image = container.image or ""
    if not image:
        errors.required(f"{path}.image")
    elif image.strip() != image:
        errors.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    errors.one_of(f"{path}.imagePullPolicy", container.imagePullPolicy, PULL_POLICIES)
    policy = container.terminationMessagePolicy
    errors.one_of(f"{path}.terminationMessagePolicy", policy, MESSAGE_POLICIES)
    _mounts(errors, container, path, volumes)
    resources = container.resources or ResourceRequirements()
    _resources(errors, resources, f"{path}.resources")
    _restart(errors, container, path)
    claimed = frozenset(
        v.name
        for v in spec.volumes or ()
        if v.persistentVolumeClaim is not None or v.ephemeral is not None
    )
    _devices(errors, container, path, volumes, claimed)
    # The only volumes that `fileKeyRef` may read from (KEP-3721).
    empty_dirs = [v.name for v in spec.volumes or () if v.emptyDir is not None]
    validate_env(errors, container, path, empty_dirs)
    own_users = spec.hostUsers is False
    validate_container_security(errors, container, path, own_users=own_users)


def _ports(errors: FieldErrors, ports: list[ContainerPort], path: str, host_network: bool) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        if port.name:
            errors.check(f"{where}.name", port.name, syntax.port_name)
            if port.name in names:
                errors.duplicate(f"{where}.name", port.name)
            names.add(port.name)
        if not port.containerPort:
            errors.required(f"{where}.containerPort")
        else:
            errors.within(f"{where}.containerPort", port.containerPort, 1, 65535)
        if port.hostPort:
            errors.within(f"{where}.hostPort", port.hostPort, 1, 65535)
            # On the host's network the container itself binds the port: there is no mapping.
            if host_network and port.hostPort != port.containerPort:
                errors.invalid(
                    f"{where}.hostPort", port.hostPort, "must match containerPort on hostNetwork"
                )
        errors.one_of(f"{where}.protocol", port.protocol, PROTOCOLS)
        if port.hostIP:
            errors.check(f"{where}.hostIP", port.hostIP, syntax.ip_address)


def _host_ports(errors: FieldErrors, containers: Iterable[Placed]) -> None:
    taken: set[tuple[str, str, int]] = set()
    for path, container in containers:
        for index, port in enumerate(container.ports or ()):
            if not port.hostPort:
                continue
            key = (port.protocol or "TCP", port.hostIP or "", port.hostPort)
            if key in taken:
                shown = "/".join(str(part) for part in key if part)
                errors.duplicate(f"{path}.ports[{index}].hostPort", shown)
            taken.add(key)


def _mounts(errors: FieldErrors, container: Container, path: str, volumes: frozenset[str]) -> None:
    places: set[str] = set()
    privileged = bool(container.securityContext and container.securityContext.privileged)
    for index, mount in enumerate(container.volumeMounts or ()):
        where = f"{path}.volumeMounts[{index}]"
        if not mount.name:
            errors.required(f"{where}.name")
        elif mount.name not in volumes:
            errors.not_found(f"{where}.name", mount.name)
        if not mount.mountPath:
            errors.required(f"{where}.mountPath")
        elif mount.mountPath in places:
            errors.invalid(f"{where}.mountPath", mount.mountPath, "must be unique")
        places.add(mount.mountPath)
        _mount_options(errors, mount, where, privileged)


def _devices(
    errors: FieldErrors,
    container: Container,
    path: str,
    volumes: frozenset[str],
    claimed: frozenset[str],
) -> None:
    """Check a container's block volumes (ValidateVolumeDevices in pkg/apis/core/validation)."""
    mounts = container.volumeMounts or ()
    mounted, mount_paths = {m.name for m in mounts}, {m.mountPath for m in mounts}
    names: set[str] = set()
    paths: set[str] = set()
    for index, device in enumerate(container.volumeDevices or ()):
        where, name, place = f"{path}.volumeDevices[{index}]", device.name, device.devicePath
        if not name:
            errors.required(f"{where}.name")
        elif name not in volumes:
            errors.not_found(f"{where}.name", name)
        elif name not in claimed:
            text = "can only use volume source type of PersistentVolumeClaim or Ephemeral for "
            errors.invalid(f"{where}.name", name, f"{text}block mode")
        if name in names:
            errors.invalid(f"{where}.name", name, "must be unique")
        if name in mounted:
            errors.invalid(f"{where}.name", name, "must not already exist in volumeMounts")
        if not place:
            errors.required(f"{where}.devicePath")
            continue
        errors.check(f"{where}.devicePath", place, _device_path)
        if place in paths:
            errors.invalid(f"{where}.devicePath", place, "must be unique")
        if place in mount_paths:
            text = "must not already exist as a path in volumeMounts"
            errors.invalid(f"{where}.devicePath", place, text)
        names.add(name)
        paths.add(place)


def _device_path(text: str) -> str | None:
    if not text.startswith("/"):
        return "must be an absolute path"  # makeBlockVolumes refuses it later
    return "can not contain backsteps ('..')" if ".." in text.split("/") else None


def _mount_options(errors: FieldErrors, mount: VolumeMount, path: str, privileged: bool) -> None:
    if mount.subPath and mount.subPathExpr:
        errors.invalid(f"{path}.subPathExpr", mount.subPathExpr, "subPath is set as well")
    for name in ("subPath", "subPathExpr"):
        value = getattr(mount, name)
        if value:
            errors.check(f"{path}.{name}", value, syntax.inside_path)
    errors.one_of(f"{path}.mountPropagation", mount.mountPropagation, PROPAGATION)
    # It would let a container mount file systems on the host.
    if mount.mountPropagation == "Bidirectional" and not privileged:
        errors.forbidden(f"{path}.mountPropagation", "Bidirectional needs a privileged container")
    recursive = mount.recursiveReadOnly
    errors.one_of(f"{path}.recursiveReadOnly", recursive, RECURSIVE_READ_ONLY)
    if recursive in ("IfPossible", "Enabled"):
        if not mount.readOnly:
            errors.forbidden(f"{path}.recursiveReadOnly", "needs readOnly")
        if mount.mountPropagation not in (None, "None"):
            errors.forbidden(f"{path}.recursiveReadOnly", "needs mountPropagation None")


def _resources(errors: FieldErrors, resources: ResourceRequirements, path: str) -> None:
    limits = _amounts(errors, resources.limits or {}, f"{path}.limits")
    requests = _amounts(errors, resources.requests or {}, f"{path}.requests")
    for name, amount in requests.items():
        if name in limits and amount > limits[name]:
            limit = (resources.limits or {})[name]
            errors.invalid(
                f"{path}.requests",
                (resources.requests or {})[name],
                f"must be less than or equal to {name} limit of {limit}",
            )
        # Huge pages are reserved by the kernel, devices are whole: neither can be overcommitted.
        elif (name.startswith("hugepages-") or "/" in name) and amount != limits.get(name):
            errors.invalid(f"{path}.requests", name, "must be equal to the limit")
    for name, amount in (*limits.items(), *requests.items()):
        if "/" in name:
            errors.check(f"{path}[{name}]", name, syntax.qualified_name)
            if amount % NANO:
                errors.invalid(f"{path}[{name}]", name, "must be an integer")


def _pod_resources(
    errors: FieldErrors, spec: PodSpec, own: ResourceRequirements, containers: list[Placed]
) -> None:
    """Check pod-level resources against those of the containers (KEP-2837)."""
    _resources(errors, own, "spec.resources")
    try:
        asked = total_quantities(Pod(spec=spec), "requests")
        requests, limits = amounts(own.requests), amounts(own.limits)
        of_containers = [container_amounts(container, "limits") for _, container in containers]
    except ValueError:
        return  # reported already: amounts cannot be compared if some do not parse
    for name, amount in requests.items():
        least = asked.get(name, "0")
        if parse_quantity(least) > amount:
            errors.invalid(
                f"spec.resources.requests[{name}]",
                (own.requests or {})[name],
                f"must be greater than or equal to aggregate container requests of {least}",
            )
    for (path, container), given in zip(containers, of_containers, strict=True):
        for name, amount in given.items():
            if name in limits and amount > limits[name]:
                errors.invalid(
                    f"{path}.resources.limits[{name}]",
                    ((container.resources and container.resources.limits) or {})[name],
                    f"must be less than or equal to pod limits of {(own.limits or {})[name]}",
                )


def _amounts(errors: FieldErrors, quantities: Mapping[str, str], path: str) -> dict[str, int]:
    amounts = {}
    for name, text in quantities.items():
        amount = errors.quantity(f"{path}[{name}]", text)
        if amount is not None:
            amounts[name] = amount
    return amounts


def _resize_policies(
    errors: FieldErrors, container: Container, path: str, *, may_restart: bool
) -> None:
    """Check how a container is resized: in place, or by a restart where that is allowed."""
    named: set[str] = set()
    for index, policy in enumerate(container.resizePolicy or ()):
        where = f"{path}.resizePolicy[{index}]"
        for field, known in (("resourceName", RESIZABLE), ("restartPolicy", RESIZE_POLICIES)):
            value = getattr(policy, field)
            if not value:
                errors.required(f"{where}.{field}")
            else:
                errors.one_of(f"{where}.{field}", value, known)
        if policy.resourceName in named:
            errors.duplicate(f"{where}.resourceName", policy.resourceName)
        named.add(policy.resourceName)
        if policy.restartPolicy == "RestartContainer" and not may_restart:
            errors.invalid(f"{where}.restartPolicy", policy.restartPolicy, _NO_RESTART)


def _restart(errors: FieldErrors, container: Container, path: str) -> None:
    """Check a container's own restart policy and its rules (KEP-5307)."""
    errors.one_of(f"{path}.restartPolicy", container.restartPolicy, RESTART_POLICIES)
    rules = container.restartPolicyRules or []
    if rules and container.restartPolicy is None:
        errors.required(f"{path}.restartPolicy", "must be set where restartPolicyRules are")
    if len(rules) > _MAX_RULES:
        errors.too_many(f"{path}.restartPolicyRules", len(rules), _MAX_RULES)
    for index, rule in enumerate(rules):
        _restart_rule(errors, rule, f"{path}.restartPolicyRules[{index}]")


def _restart_rule(errors: FieldErrors, rule: ContainerRestartRule, path: str) -> None:
    errors.one_of(f"{path}.action", rule.action, ("Restart", RESTART_ALL_CONTAINERS))
    codes = rule.exitCodes
    if codes is None:
        errors.required(f"{path}.exitCodes")
        return
    errors.one_of(f"{path}.exitCodes.operator", codes.operator, ("In", "NotIn"))
    values = codes.values or []
    if not values:
        errors.required(f"{path}.exitCodes.values")
    if len(values) > _MAX_EXIT_CODES:
        errors.too_many(f"{path}.exitCodes.values", len(values), _MAX_EXIT_CODES)
    for index, value in enumerate(values):
        errors.within(f"{path}.exitCodes.values[{index}]", value, 0, 2**31 - 1)
        if value in values[:index]:
            errors.duplicate(f"{path}.exitCodes.values[{index}]", value)
