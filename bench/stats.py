"""`python -m bench.stats`: how long the stats pages take, by the number of pods.

The runtime is the fake one, whose statistics arrive as bytes, and the files of cgroups are a tree
of version 2 on disk, as long as Linux 6.12 writes them: what is measured is our own work, reading
them included. What the containers and pods use changes between two rounds. /proc is the kernel's: a
pause container has one process, a container two, a pod's own cgroup none. The processes sleep and
have six open files each, two of them sockets; they are in the network namespace of the bench. The
limits are those that this project set itself, for 100 pods. Garbage is collected as the daemon does
it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import trio

from kubelet_trio.cri import v1
from kubelet_trio.cri.remote.translate import parse_stats
from kubelet_trio.daemon.garbage import collect_when_quiet, spare_collector
from kubelet_trio.model import PodUid, SystemClock, thread_offload
from kubelet_trio.stats import ContainerSubject, Host, PodSubject, StatsProvider, StatsSettings
from kubelet_trio.testing import FakeRuntime
from tests.stats import trees

LIMITS_MS = {"/stats/summary": 90.0, "/metrics/resource": 30.0, "/metrics/cadvisor": 60.0}
# Of each container and pod, which run; a pause container does nothing.
_CHANGING = ("cpu.stat", "memory.current", "memory.stat", "io.stat", "cpu.pressure")
# What Linux 6.12 has in memory.stat besides.
_MORE_MEMORY = (
    "kernel_stack pagetables sec_pagetables percpu sock vmalloc shmem zswap zswapped file_dirty "
    "file_writeback swapcached anon_thp file_thp shmem_thp unevictable slab_reclaimable "
    "slab_unreclaimable slab workingset_refault_anon workingset_refault_file "
    "workingset_activate_anon workingset_activate_file workingset_restore_anon "
    "workingset_restore_file workingset_nodereclaim pgdemote_kswapd pgdemote_direct "
    "pgdemote_khugepaged pgscan pgsteal pgscan_kswapd pgscan_direct pgscan_khugepaged "
    "pgsteal_kswapd pgsteal_direct pgsteal_khugepaged pgrefill pgactivate pgdeactivate pglazyfree "
    "pglazyfreed zswpin zswpout zswpwb thp_fault_alloc thp_collapse_alloc thp_swpout "
    "thp_swpout_fallback"
)
_FILES = {
    **trees.V2,
    "memory.stat": trees.V2["memory.stat"]
    + "".join(f"{name} {49152 * (len(name) % 5)}\n" for name in _MORE_MEMORY.split()),
}
_ROOT = "/kubepods.slice"


@click.command()
@click.option("--pods", default=(100,), show_default=True, multiple=True, help="Can be repeated.")
@click.option("--containers", default=2, show_default=True, help="Of each pod.")
@click.option("--rounds", default=10, show_default=True)
def main(pods: tuple[int, ...], containers: int, rounds: int) -> None:
    """Measure the pages and print a table."""
    # As the agent does by `maxOpenFiles`.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_000_000, 1_000_000))
    click.echo(f"pods of {containers} containers, {rounds} rounds; ms of CPU and wall time")
    click.echo(
        f"{'page':<20}{'pods':>6}{'CPU':>8}{'median':>8}{'a pod':>8}{'wall':>8}{'limit':>8}"
        f"{'kB':>8}{'files':>8}"
    )
    for number in pods:
        with (
            tempfile.TemporaryDirectory() as base,
            _processes(number * (1 + 2 * containers)) as pids,
        ):
            trio.run(_measure, Path(base), number, containers, rounds, pids)


async def _measure(
    base: Path, pods: int, containers: int, rounds: int, pids: Sequence[int]
) -> None:
    provider, busy = await _provider(base, pods, containers, pids)
    spare_collector()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_when_quiet)
        await nursery.start(provider.run)
        await _measure_pages(provider, busy, pods, rounds)
        nursery.cancel_scope.cancel()


async def _measure_pages(provider: StatsProvider, busy: list[Path], pods: int, rounds: int) -> None:
    pages: dict[str, Callable[[], Awaitable[str | bytes | Iterable[bytes]]]] = {
        "/stats/summary": provider.summary,
        "/metrics/resource": provider.resource,
        "/metrics/cadvisor": provider.cadvisor,
    }
    for name, ask in pages.items():
        taken, burnt, size = [], [], 0
        for number in range(rounds + 2):  # the first two open the files
            await trio.sleep(1.1)  # beyond what an answer holds
            _use(busy, number)
            began, cpu = time.perf_counter(), time.process_time()
            answer = await ask()
            # The pieces of a page are made as they are taken.
            size = len(answer) if isinstance(answer, str | bytes) else sum(map(len, answer))
            taken.append((time.perf_counter() - began) * 1000)
            burnt.append((time.process_time() - cpu) * 1000)
        taken, burnt = sorted(taken[2:]), sorted(burnt[2:])
        middle = burnt[len(burnt) // 2]
        numbers = (burnt[0], middle, middle / pods, taken[len(taken) // 2], LIMITS_MS[name])
        click.echo(
            f"{name:<20}{pods:6}"
            + "".join(f"{n:8.1f}" for n in numbers)
            + f"{size / 1000:8.0f}{provider.files.count:8}"
        )


def _use(busy: list[Path], number: int) -> None:
    """Let the cgroups count on."""
    changed = {
        name: re.sub(r"[1-9]\d{5,}", lambda found: str(int(found[0]) + number), _FILES[name])
        for name in _CHANGING
    }
    for directory in busy:
        for name in _CHANGING:
            # Not by write(2): the kernel's own counting is no event of inotify.
            with open(directory / name, "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
                content[:] = changed[name].encode()


@contextlib.contextmanager
def _processes(number: int) -> Iterator[list[int]]:
    """Start processes that sleep, with some open files; return their ids."""
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(one) for one in socket.socketpair()]
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        started: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, started)
        for _ in range(number):
            opened = (null, *(one.fileno() for one in pair))
            started.append(
                subprocess.Popen(
                    ["sleep", "infinity"], stdin=null, stdout=null, stderr=null, pass_fds=opened
                )
            )
        yield [process.pid for process in started]


def _end(started: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.kill()
    for process in started:
        process.wait()


def _write_cgroups(host: Host, processes: Mapping[str, Sequence[int]]) -> None:
    """Write the processes of cgroups, and a memory.stat as long as the kernel's."""
    for path, own in processes.items():
        directory = Path(f"{host.mounts['']}{path}")
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in own))
        (directory / "memory.stat").write_text(_FILES["memory.stat"])


class _DecodingRuntime(FakeRuntime):
    """A runtime whose statistics arrive as bytes, as those of a real one."""

    _encoded = b""

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        if not self._encoded:
            stats = await super().list_container_stats(uid)
            self._encoded = bytes(v1.ListContainerStatsResponse(stats=stats))
        await trio.lowlevel.checkpoint()
        return parse_stats(self._encoded, layers_only=layers_only)


async def _provider(
    base: Path, pods: int, containers: int, pids: Sequence[int]
) -> tuple[StatsProvider, list[Path]]:
    """Return a provider for a node of that size, and the directories of cgroups that are busy."""
    runtime, subjects, idle = _DecodingRuntime(), [], set[str]()
    processes: dict[str, Sequence[int]] = {}
    free = iter(pids)
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
                metadata=v1.ContainerMetadata(name=name),
                image=v1.ImageSpec(image="web"),
                labels={f"io.kubernetes.pod.{key}": uid for key in ("name", "namespace", "uid")},
                annotations={f"io.kubernetes.container.{key}": uid for key in "abcde"},
            )
            container = await runtime.create_container(sandbox, made, config)
            await runtime.start_container(container)
            own = next(free), next(free)
            inside.append(
                ContainerSubject(container, name, "registry.k8s.io/web:1", own[0], 1.0, 1.0)
            )
            processes[f"{path}/cri-containerd-{container}.scope"] = own
        pauses = f"{path}/cri-containerd-{sandbox}.scope"
        processes |= {path: (), pauses: (next(free),)}
        idle.add(pauses)
        subjects.append(PodSubject(uid, f"web-{number}", "prod", tuple(inside), sandbox, 1.0, 1.0))
    host = replace(trees.write_v2(base, *processes), proc="/proc")
    _write_cgroups(host, processes)
    uids = {subject.uid.replace("-", "_"): subject.uid for subject in subjects}
    provider = StatsProvider(
        StatsSettings("node", str(base / "root"), (_ROOT,)),
        host,
        runtime,
        lambda: subjects,
        lambda name: uids.get(name.rpartition("-pod")[2].removesuffix(".slice")),
        SystemClock(),
        thread_offload,
    )
    return provider, [Path(f"{host.mounts['']}{path}") for path in processes if path not in idle]


if __name__ == "__main__":
    main()
