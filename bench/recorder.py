"""What the flight recorder costs: `python -m bench.recorder`.

100 events a second, as containers that crash and are restarted make them: the status of a container
that has ended, the plan, the pod's status, CreateContainer, StartContainer, and the same again once
it runs. They pass the taps, or what is below the taps, in turns within one process; the difference
of the process' CPU time, its threads included, is what the recorder costs.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import click
import trio
from lightkube.models.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.cri import Runtime, v1
from kubelet_trio.model import ContainerId, PodUid, Purpose, SandboxId, SystemClock, thread_offload
from kubelet_trio.pods import PodPlan
from kubelet_trio.recorder import RecordedInputs, RecordedRuntime, Recorder, Recording
from kubelet_trio.testing import FakeRuntime

LIMIT = 1.0  # % of one core
EVENTS = 100  # a second
_PODS = 30
_LIFE = 10  # entries of one restart
_UIDS = [f"{number:08x}-c2f5-4c0e-9b8e-7f4d0c6a5e21" for number in range(_PODS)]


@click.command()
@click.option("--seconds", default=20.0, help="Of each turn.")
@click.option("--turns", default=3, help="With the recorder and without, each.")
def main(seconds: float, turns: int) -> None:
    """Measure, and say whether the limit is kept."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn, is_on in itertools.product(range(turns), (False, True)):
        share = trio.run(_measure, is_on, seconds)
        found[is_on].append(share)
        print(f"turn {turn + 1}, {'with' if is_on else 'without'}: {share:.2f} % of a core")
    costs = [on - off for off, on in zip(found[False], found[True], strict=True)]
    cost = statistics.median(costs)
    print(f"the recorder costs {cost:.2f} % of a core at {EVENTS} events/s (limit: {LIMIT:g} %)")
    if cost > LIMIT:
        raise SystemExit(1)


class _Below(FakeRuntime):
    """What is below the taps: answers at once, with messages that are new each time."""

    def __init__(self) -> None:
        super().__init__()
        self.status_message: v1.ContainerStatus | None = None

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        await trio.lowlevel.checkpoint()
        assert self.status_message is not None
        return self.status_message, 4711

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        await trio.lowlevel.checkpoint()
        return ContainerId(config.labels["id"])

    async def start_container(self, container_id: ContainerId) -> None:
        await trio.lowlevel.checkpoint()


async def _measure(is_on: bool, seconds: float) -> float:
    """Return the CPU time of a turn, in % of one core."""
    with tempfile.TemporaryDirectory() as name:
        recorder = Recorder(
            Path(name),
            Recording(32 << 20, dict),
            SystemClock(),
            thread_offload.of(Purpose.RECORDER),
        )
        below = _Below()
        runtime: Runtime = RecordedRuntime(below, recorder) if is_on else below
        inputs = RecordedInputs(recorder) if is_on else None
        async with trio.open_nursery() as nursery:
            if is_on:
                recorder.begin()
                await nursery.start(recorder.run)
            await _restarts(below, runtime, inputs, 1.0)  # imports, and first segment
            began = time.process_time()
            await _restarts(below, runtime, inputs, seconds)
            used = time.process_time() - began
            nursery.cancel_scope.cancel()
        if is_on:
            assert recorder.lost == 0
            assert recorder.entries >= EVENTS * seconds * 0.9, recorder.entries
    return 100 * used / seconds


async def _restarts(
    below: _Below, runtime: Runtime, inputs: RecordedInputs | None, seconds: float
) -> None:
    """Let containers restart, at an even pace."""
    began = trio.current_time()
    for number in range(int(seconds * EVENTS / _LIFE)):
        await trio.sleep_until(began + number * _LIFE / EVENTS)
        await _restart(number, below, runtime, inputs)


async def _restart(
    number: int, below: _Below, runtime: Runtime, inputs: RecordedInputs | None
) -> None:
    uid, attempt = PodUid(_UIDS[number % _PODS]), number // _PODS
    for state in (v1.ContainerState.CONTAINER_EXITED, v1.ContainerState.CONTAINER_RUNNING):
        container_id = f"{number:064x}"
        if state is v1.ContainerState.CONTAINER_RUNNING:
            config = _config(uid, container_id, attempt)
            await runtime.create_container(SandboxId("s"), config, v1.PodSandboxConfig())
            await runtime.start_container(ContainerId(container_id))
        below.status_message = _status(uid, container_id, state, attempt)
        await runtime.container_status(ContainerId(container_id))
        plan = PodPlan(sandbox_id=SandboxId("s"), sandbox_attempt=attempt, retry_at=float(number))
        pod = _pod(uid, container_id, attempt, int(state))
        if inputs is not None:
            inputs.plan(uid, plan)
            inputs.statuses({uid: pod})
    if inputs is not None:
        inputs.finding(uid, "main", ContainerId("c"), "liveness", "success", str(number))


def _labels(uid: str, container_id: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": "web-node",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": uid,
        "io.kubernetes.container.name": "main",
        "id": container_id,
    }


def _config(uid: str, container_id: str, attempt: int) -> v1.ContainerConfig:
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main", attempt=attempt),
        image=v1.ImageSpec(image="docker.io/library/busybox:latest"),
        command=["serve", "--port", "8080"],
        envs=[v1.KeyValue(key=f"VARIABLE_{n}", value=b"a value of it") for n in range(8)],
        mounts=[v1.Mount(container_path=f"/{n}", host_path=f"/var/lib/{n}") for n in range(3)],
        labels=_labels(uid, container_id),
        annotations={"io.kubernetes.container.hash": "abcdef", "a": "b"},
        log_path=f"main/{attempt}.log",
        linux=v1.LinuxContainerConfig(resources=v1.LinuxContainerResources(cpu_shares=2)),
    )


def _status(
    uid: str, container_id: str, state: v1.ContainerState, attempt: int
) -> v1.ContainerStatus:
    return v1.ContainerStatus(
        id=container_id,
        metadata=v1.ContainerMetadata(name="main", attempt=attempt),
        state=state,
        created_at=attempt,
        image=v1.ImageSpec(image="docker.io/library/busybox:latest"),
        image_ref="sha256:" + "b" * 64,
        labels=_labels(uid, container_id),
        annotations={"io.kubernetes.container.hash": "abcdef", "a": "b"},
        mounts=[v1.Mount(container_path=f"/{n}", host_path=f"/var/lib/{n}") for n in range(3)],
        log_path=f"/var/log/pods/default_web_{uid}/main/{attempt}.log",
    )


def _pod(uid: str, container_id: str, attempt: int, state: int) -> Pod:
    status = ContainerStatus(
        image="busybox",
        imageID="sha256:" + "b" * 64,
        name="main",
        ready=bool(state % 2),
        restartCount=attempt,
        containerID=f"containerd://{container_id}",
        state=ContainerState(running=ContainerStateRunning(startedAt=None)),
    )
    return Pod(
        metadata=ObjectMeta(name="web-node", namespace="default", uid=uid),
        spec=PodSpec(containers=[Container(name="main")]),
        status=PodStatus(phase="Running", containerStatuses=[status], podIP="10.0.0.7"),
    )


if __name__ == "__main__":
    main()
