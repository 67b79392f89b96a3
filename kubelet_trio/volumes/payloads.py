"""Turn config maps, secrets, tokens and fields of the pod into files. Pure.

Error texts that people search for are the Go kubelet's, word for word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lightkube.models.core_v1 import (
    ClusterTrustBundleProjection,
    ConfigMap,
    DownwardAPIVolumeFile,
    KeyToPath,
    PodCertificateProjection,
    Secret,
    ServiceAccountTokenProjection,
    VolumeProjection,
)

from kubelet_trio.containers import field_value, resource_value
from kubelet_trio.model import pod_containers, pod_key, pod_uid
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import (
    CredentialBundle,
    ObjectError,
    TokenRequest,
    config_map_content,
    config_map_key,
    secret_content,
    secret_key,
)
from kubelet_trio.volumes.atomic import File, Payload
from kubelet_trio.volumes.spec import VolumeSpec

DEFAULT_MODE = 0o644
_PRIVATE_MODE = 0o600  # if the reader is known: one user for all containers, or the fsGroup


def config_map_payload(spec: VolumeSpec) -> Payload:
    """Return the files of a configMap volume. Raises `ObjectError` and ValueError."""
    source = spec.source
    return _config_map(spec, source.name, source.items, source.optional, _mode(source))


def secret_payload(spec: VolumeSpec) -> Payload:
    """Return the files of a secret volume. Raises `ObjectError` and ValueError."""
    source = spec.source
    return _secret(spec, source.secretName, source.items, source.optional, _mode(source))


def downward_payload(spec: VolumeSpec) -> Payload:
    """Return the files of a downwardAPI volume. Raises `PodConfigError`."""
    return _downward(spec, spec.source.items or (), _mode(spec.source))


def projected_payload(spec: VolumeSpec) -> Payload:
    """Return the files of all sources; at the same path the later source wins.

    Raises `ObjectError` and `PodConfigError`; an ObjectError lists everything that is missing.
    """
    files: dict[str, File] = {}
    errors: dict[str, None] = {}  # each text once
    for index, source in enumerate(spec.source.sources or ()):
        try:
            files.update(_projection(spec, source, index, _mode(spec.source)))
        except (ObjectError, ValueError) as exc:
            errors[str(exc)] = None
    if errors:
        # The format of NewAggregate in k8s.io/apimachinery/pkg/util/errors.
        raise ObjectError(next(iter(errors)) if len(errors) == 1 else f"[{', '.join(errors)}]")
    return files


def token_requests(spec: VolumeSpec) -> Iterator[TokenRequest]:
    """Yield the tokens that a projected volume needs."""
    if spec.kind != "projected":
        return
    for source in spec.source.sources or ():
        if source.serviceAccountToken is not None:
            yield _token_request(spec, source.serviceAccountToken)


def _projection(spec: VolumeSpec, source: VolumeProjection, index: int, mode: int) -> Payload:
    if source.configMap is not None:
        config_map = source.configMap
        return _config_map(spec, config_map.name, config_map.items, config_map.optional, mode)
    if source.secret is not None:
        secret = source.secret
        return _secret(spec, secret.name, secret.items, secret.optional, mode)
    if source.downwardAPI is not None:
        return _downward(spec, source.downwardAPI.items or (), mode)
    if source.serviceAccountToken is not None:
        return _token(spec, source.serviceAccountToken, mode)
    if source.clusterTrustBundle is not None:
        return _trust_bundle(spec, source.clusterTrustBundle, index, mode)
    if source.podCertificate is not None:
        return _certificate(spec, source.podCertificate, index, mode)
    raise ValueError("this kind of projected source is not supported")


def _config_map(
    spec: VolumeSpec,
    name: str | None,
    items: Sequence[KeyToPath] | None,
    optional: bool | None,
    mode: int,
) -> Payload:
    key = config_map_key(spec.namespace, name)
    found = spec.objects.get_optional(key, ConfigMap, optional=optional)
    content = config_map_content(found) if found is not None else {}
    return _keyed(content, items, optional, mode, "config")


def _secret(
    spec: VolumeSpec,
    name: str | None,
    items: Sequence[KeyToPath] | None,
    optional: bool | None,
    mode: int,
) -> Payload:
    found = spec.objects.get_optional(secret_key(spec.namespace, name), Secret, optional=optional)
    content = secret_content(found) if found is not None else {}
    return _keyed(content, items, optional, mode, "secret")


def _keyed(
    content: Mapping[str, bytes],
    items: Sequence[KeyToPath] | None,
    optional: bool | None,
    mode: int,
    what: str,
) -> Payload:
    """Return a file for each key, or for each of `items` at its path."""
    if not items:
        return {key: File(value, mode) for key, value in content.items()}
    files: dict[str, File] = {}
    for item in items:
        if item.key in content:
            own = mode if item.mode is None else item.mode
            files[item.path] = File(content[item.key], own)
        elif not optional:
            raise ValueError(f"references non-existent {what} key: {item.key}")
    return files


def _downward(spec: VolumeSpec, items: Sequence[DownwardAPIVolumeFile], mode: int) -> Payload:
    files: dict[str, File] = {}
    for item in items:
        if item.fieldRef is not None:
            text = field_value(spec.pod, item.fieldRef.fieldPath, spec.facts)
        elif item.resourceFieldRef is not None:
            text = resource_value(spec.pod, None, item.resourceFieldRef, spec.facts)
        else:
            continue
        files[item.path] = File(text.encode(), mode if item.mode is None else item.mode)
    return files


def _token_request(spec: VolumeSpec, source: ServiceAccountTokenProjection) -> TokenRequest:
    return TokenRequest(
        pod_key(spec.pod),
        pod_uid(spec.pod),
        pod_spec(spec.pod).serviceAccountName or "default",
        source.audience or "",
        source.expirationSeconds or 3600,  # the API's default
    )


def _token(spec: VolumeSpec, source: ServiceAccountTokenProjection, mode: int) -> Payload:
    token = spec.tokens.get(_token_request(spec, source))
    if not isinstance(token, str):
        raise token if token is not None else ObjectError("no token was requested")
    return {source.path: _private(spec, token.encode(), mode)}


def _trust_bundle(
    spec: VolumeSpec, source: ClusterTrustBundleProjection, index: int, mode: int
) -> Payload:
    anchors = _issued(spec, index)
    assert isinstance(anchors, bytes)
    return {source.path: _private(spec, anchors, mode)}


def _certificate(
    spec: VolumeSpec, source: PodCertificateProjection, index: int, mode: int
) -> Payload:
    bundle = _issued(spec, index)
    assert isinstance(bundle, CredentialBundle)
    contents = (
        (source.credentialBundlePath, bundle.key + bundle.chain),
        (source.keyPath, bundle.key),
        (source.certificateChainPath, bundle.chain),
    )
    return {path: _private(spec, content, mode) for path, content in contents if path}


def _issued(spec: VolumeSpec, index: int) -> bytes | CredentialBundle:
    found = spec.issued.get(index, ObjectError("nothing was requested"))
    if isinstance(found, ObjectError):
        raise found
    return found


def _private(spec: VolumeSpec, content: bytes, mode: int) -> File:
    """Return a file for the pod's user and group alone, if they are known."""
    user = _one_user(spec)
    # collectData in pkg/volume/projected/projected.go: without a known reader all may read it.
    # For an fsGroup `own_tree` adds the group's bits.
    if user is not None or spec.fs_group is not None:
        mode = _PRIVATE_MODE
    return File(content, mode, user)


def _one_user(spec: VolumeSpec) -> int | None:
    """Return the user of all the pod's containers, None if they differ or have none."""
    pod_context = pod_spec(spec.pod).securityContext
    default = pod_context.runAsUser if pod_context is not None else None
    users: set[int | None] = set()
    for container in pod_containers(spec.pod):
        own = container.spec.securityContext
        users.add(own.runAsUser if own is not None and own.runAsUser is not None else default)
    return users.pop() if len(users) == 1 else None


def _mode(source: object) -> int:
    mode = getattr(source, "defaultMode", None)
    return DEFAULT_MODE if mode is None else int(mode)
