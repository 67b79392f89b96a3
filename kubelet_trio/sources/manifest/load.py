"""Loads one manifest: from its bytes to validated pods and objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, Wanted, find_positions
from kubelet_trio.objects import KINDS, ApiObject
from kubelet_trio.sources.errors import FieldError, ManifestError, YamlError, first_errors
from kubelet_trio.sources.manifest.decode import RawObject, decode, text_of
from kubelet_trio.sources.manifest.defaults import default_pod
from kubelet_trio.sources.manifest.identity import IsKnown, manifest_uid, none_known
from kubelet_trio.sources.manifest.schema import check_object, check_pod
from kubelet_trio.sources.manifest.static import make_static
from kubelet_trio.sources.manifest.support import check_support
from kubelet_trio.sources.validation import default_object, validate_object, validate_pod

# What a pod must have to be validated at all.
_NOTHING: Mapping[str, Any] = {"metadata": {}, "spec": {"containers": []}}
# Messages of what a field's value is, and not of the field: the caret points at the value.
_OF_VALUES = ("Invalid value", "Unsupported value", "Duplicate value", "Not found")


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
    local_claims: bool = True,
) -> Manifest:
    """Return pods and objects: checked, defaulted, validated, pods with their static identity.

    All of the manifest is loaded, or an error raised. `config.seen` is not set.

    Args:
        data: YAML or JSON, with any number of documents.
        origin: the file's path or the URL; part of the pods' identity.
        source: `file` or `http`, for annotation `kubernetes.io/config.source`.
        is_known: whether a pod of this UID is desired already; see `manifest_uid`.
        local_claims: whether this node allocates the devices of claims: it has no API server.

    Raises:
        ManifestError: with all errors found. No other exception, whatever the bytes.
    """
    pods: list[Pod] = []
    objects: list[ApiObject] = []
    raws, errors = decode(data)
    for raw in raws:
        if raw.kind == "Pod":
            pod, found = _load_pod(raw, origin, node_name, source, is_known, local_claims)
            pods += [pod] if pod is not None else []
        else:
            loaded, found = _load_object(raw)
            objects += [loaded] if loaded is not None else []
        errors.extend(_in_file(error, raw) for error in found)
    if errors:
        raise ManifestError(origin, with_positions(data, errors))
    return Manifest(tuple(pods), tuple(objects))


def with_positions(data: bytes, errors: Sequence[FieldError]) -> tuple[FieldError, ...]:
    """Return the errors of a manifest with their lines, in the order of the text."""
    try:
        text = text_of(data)
    except YamlError:
        return first_errors(errors)
    # Hostile documents may have millions: the order of the stages decides which are told.
    told = first_errors(errors)
    wanted = [Wanted(e.document, e.field, e.message.startswith(_OF_VALUES)) for e in told]
    placed = [
        changed(error, line=at.line, column=at.column) if at is not None else error
        for error, at in zip(told, find_positions(text, wanted), strict=True)
    ]
    # What has no place of its own (the number of the rest) stays last.
    return tuple(sorted(placed, key=lambda e: (e.line == 0, e.line, e.column)))


def _load_pod(
    raw: RawObject,
    origin: str,
    node_name: str,
    source: str,
    is_known: IsKnown,
    local_claims: bool,
) -> tuple[Pod | None, list[FieldError]]:
    document, errors = check_pod(raw.value)
    errors += check_support(document, local_claims=local_claims)
    # Checked before the node's name is appended: an empty name would become "-node".
    if not document.get("metadata", {}).get("name"):
        errors.append(FieldError("metadata.name", "Required value"))
    if "spec" not in document:
        errors.append(FieldError("spec", "Required value"))
    try:
        pod = default_pod(msgspec.convert({**_NOTHING, **document}, Pod))
    except msgspec.ValidationError as exc:  # the model is stricter than the schema walk
        return None, errors or [FieldError("", str(exc))]
    # The UID of a document with errors is never used.
    uid = manifest_uid(document, pod, node_name, source, origin, is_known) if not errors else "0"
    pod = make_static(pod, PodUid(uid), node_name, source, origin)
    errors += further(errors, validate_pod(pod))
    return (None if errors else pod), errors


def _load_object(raw: RawObject) -> tuple[ApiObject | None, list[FieldError]]:
    document, errors = check_object(raw.value, raw.kind)
    try:
        loaded: ApiObject = msgspec.convert(document, KINDS[raw.kind])
    except msgspec.ValidationError as exc:
        return None, errors or [FieldError("", str(exc))]
    errors += further(errors, validate_object(loaded))
    return (None if errors else default_object(loaded)), errors


def further(structural: Sequence[FieldError], found: Sequence[FieldError]) -> list[FieldError]:
    """Return validation's errors without those that only follow from errors of the structure.

    A field that is misspelled or of another type is missing for validation, and what refers to it
    is not found.
    """
    # A request that the manifest does not have is its limit, which is told already.
    limits = {(e.field, e.message) for e in found}
    found = [
        e
        for e in found
        if ".requests[" not in e.field
        or (e.field.replace(".requests[", ".limits["), e.message) not in limits
    ]
    if not structural:
        return found
    wrong = {error.field for error in structural}
    # Names under which a value may be missing: those of every structural error, and its siblings.
    around = {_parent(field) for field in wrong}
    independent = []
    for error in found:
        above = {error.field, *_ancestors(error.field)}
        if above & wrong or error.field in around or error.message.startswith("Not found"):
            continue
        if error.message.startswith("Required value") and _parent(error.field) in around:
            continue
        independent.append(error)
    return independent


def _parent(field: str) -> str:
    return next(_ancestors(field), "")


def _ancestors(field: str) -> Iterator[str]:
    """Yield the paths above a field, the nearest first."""
    for at in range(len(field) - 1, 0, -1):
        if field[at] in ".[":
            yield field[:at]


def _in_file(error: FieldError, raw: RawObject) -> FieldError:
    field = ".".join(part for part in (raw.path, error.field) if part)
    return changed(error, field=field, document=raw.document)
