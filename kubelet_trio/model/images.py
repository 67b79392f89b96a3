"""Names of images."""

from __future__ import annotations


def full_name(reference: str) -> str:
    """Return an image reference as runtimes list it: with registry, and tag or digest.

    `busybox` is `docker.io/library/busybox:latest`. An id is returned unchanged.
    """
    if reference.startswith("sha256:"):
        return reference
    name, at, digest = reference.partition("@")
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    if at:
        return f"{_untagged(name)}@{digest}"
    return name if _untagged(name) != name else f"{name}:latest"


def _untagged(name: str) -> str:
    path, slash, last = name.rpartition("/")
    return f"{path}{slash}{last.partition(':')[0]}"
