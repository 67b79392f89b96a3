"""Validates a pod: metadata, scheduling fields, DNS. Containers and volumes: see the others.

Takes a pod that is defaulted and has its static identity, and returns every error. Fields
that `manifest.support` refuses are not checked: a new feature adds its rules here.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkube.models.core_v1 import (
    Container,
    HostAlias,
    Pod,
    PodDNSConfig,
    PodSpec,
    Toleration,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.sources.errors import FieldError
from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.container import validate_containers
from kubelet_trio.sources.validation.field_errors import FieldErrors
from kubelet_trio.sources.validation.security import validate_pod_security
from kubelet_trio.sources.validation.volume import validate_volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
OPERATING_SYSTEMS = ("linux", "windows")

_MAX_ANNOTATIONS = 256 * 1024  # bytes of all keys and values: TotalAnnotationSizeLimitB
# MaxDNSNameservers, MaxDNSSearchPaths and MaxDNSSearchListChars.
_MAX_NAMESERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_CHARS = 2048
_MAX_INT32 = 2**31 - 1
_MAX_HOSTNAME = 64  # the kernel's limit: __NEW_UTS_LEN
_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_pod(pod: Pod) -> list[FieldError]:
    """Return all errors of a pod; it can run if there are none."""
    errors = FieldErrors()
    _metadata(errors, pod.metadata or ObjectMeta())
    if pod.spec is None:
        errors.required("spec")
    else:
        _spec(errors, pod.spec)
    return errors.found


def _metadata(errors: FieldErrors, meta: ObjectMeta) -> None:
    errors.need("metadata.name", meta.name, syntax.dns_subdomain)
    errors.need("metadata.namespace", meta.namespace, syntax.dns_label)
    errors.need("metadata.uid", meta.uid, syntax.pod_uid)
    for key, value in (meta.labels or {}).items():
        errors.check("metadata.labels", key, syntax.qualified_name)
        errors.check(f"metadata.labels[{key}]", value, syntax.label_value)
    annotations: Mapping[str, str] = meta.annotations or {}
    for key in annotations:
        # ValidateAnnotations lowers the key first: upper case is allowed also in the prefix.
        errors.check("metadata.annotations", key.lower(), syntax.qualified_name)
    size = sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items())
    if size > _MAX_ANNOTATIONS:
        errors.forbidden("metadata.annotations", f"larger than {_MAX_ANNOTATIONS} bytes in all")


def _spec(errors: FieldErrors, spec: PodSpec) -> None:
    # First: the containers' mounts are checked against the names of the volumes.
    volumes = validate_volumes(errors, spec.volumes or [])
    validate_pod_security(errors, spec)
    validate_containers(errors, spec, volumes)
    errors.one_of("spec.restartPolicy", spec.restartPolicy, RESTART_POLICIES)
    errors.at_least("spec.terminationGracePeriodSeconds", spec.terminationGracePeriodSeconds, 0)
    if spec.activeDeadlineSeconds is not None:
        errors.within("spec.activeDeadlineSeconds", spec.activeDeadlineSeconds, 1, _MAX_INT32)
    for name in ("hostname", "subdomain"):
        value = getattr(spec, name)
        if value:
            errors.check(f"spec.{name}", value, syntax.dns_label)
    if spec.hostnameOverride is not None:
        _hostname_override(errors, spec, spec.hostnameOverride)
    if spec.shareProcessNamespace and spec.hostPID:
        errors.invalid("spec.shareProcessNamespace", True, "cannot be set together with hostPID")
    if spec.os is not None:
        errors.one_of("spec.os.name", spec.os.name, OPERATING_SYSTEMS)
    _runtime_class(errors, spec)
    if spec.resourceClaims or any(c.resources and c.resources.claims for c in _containers(spec)):
        from kubelet_trio.sources.validation import pod_claims  # deferred: few pods have some

        pod_claims.validate(errors, spec)
    _dns(errors, spec)
    for index, alias in enumerate(spec.hostAliases or ()):
        _host_alias(errors, alias, f"spec.hostAliases[{index}]")
    for index, toleration in enumerate(spec.tolerations or ()):
        _toleration(errors, toleration, f"spec.tolerations[{index}]")
    for key, value in (spec.nodeSelector or {}).items():
        errors.check("spec.nodeSelector", key, syntax.qualified_name)
        errors.check(f"spec.nodeSelector[{key}]", value, syntax.label_value)


def _containers(spec: PodSpec) -> list[Container]:
    return [*(spec.initContainers or ()), *spec.containers]


def _hostname_override(errors: FieldErrors, spec: PodSpec, name: str) -> None:
    path = "spec.hostnameOverride"
    errors.need(path, name, syntax.dns_subdomain)
    if len(name) > _MAX_HOSTNAME:
        errors.invalid(path, name, f"must be no more than {_MAX_HOSTNAME} characters")
    for other in ("hostNetwork", "setHostnameAsFQDN"):
        if getattr(spec, other):
            errors.forbidden(path, f"cannot be set together with {other}")


def _runtime_class(errors: FieldErrors, spec: PodSpec) -> None:
    if spec.runtimeClassName:
        errors.check("spec.runtimeClassName", spec.runtimeClassName, syntax.dns_subdomain)
    for name, text in (spec.overhead or {}).items():
        errors.quantity(f"spec.overhead[{name}]", text)


def _dns(errors: FieldErrors, spec: PodSpec) -> None:
    errors.one_of("spec.dnsPolicy", spec.dnsPolicy, DNS_POLICIES)
    config = spec.dnsConfig or PodDNSConfig()
    path = "spec.dnsConfig"
    if spec.dnsPolicy == "None":
        if spec.dnsConfig is None:
            errors.required(path, "must be set when dnsPolicy is None")
        elif not config.nameservers:
            errors.required(f"{path}.nameservers", "needs one when dnsPolicy is None")
    servers, searches = config.nameservers or [], config.searches or []
    if len(servers) > _MAX_NAMESERVERS:
        errors.too_many(f"{path}.nameservers", len(servers), _MAX_NAMESERVERS)
    for index, server in enumerate(servers):
        errors.check(f"{path}.nameservers[{index}]", server, syntax.ip_address)
    if len(searches) > _MAX_SEARCHES:
        errors.too_many(f"{path}.searches", len(searches), _MAX_SEARCHES)
    if len(" ".join(searches)) > _MAX_SEARCH_CHARS:
        errors.invalid(f"{path}.searches", searches, f"longer than {_MAX_SEARCH_CHARS} characters")
    for index, search in enumerate(searches):
        errors.check(f"{path}.searches[{index}]", search, syntax.search_domain)
    for index, option in enumerate(config.options or ()):
        if not option.name:
            errors.required(f"{path}.options[{index}].name")


def _host_alias(errors: FieldErrors, alias: HostAlias, path: str) -> None:
    errors.need(f"{path}.ip", alias.ip, syntax.ip_address)
    for index, name in enumerate(alias.hostnames or ()):
        errors.check(f"{path}.hostnames[{index}]", name, syntax.dns_subdomain)


def _toleration(errors: FieldErrors, toleration: Toleration, path: str) -> None:
    if toleration.key:
        errors.check(f"{path}.key", toleration.key, syntax.qualified_name)
    elif toleration.operator != "Exists":
        errors.invalid(f"{path}.operator", toleration.operator, "must be Exists without a key")
    errors.one_of(f"{path}.operator", toleration.operator or None, _OPERATORS)
    if toleration.operator == "Exists" and toleration.value:
        errors.invalid(f"{path}.value", toleration.value, "must be empty with operator Exists")
    errors.one_of(f"{path}.effect", toleration.effect or None, _EFFECTS)
    if toleration.tolerationSeconds is not None and toleration.effect != "NoExecute":
        errors.invalid(f"{path}.effect", toleration.effect, "tolerationSeconds is for NoExecute")
