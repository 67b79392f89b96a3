"""Batch work: many pods that end by themselves, so many at a time, their output collected.

python examples/embedding/jobs.py 6 3     # six jobs, three at a time
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import trio

from kubelet_trio import Kubelet, KubeletConfig, open_kubelet


def job(number: int) -> dict[str, object]:
    """Return a pod that works for a moment; every third one fails at its first attempt."""
    script = f"""
        echo "job {number}: working"
        sleep 0.2
        if [ $(( {number} % 3 )) = 0 ] && ! [ -e second ]; then touch second; exit 1; fi
        echo "job {number}: the square is $(( {number} * {number} ))"
    """
    return {
        "metadata": {"name": f"job-{number}"},
        "spec": {
            "restartPolicy": "OnFailure",
            "activeDeadlineSeconds": 60,
            "containers": [
                {
                    "name": "work",
                    "image": "none",
                    "command": ["sh", "-c", script],
                    "workingDir": "/state",
                    "volumeMounts": [{"name": "state", "mountPath": "/state"}],
                }
            ],
            "volumes": [{"name": "state", "emptyDir": {}}],
        },
    }


async def run_job(kubelet: Kubelet, number: int) -> str:
    """Run one job to its end and return the last line it wrote."""
    async with kubelet.run_pod(job(number)) as running:
        status = await running.wait_ended()
        lines = [line async for line in running.logs()]
        restarts = (status.containerStatuses or [])[0].restartCount
        return f"{status.phase} after {restarts} restarts: {lines[-1]}"


async def main(count: int, at_a_time: int) -> None:
    slots = trio.CapacityLimiter(at_a_time)

    async def one(kubelet: Kubelet, number: int) -> None:
        async with slots:
            print(await run_job(kubelet, number), flush=True)

    with tempfile.TemporaryDirectory() as directory:
        config = KubeletConfig(root_dir=Path(directory), allow_root=True, crash_backoff_base=0.5)
        async with open_kubelet(config) as kubelet, trio.open_nursery() as nursery:
            for number in range(1, count + 1):
                nursery.start_soon(one, kubelet, number)


if __name__ == "__main__":
    trio.run(main, int((sys.argv[1:2] or ["6"])[0]), int((sys.argv[2:3] or ["3"])[0]))
