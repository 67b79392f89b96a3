"""What pods are told of failed pulls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kubelet_trio.cri import ImagePullError, RuntimeCallError
from kubelet_trio.pods.types import WaitingReason

# evalCRIPullErr in images/image_manager.go.
_BECAUSE = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}


def pull_failure(image: str, error: RuntimeCallError) -> WaitingReason:
    """Return the waiting state of a container whose image could not be pulled."""
    reason = error.reason if isinstance(error, ImagePullError) else "ErrImagePull"
    because = _BECAUSE.get(reason)
    if because is None:
        return WaitingReason(reason, error.go_text)
    detail = error.message.removeprefix(reason)  # CRI: such a message begins with the reason
    return WaitingReason(reason, f"image pull failed for {image} because {because}{detail}")


def joined(errors: Sequence[RuntimeCallError]) -> RuntimeCallError:
    """Return the error of a pull that failed with each of its logins: what each one met.

    Texts as of NewAggregate in k8s.io/apimachinery/pkg/util/errors.
    """
    texts = dict.fromkeys(error.go_text for error in errors)
    if len(texts) == 1:
        return errors[-1]
    return ImagePullError("PullImage", f"[{', '.join(texts)}]")
