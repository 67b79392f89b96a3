"""The API server's validation of pods and objects, as far as manifests can fail it.

Source: pkg/apis/core/validation of Kubernetes 1.36. Each check appends to a `FieldErrors`,
so a manifest's author sees all errors at once.
"""

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.container import validate_ephemeral
from kubelet_trio.sources.validation.object import default_object, validate_object
from kubelet_trio.sources.validation.pod import validate_pod

__all__ = ["default_object", "syntax", "validate_ephemeral", "validate_object", "validate_pod"]
