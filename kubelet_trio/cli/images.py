"""`kubelet-trio images`: the images of the runtime, and which pods use them."""

from __future__ import annotations

from collections.abc import Sequence

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.listing import Shown
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.volumes import size

COLUMNS = ("IMAGE", "TAG", "ID", "SIZE", "PINNED", "IN USE BY")
WIDE_COLUMNS = ("DIGEST",)
_NONE = "<none>"
_ID_LENGTH = 12  # as `crictl images` and `docker images` cut it


def images(agent: AgentClient, names: Sequence[str], shown: Shown) -> None:
    """Print the images, or those whose name or ID begins with one of `names`.

    Raises:
        ClientError: no agent, no runtime, or no such image.
    """
    found: list[Json] = items(agent.get("images"), "items")  # type: ignore[assignment]
    for name in names:
        if not any(_is_called(image, name) for image in found):
            raise ClientError(f'images "{name}" not found')
    users = _users(agent.get("pods", namespace=shown.namespace)["items"])
    chosen = [
        {**image, "kind": "Image", "metadata": {"name": _names(image)[0]}, "users": by}
        for image in found
        if not names or any(_is_called(image, name) for name in names)
        for by in [sorted({user for key, user in users if key in _keys(image)})]
        if by or not shown.namespace
    ]
    wide = shown.output.is_wide
    columns = COLUMNS + (WIDE_COLUMNS if wide else ())
    shown.print(
        shown.choose(chosen, lambda image: _names(image)),
        columns,
        lambda image: image_row(image, wide=wide),
    )


def image_row(image: Json, *, wide: bool = False) -> tuple[str, ...]:
    """Return an image's cells under `COLUMNS`, and `WIDE_COLUMNS` if `wide`."""
    name = _names(image)[0]
    repository, tag = _split(name)
    digests = [str(digest).partition("@")[2] for digest in image.get("digests") or ()]
    cells = (
        repository,
        tag,
        str(image.get("id", "")).removeprefix("sha256:")[:_ID_LENGTH],
        size(image.get("size")),
        "yes" if image.get("pinned") else "",
        ",".join(image.get("users") or ()) or _NONE,
    )
    return (*cells, ",".join(dict.fromkeys(digests)) or _NONE) if wide else cells


def _names(image: Json) -> list[str]:
    """Return the tags, or for an image without any its digest's name, or its ID."""
    tags = [str(tag) for tag in image.get("tags") or ()]
    return tags or [str(d) for d in image.get("digests") or ()] or [str(image.get("id", ""))]


def _split(name: str) -> tuple[str, str]:
    if "@" in name:
        return name.partition("@")[0], _NONE
    repository, colon, tag = name.rpartition(":")
    # A colon before a slash is that of a port.
    return (repository, tag) if colon and "/" not in tag else (name, _NONE)


def _keys(image: Json) -> set[str]:
    every = (image.get("id"), *(image.get("tags") or ()), *(image.get("digests") or ()))
    return {str(key) for key in every if key}


def _is_called(image: Json, name: str) -> bool:
    plain = str(image.get("id", "")).removeprefix("sha256:")
    # `busybox` and `busybox:1` are docker.io/library/busybox:1.
    named = (f"/{key}" for key in _keys(image))
    return plain.startswith(name.removeprefix("sha256:")) or any(
        key.endswith(f"/{name}") or f"/{name}:" in key for key in named
    )


def _users(pods: Sequence[Json]) -> list[tuple[str, str]]:
    """Return each image that a container has, by ID and by name, with its pod."""
    found: list[tuple[str, str]] = []
    for pod in pods:
        meta, status = part(pod, "metadata"), part(pod, "status")
        user = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
        for each in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
            for container in items(status, each):
                found += [(str(container.get(key)), user) for key in ("imageID", "image")]
    return found
