"""Pods that outlive the program: apply a set, look at it from the next run, delete it.

    python examples/embedding/keeper.py DIR up      # start what is not running yet
    python examples/embedding/keeper.py DIR watch   # tell what happens, for a while
    python examples/embedding/keeper.py DIR down    # end all of it

Between the commands no kubelet runs, and the pods do. Each `up` finds those of the one
before by DIR, restarts nothing, and replaces only what was edited below.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from kubelet_trio import KubeletConfig, PodNotFoundError, open_kubelet

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: clock}
spec:
  terminationGracePeriodSeconds: 3
  containers:
    - name: main
      image: none
      command: [sh, -c, "trap 'exit 0' TERM; while :; do date +%T; sleep 1 & wait $!; done"]
---
apiVersion: v1
kind: Pod
metadata: {name: counter}
spec:
  terminationGracePeriodSeconds: 3
  containers:
    - name: main
      image: none
      command: [sh, -c]
      args: ["trap 'exit 0' TERM; i=0; while :; do echo $((i+=1)); sleep 1 & wait $!; done"]
"""


async def main(directory: Path, command: str) -> None:
    config = KubeletConfig(root_dir=directory, allow_root=True)
    async with open_kubelet(config) as kubelet:
        if command == "up":
            for running in await kubelet.apply(PODS):
                await running.wait_ready()
                started = (running.status.value.containerStatuses or [])[0].state
                assert started is not None
                assert started.running is not None
                print(f"{running.name} runs since {started.running.startedAt}", flush=True)
        elif command == "watch":
            with trio.move_on_after(2):
                async for change in kubelet.watch():
                    status = change.pod.status
                    assert change.pod.metadata is not None
                    print(
                        change.type, change.pod.metadata.name, status and status.phase, flush=True
                    )
        else:
            for name in ("clock", "counter"):
                try:
                    await kubelet.delete(name)
                    print(f"{name} is gone", flush=True)
                except PodNotFoundError as exc:
                    print(exc, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in ("up", "watch", "down"):
        sys.exit("usage: keeper.py DIR up|watch|down")
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
