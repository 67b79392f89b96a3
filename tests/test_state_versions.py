"""Every file of state in a form of this agent's own: older ones are read, newer ones refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import Container, Node, Pod, PodSpec
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.cri.process import store
from kubelet_trio.embed.source import read_kept
from kubelet_trio.managers.claims import load_local_claims
from kubelet_trio.model import StateVersionError
from kubelet_trio.offline.files import NODE, Folder, encode
from kubelet_trio.pods import load_records
from kubelet_trio.sources import load_adopted

POD = msgspec.to_builtins(
    Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u"),
        spec=PodSpec(containers=[Container(name="main", image="busybox")]),
    )
)
RECORD = {"uid": "u", "pod": POD, "start_time": 1.0}
ADOPTED = {"pods": {"file:default/web": {"manifest": "m", "uid": "u"}}}
CLAIMS = {"claims": [{"metadata": {"name": "gpu", "namespace": "default", "uid": "u"}}]}
SANDBOX = {"id": "s", "created_at": 1, "boot": "b"}
CONTAINER = {"id": "c", "created_at": 1, "uid": 0, "gid": 0}


def versioned(value: dict[str, Any]) -> Callable[[int | None], bytes]:
    def content(version: int | None) -> bytes:
        head = {} if version is None else {"version": version}
        return json.dumps({**head, **value}).encode()

    return content


def kept(version: int | None) -> bytes:
    """Return the pods that a program keeps: a plain list in version 1."""
    pods = [{"pod": POD}]
    return json.dumps(pods if version is None else {"version": version, "pods": pods}).encode()


def offline(version: int | None) -> bytes:
    content, _ = encode(NODE, Node(metadata=ObjectMeta(name="n")))
    return content.replace(b'"format":1', b'"format":%d' % (version or 1))


def read_offline(root: Path) -> object:
    folder = Folder(root / "offline")
    folder.check()
    return folder.load()


def read_sandboxes(root: Path) -> object:
    store.check_versions(root / "process-runtime")
    return list(store.load_sandboxes(root / "process-runtime"))


def read_containers(root: Path) -> object:
    store.check_versions(root / "process-runtime")
    return list(store.load_containers(root / "process-runtime" / "s"))


FILES = {
    "record": ("pods/u/kubelet-trio.json", versioned(RECORD), lambda r: load_records(r / "pods")),
    "adopted": ("adopted.json", versioned(ADOPTED), load_adopted),
    "claims": ("resource_claims.json", versioned(CLAIMS), load_local_claims),
    "kept": ("kept.json", kept, lambda root: read_kept(root / "kept.json")),
    "offline": (f"offline/{NODE.file_name}", offline, read_offline),
    "sandbox": ("process-runtime/s/sandbox.json", versioned(SANDBOX), read_sandboxes),
    "container": ("process-runtime/s/c/container.json", versioned(CONTAINER), read_containers),
}
TABLE = pytest.mark.parametrize(("name", "content", "read"), FILES.values(), ids=FILES)


def put(root: Path, name: str, content: bytes) -> Path:
    path = root / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    path.with_suffix(".pb").write_bytes(b"")
    return path


@TABLE
@pytest.mark.parametrize("version", [None, 1])
def test_a_file_of_an_older_agent_is_read(
    tmp_path: Path,
    name: str,
    content: Callable[[int | None], bytes],
    read: Callable[[Path], Any],
    version: int | None,
) -> None:
    path = put(tmp_path, name, content(version))
    assert len(read(tmp_path)) == 1
    assert path.exists()


@TABLE
def test_a_file_of_a_newer_agent_is_refused_by_name_and_kept(
    tmp_path: Path,
    name: str,
    content: Callable[[int | None], bytes],
    read: Callable[[Path], Any],
) -> None:
    path = put(tmp_path, name, content(99))
    before = path.read_bytes()
    with pytest.raises(StateVersionError) as refused:
        read(tmp_path)
    text = str(refused.value)
    assert text.startswith(f"{path}: version 99 of ")
    assert "run the newer one, or move the file away" in text
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == sorted({path.name, path.with_suffix(".pb").name})
