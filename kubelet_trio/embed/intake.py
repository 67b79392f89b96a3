"""Reads the pods that a program passes in, in any accepted form.

Every form is loaded like a manifest file: decoded, checked against the API's fields, defaulted,
validated. A typo in a dict is reported with its path, and the rules for files hold here, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.embed.client_models import from_client_model, is_client_model
from kubelet_trio.model import (
    CONFIG_HASH,
    PodUid,
    blake2b,
    metadata,
    pod_annotations,
    pod_uid,
)
from kubelet_trio.sources import (
    FieldError,
    IsKnown,
    Manifest,
    ManifestError,
    load_manifest,
    none_known,
)

# A lightkube Pod, a mapping in the API's JSON form, YAML or JSON text (also with several
# documents, config maps and secrets), or a V1Pod of the Python client.
PodLike: TypeAlias = Pod | Mapping[str, Any] | str | bytes | Any

ORIGIN = "embedded"
SOURCE = "embedded"


def read_pods(
    given: PodLike | Iterable[PodLike],
    *,
    node_name: str,
    instance: str,
    is_known: IsKnown = none_known,
) -> Manifest:
    """Return the given pods and objects, ready to run.

    Their UIDs are derived from their content: the same pod has the same UID each time. `is_known`
    is whether the program wants a pod of this UID already; see `manifest_uid`.

    Raises:
        ManifestError: with all errors, each with its field path.
        TypeError: a value is of a type that no pod can be read from.
    """
    # A mapping and a text are iterable as well, and mean one value.
    items = list(given) if isinstance(given, Iterable) and not _is_single(given) else [given]
    manifests = [_read(item, node_name, instance, is_known) for item in items]
    return Manifest(
        tuple(pod for manifest in manifests for pod in manifest.pods),
        tuple(value for manifest in manifests for value in manifest.objects),
    )


def read_pod(
    given: PodLike, *, node_name: str, instance: str, is_known: IsKnown = none_known
) -> tuple[Pod, Manifest]:
    """Return the only pod of the given value, and all of it.

    Raises ManifestError, also if there is not exactly one pod, and TypeError; see `read_pods`.
    """
    manifest = read_pods(given, node_name=node_name, instance=instance, is_known=is_known)
    if len(manifest.pods) != 1:
        found = f"expected exactly one Pod, found {len(manifest.pods)}"
        raise ManifestError(ORIGIN, [FieldError("", found)])
    return manifest.pods[0], manifest


def fresh_uid() -> PodUid:
    """Return a new random UID."""
    return PodUid(str(uuid.uuid4()))


def with_uid(pod: Pod, uid: PodUid) -> Pod:
    """Return the pod under another UID."""
    annotations = {**pod_annotations(pod), CONFIG_HASH: uid}
    meta = msgspec.structs.replace(metadata(pod), uid=uid, annotations=annotations)
    return msgspec.structs.replace(pod, metadata=meta)


def _is_single(given: Any) -> bool:
    return isinstance(given, Pod | Mapping | str | bytes) or is_client_model(given)


def _read(given: PodLike, node_name: str, instance: str, is_known: IsKnown) -> Manifest:
    try:
        manifest = load_manifest(
            _as_text(given),
            ORIGIN,
            node_name=node_name,
            source=SOURCE,
            is_known=lambda uid: is_known(_own_uid(uid, instance)),
        )
    except ManifestError as exc:
        if isinstance(given, str | bytes):
            raise
        # The program has no text, so a line of ours means nothing to it.
        raise ManifestError(ORIGIN, [replace(e, line=0, column=0) for e in exc.errors]) from exc
    pods = tuple(with_uid(pod, _own_uid(pod_uid(pod), instance)) for pod in manifest.pods)
    return Manifest(pods, manifest.objects)


def _own_uid(uid: PodUid, instance: str) -> PodUid:
    """Return a UID that depends on the kubelet as well."""
    # Two kubelets on one runtime must not give one UID to two pods, not even from one manifest.
    return PodUid(blake2b(f"{instance}/{uid}".encode(), digest_size=16).hexdigest())


def _as_text(given: Any) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, Pod):
        value: Any = msgspec.to_builtins(given)
    elif is_client_model(given):
        value = from_client_model(given)
    elif isinstance(given, Mapping):
        value = {"apiVersion": "v1", "kind": "Pod", **given}  # may be omitted in a mapping
    else:
        raise TypeError(
            f"{type(given).__name__} is no pod: expected a Pod, a mapping, YAML text or a V1Pod"
        )
    if not isinstance(given, Mapping):
        value = {**value, "apiVersion": "v1", "kind": "Pod"}  # models may leave them unset
    # As JSON text, so that every form passes the same checks as a file.
    try:
        return msgspec.json.encode(value)
    except TypeError as exc:  # a value that JSON cannot represent
        raise ManifestError(ORIGIN, [FieldError("", str(exc))]) from exc
