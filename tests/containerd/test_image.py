"""The image with the agent: a pod whose container is an agent, which runs a pod of its own."""

from __future__ import annotations

import json
import re
import subprocess

from pack import image, tree
from tests.containerd import built
from tests.containerd.conftest import MakeAgent
from tests.harness import Containerd
from tests.harness.agent import CommandError
from tests.harness.manifests import forever, pod
from tests.harness.pods import eventually

INNER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "inner"},
    "spec": {"containers": [{"name": "main", "image": "host", "command": ["sh", "-c", forever()]}]},
}
CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": "/manifests",
    "failSwapOn": False,
    "failCgroupV1": False,
    "makeIPTablesUtilChains": False,
}
_SCRIPT = """
mkdir /manifests
echo "$CONFIG" >/kubelet.yaml
echo "$INNER" >/manifests/inner.yaml
exec kubelet-trio run --config /kubelet.yaml --container-runtime-endpoint=process \
    --process-allow-root --keep-kernel-settings --hostname-override inside
"""


def test_a_pod_of_the_image_is_an_agent_with_a_pod(
    containerd: Containerd, make_agent: MakeAgent
) -> None:
    built.need_debian()
    ctr = ["ctr", "--address", str(containerd.socket), "-n", "k8s.io", "images"]
    subprocess.run([*ctr, "import", str(built.oci_archive())], check=True, capture_output=True)
    name = f"{image.NAME}:{tree.version()}"
    try:
        agent = make_agent()
        agent.start()
        variables = [
            {"name": "CONFIG", "value": json.dumps(CONFIG)},
            {"name": "INNER", "value": json.dumps(INNER)},
        ]
        main = {"name": "kubelet", "image": name, "command": ["sh", "-c", _SCRIPT]}
        agent.put(pod("outer", {**main, "imagePullPolicy": "Never", "env": variables}))
        agent.wait_ready("outer")

        def inner() -> str:
            try:
                return agent.cli("exec", "outer", "--", "kubelet-trio", "pods")
            except CommandError:
                return ""  # the inner agent does not answer yet

        eventually(lambda: re.search(r"inner-inside +1/1", inner()), within=90, what="inner pod")
    finally:
        subprocess.run([*ctr, "rm", name], check=False, capture_output=True)
