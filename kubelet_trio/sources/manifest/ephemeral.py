"""Loads one ephemeral container that is to be added to a pod: as a manifest is loaded."""

from __future__ import annotations

import msgspec
from lightkube.models.core_v1 import EphemeralContainer, Pod

from kubelet_trio.model import JSON_ERRORS, spec
from kubelet_trio.sources.errors import FieldError, ManifestError, first_errors, json_type
from kubelet_trio.sources.manifest.defaults import default_ephemeral
from kubelet_trio.sources.manifest.load import further
from kubelet_trio.sources.manifest.schema import check_ephemeral
from kubelet_trio.sources.manifest.support import check_ephemeral_support
from kubelet_trio.sources.validation import validate_ephemeral

_ORIGIN = "debug container"


def load_ephemeral(data: bytes, pod: Pod) -> EphemeralContainer:
    """Return an ephemeral container for a pod: checked, defaulted, validated as upstream.

    Args:
        data: its JSON.
        pod: the pod, with the ephemeral containers that it has.

    Raises:
        ManifestError: with all errors found. No other exception, whatever the bytes.
    """
    index = len(spec(pod).ephemeralContainers or ())
    path = f"spec.ephemeralContainers[{index}]"
    try:
        raw = msgspec.json.decode(data)
    except JSON_ERRORS as exc:
        raise ManifestError(_ORIGIN, [FieldError(path, f"not JSON: {exc}")]) from exc
    if not isinstance(raw, dict):
        wrong = FieldError(path, f"Invalid value: {json_type(raw)}: expected an object")
        raise ManifestError(_ORIGIN, [wrong])
    document, errors = check_ephemeral(raw, path)
    errors += check_ephemeral_support(document, index)
    try:
        container = default_ephemeral(msgspec.convert(document, EphemeralContainer))
    except msgspec.ValidationError as exc:  # the model is stricter than the schema walk
        raise ManifestError(_ORIGIN, errors or [FieldError(path, str(exc))]) from exc
    errors += further(errors, validate_ephemeral(spec(pod), container, path))
    if errors:
        raise ManifestError(_ORIGIN, first_errors(errors))
    return container
