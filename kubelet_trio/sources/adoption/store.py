"""The UIDs of adopted static pods: `<root-dir>/adopted.json`, so that a restart keeps them.

    {"version": 1, "pods": {"file:default/web-node": {"manifest": "<ours>", "uid": "<theirs>"}}}

An entry holds while the manifest is the one that was adopted: a changed one has another UID of
ours, and gives a new pod. The same manifest again gives the adopted UID again, as it would under
the kubelet that the UID comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from lightkube.models.core_v1 import Pod
from msgspec.structs import replace

from kubelet_trio.model import (
    CONFIG_HASH,
    CONFIG_SOURCE,
    JSON_ERRORS,
    PodUid,
    StateForm,
    StateVersionError,
    metadata,
    pod_annotations,
    pod_key,
    pod_uid,
    sync_directory,
    write_aside,
)

FILE = "adopted.json"


class Adoption(msgspec.Struct, frozen=True):
    """One adopted pod."""

    manifest: PodUid  # the UID that this agent derives from its manifest
    uid: PodUid  # the UID that it has


class _Content(msgspec.Struct, frozen=True):
    pods: dict[str, Adoption]


ADOPTED = StateForm(
    "the UIDs of adopted static pods",
    _Content,
    version=1,
    without="the static pods that were adopted are replaced",
)


def load_adopted(root_dir: Path) -> dict[str, Adoption]:
    """Read the adopted pods. Blocks.

    Raises OSError and ValueError, naming the file: without it, running pods would be replaced.
    """
    path = root_dir / FILE
    try:
        return dict(ADOPTED.decode(path.read_bytes(), path).pods)
    except FileNotFoundError:
        return {}
    except StateVersionError:
        raise
    except JSON_ERRORS as exc:
        raise ValueError(
            f"{path} does not parse: {exc}. Restore it, or move it away: {ADOPTED.without}"
        ) from exc


def write_adopted(root_dir: Path, adopted: Mapping[str, Adoption]) -> None:
    """Replace the file. Blocks. Raises OSError."""
    content = ADOPTED.encode(_Content(dict(adopted)))
    # Synced: pods keep their UIDs over a reboot of the machine, as under the other kubelet.
    write_aside(root_dir / FILE, content, sync=True)
    sync_directory(root_dir)


def adoption_key(pod: Pod) -> str:
    """Return the key of a static pod: its source and name."""
    return f"{pod_annotations(pod).get(CONFIG_SOURCE, '')}:{pod_key(pod)}"


def as_adopted(pod: Pod, adopted: Mapping[str, Adoption]) -> Pod:
    """Return a pod of a manifest with the UID that it was adopted under, if it was."""
    entry = adopted.get(adoption_key(pod))
    return with_uid(pod, entry.uid) if entry and entry.manifest == pod_uid(pod) else pod


def as_derived(pod: Pod, adopted: Mapping[str, Adoption]) -> Pod:
    """Return a pod with the UID that this agent derives from its manifest, if it was adopted."""
    entry = adopted.get(adoption_key(pod))
    return with_uid(pod, entry.manifest) if entry and entry.uid == pod_uid(pod) else pod


def with_uid(pod: Pod, uid: PodUid) -> Pod:
    """Return a static pod with another UID."""
    annotations = {**pod_annotations(pod), CONFIG_HASH: uid}
    return replace(pod, metadata=replace(metadata(pod), uid=uid, annotations=annotations))
