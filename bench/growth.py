"""`python -m bench.growth`: how cost grows with the number of pods.

The whole agent on FakeRuntime in virtual time, one process a number of pods: what is counted
is the process's own CPU time, so a busy machine changes little. To stay linear: the cost of a
pod at 200 pods is that at 10.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click
import msgspec
import structlog
import trio
import trio.testing
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import metadata
from tests.agent.node import Node, make_pod, ready

COUNTS = (10, 30, 100, 200)
_PROBED = (
    "- {name: web, image: web, imagePullPolicy: IfNotPresent, "
    "readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}}"
)
_ROUNDS = 5


def measure(count: int) -> dict[str, float]:
    """Return the figures of this many pods: ms of CPU and KB of memory, a pod each."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[])
    with tempfile.TemporaryDirectory() as base:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(_measure, Path(base), count, clock=clock)


async def _measure(base: Path, count: int) -> dict[str, float]:
    node = Node(base)
    pods = [make_pod(f"pod-{n}") for n in range(count)]
    found: dict[str, float] = {}
    async with node.running():
        await trio.sleep(30)
        before = _memory()  # collects first
        gc.freeze()  # as the daemon does
        with _Cpu(found, "start, ms a pod", count):
            node.feed.put(*pods)
            await _all_ready(node, pods)
        await trio.sleep(5)
        found["memory, KB a pod"] = (_memory() - before) / count
        with _Cpu(found, "a minute idle, ms a pod", count):
            await trio.sleep(60)
        with _Cpu(found, "10 edits, ms a pod", count):
            for edit in range(10):
                node.feed.put(*(_labelled(pod, str(edit)) for pod in pods))
                await trio.sleep(1)
    with _Cpu(found, "restart, ms a pod", count):
        async with node.running(*pods):
            await _all_ready(node, pods)
    async with node.running(*pods):
        await trio.sleep(5)
        with _Cpu(found, "removal, ms a pod", count):
            node.feed.put()
            await trio.sleep(60)
        assert not node.runtime.sandboxes
        probed = [make_pod(f"probed-{n}", containers=_PROBED) for n in range(count)]
        node.feed.put(*probed)
        await _all_ready(node, probed)
        with _Cpu(found, "a minute of exec probes, ms a pod", count):
            await trio.sleep(60)
    return found


async def _all_ready(node: Node, pods: Sequence[Pod]) -> None:
    with trio.fail_after(600):
        while True:
            await trio.sleep(0.1)
            told = node.agent.pods.value if node.agent is not None else {}
            if len(told) >= len(pods) and all(ready(node.status(pod)) for pod in pods):
                return


def _labelled(pod: Pod, edit: str) -> Pod:
    meta = msgspec.structs.replace(metadata(pod), labels={"edit": edit})
    return msgspec.structs.replace(pod, metadata=meta)


class _Cpu:
    """Puts the CPU time of its block into `found`, in ms for each of `count`."""

    def __init__(self, found: dict[str, float], name: str, count: int) -> None:
        self._found, self._name, self._count = found, name, count

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *exc: object) -> None:
        self._found[self._name] = 1e3 * (time.process_time() - self._began) / self._count


def _memory() -> float:
    """Return the resident set, in KB."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def table(by_count: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; the last column is the growth of a pod's cost."""
    counts = sorted(by_count)
    yield "| figure | " + " | ".join(f"{n} pods" for n in counts) + " | growth |"
    yield "| --- |" + " ---: |" * (len(counts) + 1)
    for figure in by_count[counts[0]]:
        values = [by_count[n][figure] for n in counts]
        shown = " | ".join(f"{v:.3g}" for v in values)
        yield f"| {figure} | {shown} | {values[-1] / values[0]:.2f} |"


@click.command()
@click.option("--one", type=int, hidden=True, help="Measure this number, print JSON.")
def main(one: int | None) -> None:
    """Measure how the cost of a pod grows with the number of pods, on FakeRuntime."""
    if one is not None:
        click.echo(json.dumps(measure(one)))
        return
    by_count: dict[int, dict[str, float]] = {}
    for count in COUNTS:
        rounds = [_apart(count) for _ in range(_ROUNDS)]
        by_count[count] = {f: median(r[f] for r in rounds) for f in rounds[0]}
        click.echo(f"{count} pods: done", err=True)
    click.echo("\n".join(table(by_count)))


def _apart(count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.growth", "--one", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
