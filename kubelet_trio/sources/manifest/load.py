"""Loads one manifest: from its bytes to validated pods and objects."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.objects import KINDS, ApiObject
from kubelet_trio.sources.errors import FieldError, ManifestError
from kubelet_trio.sources.manifest.decode import RawObject, decode
from kubelet_trio.sources.manifest.defaults import default_pod
from kubelet_trio.sources.manifest.identity import IsKnown, manifest_uid, none_known
from kubelet_trio.sources.manifest.schema import check_object, check_pod
from kubelet_trio.sources.manifest.static import make_static
from kubelet_trio.sources.manifest.support import check_support
from kubelet_trio.sources.validation import default_object, validate_object, validate_pod


@dataclass(frozen=True, slots=True)
class Manifest:
    """The pods and objects of one file or response."""

    pods: tuple[Pod, ...] = ()
    objects: tuple[ApiObject, ...] = ()


def load_manifest(
    data: bytes,
    origin: str,
    *,
    node_name: str,
    source: str = "file",
    is_known: IsKnown = none_known,
) -> Manifest:
    """Return pods and objects: checked, defaulted, validated, pods with their static identity.

    All of the manifest is loaded, or an error raised. `config.seen` is not set.

    Args:
        data: YAML or JSON, with any number of documents.
        origin: the file's path or the URL; part of the pods' identity.
        source: `file` or `http`, for annotation `kubernetes.io/config.source`.
        is_known: whether a pod of this UID is desired already; see `manifest_uid`.

    Raises:
        ManifestError: with all errors found. No other exception, whatever the bytes.
    """
    pods: list[Pod] = []
    objects: list[ApiObject] = []
    errors: list[FieldError] = []
    for raw in decode(data, origin):
        if raw.kind == "Pod":
            pod, found = _load_pod(raw, origin, node_name, source, is_known)
            pods += [pod] if pod is not None else []
        else:
            loaded, found = _load_object(raw)
            objects += [loaded] if loaded is not None else []
        errors.extend(_located(error, raw) for error in found)
    if errors:
        raise ManifestError(origin, errors)
    return Manifest(tuple(pods), tuple(objects))


def _load_pod(
    raw: RawObject, origin: str, node_name: str, source: str, is_known: IsKnown
) -> tuple[Pod | None, list[FieldError]]:
    document, errors = check_pod(raw.value)
    errors += check_support(document)
    # Each stage needs the one before it: report its errors without follow-up errors.
    if errors:
        return None, errors
    # Checked before the node's name is appended: an empty name would become "-node".
    if not document.get("metadata", {}).get("name"):
        errors.append(FieldError("metadata.name", "Required value"))
    if "spec" not in document:
        errors.append(FieldError("spec", "Required value"))
    if errors:
        return None, errors
    try:
        pod = default_pod(msgspec.convert(document, Pod))
    except msgspec.ValidationError as exc:  # the model is stricter than the schema walk
        return None, [FieldError("", str(exc))]
    uid = manifest_uid(document, pod, node_name, source, origin, is_known)
    pod = make_static(pod, uid, node_name, source, origin)
    errors = validate_pod(pod)
    return (None if errors else pod), errors


def _load_object(raw: RawObject) -> tuple[ApiObject | None, list[FieldError]]:
    document, errors = check_object(raw.value, raw.kind)
    if errors:
        return None, errors
    try:
        loaded: ApiObject = msgspec.convert(document, KINDS[raw.kind])
    except msgspec.ValidationError as exc:
        return None, [FieldError("", str(exc))]
    errors = validate_object(loaded)
    return (None if errors else default_object(loaded)), errors


def _located(error: FieldError, raw: RawObject) -> FieldError:
    field = ".".join(part for part in (raw.path, error.field) if part)
    return changed(error, field=field, document=raw.document)
