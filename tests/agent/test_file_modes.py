"""What the agent leaves on disk is for those who need it, whatever the umask is."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    Secret,
    SecretVolumeSource,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from tests.agent.node import Node, make_pod, ready


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


async def test_only_what_containers_write_to_is_others_to_write_to(
    tmp_path: Path, umask: int, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    pod = make_pod("web")
    assert pod.spec is not None
    pod.spec.volumes = [
        Volume(name="data", emptyDir=EmptyDirVolumeSource()),
        Volume(name="config", configMap=ConfigMapVolumeSource(name="config")),
        Volume(name="keys", secret=SecretVolumeSource(secretName="keys")),
    ]
    for container in pod.spec.containers:
        container.volumeMounts = [
            VolumeMount(mountPath=f"/{volume.name}", name=volume.name)
            for volume in pod.spec.volumes
        ]
    objects: list[ConfigMap | Secret] = [
        ConfigMap(metadata=ObjectMeta(name="config", namespace="default"), data={"key": "1"}),
        Secret(metadata=ObjectMeta(name="keys", namespace="default"), stringData={"key": "1"}),
    ]
    async with node.running(pod, objects=objects) as agent:
        await agent.pods.wait_value(lambda pods: pod_uid(pod) in pods and ready(node.status(pod)))
        found = dict(_modes(tmp_path))
    open_to_others = {name for name, mode in found.items() if mode & 0o022}
    assert open_to_others == {
        "root/pods/<uid>/volumes/kubernetes.io~empty-dir/data",
        "root/pods/<uid>/containers/web/<message>",
        *(["pods/default_web-node_<uid>/web/0.log"] if umask == 0 else []),  # the runtime's
    }
    private = {name for name, mode in found.items() if mode & 0o077 == 0}
    assert private >= {
        "root/kubelet-trio.lock",
        "root/checkpoints",
        "root/pods/<uid>/kubelet-trio.json",
    }
    # What is for containers to read, others could too, but that the way there is closed to them.
    assert found["root"] & 0o007 == 0


def _modes(base: Path) -> Iterator[tuple[str, int]]:
    """Yield what is below a directory, links left out; what has another name each time as <it>."""
    for parent, directories, names in os.walk(base):
        for name in (*directories, *names):
            path = Path(parent) / name
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                continue
            shown = re.sub(r"[0-9a-f]{32}", "<uid>", str(path.relative_to(base)))
            shown = re.sub(r"containers/web/[0-9a-f]{8}$", "containers/web/<message>", shown)
            yield shown, stat.S_IMODE(found.st_mode)
