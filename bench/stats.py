"""`python -m bench.stats`: how long the stats pages take with 100 pods, and what they hold.

The runtime is the fake one, the kernel's files are a recorded tree of cgroup version 2 on disk:
what is measured is our own work, reading them included. The limits are those that this project
set itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import trio

from kubelet_trio.cri import v1
from kubelet_trio.model import PodUid, SystemClock, thread_offload
from kubelet_trio.stats import ContainerSubject, PodSubject, StatsProvider, StatsSettings
from kubelet_trio.testing import FakeRuntime
from tests.stats import trees

LIMITS_MS = {"/stats/summary": 150.0, "/metrics/resource": 250.0, "/metrics/cadvisor": 250.0}
_ROOT = "/kubepods.slice"


@click.command()
@click.option("--pods", default=100, show_default=True)
@click.option("--containers", default=2, show_default=True, help="Of each pod.")
@click.option("--rounds", default=10, show_default=True)
def main(pods: int, containers: int, rounds: int) -> None:
    """Measure the pages and print a table."""
    with tempfile.TemporaryDirectory() as base:
        trio.run(_measure, Path(base), pods, containers, rounds)


async def _measure(base: Path, pods: int, containers: int, rounds: int) -> None:
    provider = await _provider(base, pods, containers)
    async with trio.open_nursery() as nursery:
        await nursery.start(provider.run)
        await _measure_pages(base, provider, pods, containers, rounds)
        nursery.cancel_scope.cancel()


async def _measure_pages(
    base: Path, provider: StatsProvider, pods: int, containers: int, rounds: int
) -> None:
    pages: dict[str, Callable[[], Awaitable[str | bytes]]] = {
        "/stats/summary": provider.summary,
        "/metrics/resource": provider.resource,
        "/metrics/cadvisor": provider.cadvisor,
    }
    click.echo(f"{pods} pods of {containers} containers, {rounds} rounds; ms of wall and CPU time")
    click.echo(f"{'page':<20}{'best':>8}{'median':>8}{'CPU':>8}{'limit':>8}{'kB':>8}")
    for name, ask in pages.items():
        taken, burnt, size = [], [], 0
        for _ in range(rounds):
            await trio.sleep(1.1)  # beyond what an answer holds
            began, cpu = time.perf_counter(), time.process_time()
            size = len(await ask())
            taken.append((time.perf_counter() - began) * 1000)
            burnt.append((time.process_time() - cpu) * 1000)
        taken.sort()
        burnt.sort()
        numbers = (taken[0], taken[len(taken) // 2], burnt[len(burnt) // 2], LIMITS_MS[name])
        click.echo(f"{name:<20}" + "".join(f"{n:8.1f}" for n in numbers) + f"{size / 1000:8.0f}")


async def _provider(base: Path, pods: int, containers: int) -> StatsProvider:
    runtime, subjects, cgroups = FakeRuntime(), [], []
    runtime.images.present.add("web")
    for number in range(pods):
        uid = PodUid(f"{number:08}-0000-0000-0000-000000000000")
        path = (
            f"{_ROOT}/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        )
        config = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=f"web-{number}", uid=uid, namespace="prod")
        )
        sandbox = await runtime.run_pod_sandbox(config)
        inside = []
        for index in range(containers):
            name = f"c{index}"
            made = v1.ContainerConfig(
                metadata=v1.ContainerMetadata(name=name), image=v1.ImageSpec(image="web")
            )
            container = await runtime.create_container(sandbox, made, config)
            await runtime.start_container(container)
            inside.append(ContainerSubject(container, name, "registry.k8s.io/web:1", 101, 1.0, 1.0))
            cgroups.append(f"{path}/cri-containerd-{container}.scope")
        cgroups += [path, f"{path}/cri-containerd-{sandbox}.scope"]
        subjects.append(PodSubject(uid, f"web-{number}", "prod", tuple(inside), sandbox, 1.0, 1.0))
    host = trees.write_v2(base, *cgroups)
    uids = {subject.uid.replace("-", "_"): subject.uid for subject in subjects}
    return StatsProvider(
        StatsSettings("node", str(base / "root"), (_ROOT,)),
        host,
        runtime,
        lambda: subjects,
        lambda name: uids.get(name.rpartition("-pod")[2].removesuffix(".slice")),
        SystemClock(),
        thread_offload,
    )


if __name__ == "__main__":
    main()
