"""An edge gateway: a service in a pod, for exactly as long as the program runs.

    python examples/embedding/gateway.py

The pod is a process of this machine (python3 from PATH), so nothing needs to be installed.
Ctrl-C, an exception or the end of the block take it down in order.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

from kubelet_trio import Kubelet, KubeletConfig, RunningPod, open_kubelet

PORT = 8182
SERVICE: dict[str, Any] = {
    "metadata": {"name": "service"},
    "spec": {
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": "http",
                "image": "none",  # the process runtime takes any: it means the host's files
                "command": ["python3", "-u", "-m", "http.server", str(PORT)],
                "workingDir": "/www",
                "volumeMounts": [{"name": "www", "mountPath": "/www"}],
            }
        ],
        "volumes": [{"name": "www", "emptyDir": {}}],
    },
}


async def check(service: RunningPod) -> str:
    """Ask the service's own machine about it, as a person would with `kubectl exec`."""
    result = await service.exec(["sh", "-c", "ls -d . && id -u"])
    if result.exit_code != 0:
        raise RuntimeError(f"the check failed: {result.stderr.decode()}")
    return result.stdout.decode().split()[-1]


async def run_gateway(kubelet: Kubelet) -> str:
    """The program itself: it is given a kubelet, a real one or a test's."""
    async with kubelet.run_pod(SERVICE) as service:
        await service.wait_ready()
        return await check(service)


async def main() -> None:
    # Processes run as whoever runs this. As root they have to be allowed to.
    with tempfile.TemporaryDirectory() as directory:
        config = KubeletConfig(root_dir=Path(directory), allow_root=True)
        async with open_kubelet(config) as kubelet:
            user = await run_gateway(kubelet)
            print(f"the service ran as user {user}, and is gone: {not kubelet.pods.value}")


if __name__ == "__main__":
    trio.run(main)
    sys.exit(0)
