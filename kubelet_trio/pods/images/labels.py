"""The labels of the metrics of image requests. Pure."""

from __future__ import annotations

# Upstream's imageSizeBuckets: the least size in MiB and its label, largest first.
_SIZES = (
    (100 * 1024, "GT100GB"),
    (60 * 1024, "60GB-100GB"),
    (40 * 1024, "40GB-60GB"),
    (30 * 1024, "30GB-40GB"),
    (20 * 1024, "20GB-30GB"),
    (10 * 1024, "10GB-20GB"),
    (5 * 1024, "5GB-10GB"),
    (1024, "1GB-5GB"),
    (500, "500MB-1GB"),
    (100, "100MB-500MB"),
    (10, "10MB-100MB"),
    (0, "0-10MB"),
)
_BOOLEANS = {None: "unknown", False: "false", True: "true"}


def size_label(size: int) -> str:
    """Return the label of an image's size in bytes; 0: unknown."""
    return next((label for least, label in _SIZES if size > least * 1024 * 1024), "N/A")


def request_labels(
    policy: str, *, is_present: bool | None, must_pull: bool | None
) -> tuple[str, str, str]:
    """Return the labels of a request for an image; None: it ended before that was asked.

    Source: recordEnsureImageRequest in pkg/kubelet/images/metrics.go.
    """
    # imagePullPrecheck does not ask whether an image is present that is pulled always.
    known = None if policy == "Always" else is_present
    return _BOOLEANS[known], policy.lower(), _BOOLEANS[must_pull]
