"""Targets: the agent's own files, as a crash of the machine or a hand may leave them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from lightkube.models.core_v1 import ConfigMap, Container, Pod, PodSpec
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.credentials.pull_files import PullFiles
from kubelet_trio.credentials.pulled import file_name
from kubelet_trio.cri import v1
from kubelet_trio.cri.process.process_state import read_process_state
from kubelet_trio.cri.process.store import load_containers, load_sandboxes
from kubelet_trio.embed.source import read_kept
from kubelet_trio.managers import cpus, memory
from kubelet_trio.model import StateVersionError
from kubelet_trio.objects import ObjectKey
from kubelet_trio.offline.files import Folder, encode, object_item
from kubelet_trio.pods.records.record import load_records
from kubelet_trio.pods.records.userns import UserNamespaceError, read_mapping
from kubelet_trio.shutdown.manager import read_state
from kubelet_trio.sources.adoption import load_adopted
from tests.fuzz.mutate import documents, edited, messages
from tests.fuzz.target import Target
from tests.managers.cpus.machines import TWO_SOCKETS
from tests.managers.memory import shapes

_PODS = Pod(
    metadata=ObjectMeta(name="web", namespace="default", uid="u"),
    spec=PodSpec(containers=[Container(name="main", image="busybox")]),
)
_RECORD = {
    "uid": "u",
    "pod": msgspec.to_builtins(_PODS),
    "start_time": 1.0,
    "termination": {"uid": "u", "reason": "deleted", "grace_period": 1},
    "admitted": True,
}
_IDS = {"hostId": 65536, "containerId": 0, "length": 65536}
_PULLED = {
    "kind": "ImagePulledRecord",
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "lastUpdatedTime": "2024-01-02T03:04:05Z",
    "imageRef": "sha256:1",
    "credentialMapping": {"busybox": {"nodePodsAccessible": True}},
}
_KEPT = ObjectKey("ConfigMap", "default", "c")
_OFFLINE = encode(
    object_item(_KEPT),
    ConfigMap(metadata=ObjectMeta(name="c", namespace="default"), data={"k": "v"}),
)[0]


def in_directory(
    read: Callable[[Path], object], name: str, **others: bytes
) -> Callable[[bytes], object]:
    """Put the bytes where the agent looks for them, and read twice: as after another start."""

    def run(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(data)
            path.chmod(0o600)
            for other, content in others.items():
                path.with_name(other.replace("_", ".")).write_bytes(content)
            return read(root), read(root)

    return run


def _offline(root: Path) -> object:
    return Folder(root / "offline").load()


def _sealed(data: bytes) -> bytes:
    """Return a body behind a head that says the truth of it: what a hand would have changed."""
    head = {"format": 1, "kind": "ConfigMap", "name": "default/c"}
    return json.dumps(head | {"sha256": hashlib.sha256(data).hexdigest()}).encode() + b"\n" + data


def _process_state(root: Path) -> object:
    directory = root / "container"
    return read_process_state(directory, "0" * 64, "boot")


def _sandboxes(root: Path) -> object:
    return [(facts, list(load_containers(path))) for path, facts, config in load_sandboxes(root)]


_CPUS = {
    "policyName": "static",
    "defaultCpuSet": "0-1,3-7,9-11",
    "entries": {"u": {"main": "2,8"}},
}  # without a checksum, as an old kubelet wrote it: what is changed must not be noticed by it


def _cpu_state(data: bytes) -> object:
    found = cpus.decode_checkpoint(data)
    assert cpus.decode_checkpoint(cpus.encode_checkpoint(found)) == found
    return cpus.restore(data, cpus.CpuManager(TWO_SOCKETS, frozenset({0})))


_SANDBOX = {"id": "s", "created_at": 1, "boot": "b"}
_CONTAINER = {"id": "c", "created_at": 1, "uid": 0, "gid": 0, "groups": [1]}
_CONFIG = v1.PodSandboxConfig(
    metadata=v1.PodSandboxMetadata(name="n", namespace="d", uid="u", attempt=1),
    hostname="h",
    labels={"a": "b"},
    dns_config=v1.DnsConfig(servers=["10.0.0.1"]),
)


_MEMORY = shapes.manager(shapes.GI, shapes.GI)
_MEMORY_STATE = shapes.holding(_MEMORY, ([0, 1], 3 * shapes.GI // 2))


def _memory(data: bytes) -> object:
    state = memory.decode_checkpoint(data)
    assert memory.decode_checkpoint(memory.encode_checkpoint(state)) == state
    return memory.restore_state(_MEMORY, data, "memory_manager_state")


def _record(
    name: str,
    run: Callable[[bytes], object],
    examples: Sequence[object],
    *errors: type[Exception],
    seal: Callable[[bytes], bytes] | None = None,
) -> Target:
    written = [json.dumps(example).encode() for example in examples]
    strategy = documents(written)
    if seal is not None:
        sealed = strategy.map(seal)
        written = [seal(example) for example in written]
        strategy = sealed | edited(sealed)
    return Target(name, run, written, strategy, errors)


TARGETS = [
    _record(
        "record of a pod",
        in_directory(lambda root: load_records(root), "u/kubelet-trio.json"),
        [_RECORD, _RECORD | {"version": 1}],
        StateVersionError,
    ),
    _record(
        "pods that were adopted",
        in_directory(load_adopted, "adopted.json"),
        [{"version": 1, "pods": {"file:web-n": {"manifest": "m", "uid": "u"}}}],
        ValueError,
    ),
    _record(
        "user namespace of a pod",
        in_directory(lambda root: read_mapping(root / "u"), "u/userns"),
        [{"uidMappings": [_IDS], "gidMappings": [_IDS]}],
        UserNamespaceError,
    ),
    _record(
        "state of the CPU manager",
        _cpu_state,
        [
            _CPUS,
            json.loads(cpus.encode_checkpoint(cpus.CpuState((1 << 12) - 1))),
        ],
        cpus.CpuCheckpointError,
    ),
    _record(
        "record of a pull",
        in_directory(
            lambda root: PullFiles(root).load(), f"image_manager/pulled/{file_name('sha256:1')}"
        ),
        [_PULLED],
    ),
    _record(
        "what was known of an object",
        in_directory(_offline, f"offline/{object_item(_KEPT).file_name}"),
        [{"metadata": {"name": "c", "namespace": "default"}, "data": {"k": "v"}}],
        StateVersionError,
        seal=_sealed,
    ),
    Target(
        "file of what was known",
        in_directory(_offline, f"offline/{object_item(_KEPT).file_name}"),
        [_OFFLINE],
        edited(documents([_OFFLINE.partition(b"\n")[0]])),
        (StateVersionError,),
    ),
    _record(
        "state of a shutdown",
        in_directory(lambda root: read_state(root / "state"), "state"),
        [{"startTime": "2024-01-02T03:04:05Z", "endTime": None}],
    ),
    _record(
        "pods that an embedder keeps",
        in_directory(lambda root: read_kept(root / "kept.json"), "kept.json"),
        [[{"pod": _RECORD["pod"], "objects": [{"kind": "ConfigMap", "metadata": {}}]}]],
        ValueError,
    ),
    _record(
        "shim of a container",
        in_directory(_process_state, "container/shim.json"),
        [{"shim": 2**22 + 1, "shim_start": 1, "boot": "boot", "pid": 0, "started_at": 1}],
    ),
    _record(
        "end of a container",
        in_directory(_process_state, "container/exit.json"),
        [{"code": 1, "finished_at": 2, "reason": "r", "message": "m"}],
    ),
    _record(
        "sandbox of the process runtime",
        in_directory(_sandboxes, "s/sandbox.json", sandbox_pb=bytes(_CONFIG)),
        [_SANDBOX],
        StateVersionError,
    ),
    Target(
        "config of a sandbox of the process runtime",
        in_directory(_sandboxes, "s/sandbox.pb", sandbox_json=json.dumps(_SANDBOX).encode()),
        [bytes(_CONFIG)],
        messages([bytes(_CONFIG)]),
    ),
    _record(
        "container of the process runtime",
        in_directory(
            lambda root: list(load_containers(root)),
            "c/container.json",
            container_pb=bytes(v1.ContainerConfig()),
        ),
        [_CONTAINER],
        StateVersionError,
    ),
    _record(
        "checkpoint of the memory manager",
        _memory,
        # Without a checksum, which either agent accepts: edits would only ever break it.
        [json.loads(memory.encode_checkpoint(_MEMORY_STATE)) | {"checksum": 0}],
        memory.CheckpointError,
        memory.MemoryStateError,
    ),
]
