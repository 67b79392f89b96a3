"""`docs/architecture.md` names the layers, and each hop of its walks in the order it is made."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import pytest
import structlog
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import FileChange, inline_offload, open_watcher
from kubelet_trio.sources import FileSource
from kubelet_trio.testing import TrioClock
from kubelet_trio.testing.csi import CsiDriverFacts, FakeCsiDriver
from tests.agent.node import Node, make_pod, ready
from tests.agent.test_cluster import World
from tests.harness.csi_services import serving
from tests.simulation.world import NudgedWatcher

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "kubelet_trio"


class Hop(NamedTuple):
    """One row of a walk's table."""

    number: int
    name: str  # below the package, dotted
    task: str  # the supervised task that makes it
    is_beside: bool = False  # made while the hop before it is, in any order

    def __str__(self) -> str:
        return f"hop {self.number}, {self.name}"


_ROW = re.compile(
    r"\| (?P<number>\d+) \| `(?P<name>[\w.]+)` \| `(?P<task>[^`]+)` \| (?P<text>.+) \|"
)


def hops(walk: str) -> list[Hop]:
    """Read the table of a walk, which follows its heading."""
    _, found, rest = PAGE.read_text().partition(f"\n## {walk}\n")
    assert found, f"there is no walk {walk!r}"
    rows = _ROW.finditer(rest.partition("\n## ")[0])
    return [
        Hop(int(row["number"]), row["name"], row["task"], row["text"].startswith("beside that, "))
        for row in rows
    ]


def code_of(hop: Hop) -> CodeType:
    """Find the function that a hop names."""
    parts = f"{PACKAGE}.{hop.name}".split(".")
    found = None
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        break
    for part in parts[cut:]:
        assert hasattr(found, part), f"{hop}: there is no such function any more"
        found = getattr(found, part)
    function = inspect.unwrap(found)  # type: ignore[arg-type]
    assert inspect.isfunction(function), f"{hop}: that is no function"
    return function.__code__


class Trace:
    """Which functions were first called in which order, and by which supervised task."""

    def __init__(self) -> None:
        self.calls: dict[CodeType, str] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code not in self.calls:
            child = structlog.contextvars.get_contextvars().get("child", "")
            self.calls[frame.f_code] = str(child)


MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 5
  containers: [{name: web, image: IMAGE}]
"""


async def manifest_to_container(base: Path, trace: Trace) -> None:
    manifests = base / "manifests"
    manifests.mkdir()
    changes: list[FileChange] = []
    watcher = NudgedWatcher(changes)
    node = Node(base)
    node.source = FileSource(
        manifests,
        "node",
        open_watcher=lambda: watcher,
        offload=inline_offload,
        clock=TrioClock(),
    )
    async with node.running() as agent:
        await trio.sleep(31)  # at 30 the source looks anyhow
        with trace.recording():
            path = manifests / "web.yaml"
            path.write_text(MANIFEST.replace("IMAGE", "registry.example/web:1"))
            changes.append(FileChange(str(path), finished=True))
            watcher.nudge()
            await agent.pods.wait_value(lambda pods: any(map(is_ready, pods.values())))


async def exit_to_restart(base: Path, trace: Trace) -> None:
    node = Node(base)
    pod = make_pod(image="exit-1-after-60")
    async with node.running(pod):
        await trio.sleep(50)
        first = node.container(pod).containerID
        with trace.recording():
            await trio.sleep(30)
        assert node.container(pod).containerID != first
        assert node.container(pod).restartCount == 1


async def deletion_to_gone(base: Path, trace: Trace) -> None:
    world = World(base)
    async with world.running():
        world.bind()
        await world.wait(world.is_ready)
        await trio.sleep(30)
        with trace.recording():
            world.kube.remove(Pod, "web")
            await world.wait(world.gone)
            await trio.sleep(30)
        assert not world.host.runtime.sandboxes


async def socket_to_driver(base: Path, trace: Trace) -> None:
    node = Node(base)
    node.plugin_watcher = open_watcher
    driver = FakeCsiDriver(facts=CsiDriverFacts(endpoint=""))
    async with node.running():
        await trio.sleep(30)
        with trace.recording():
            async with serving(driver, base / "root" / "plugins_registry" / "driver.sock"):
                await driver.registered.wait()
        assert driver.registrations == [""]


def is_ready(pod: Pod) -> bool:
    return pod.status is not None and ready(pod.status)


Walk = Callable[[Path, Trace], Awaitable[None]]
WALKS: Mapping[str, Walk] = {
    "From a manifest to a running container": manifest_to_container,
    "From an exit to the restart": exit_to_restart,
    "From an API deletion to the object gone": deletion_to_gone,
    "From a socket to a registered driver": socket_to_driver,
}


@pytest.mark.parametrize("walk", WALKS)
async def test_a_walk_makes_the_hops_of_its_table_in_their_order(
    short_path: Path, autojump_clock: MockClock, walk: str
) -> None:
    table = hops(walk)
    assert [hop.number for hop in table] == list(range(1, len(table) + 1))
    codes = [code_of(hop) for hop in table]
    trace = Trace()
    await WALKS[walk](short_path, trace)
    order = list(trace.calls)
    for hop, code in zip(table, codes, strict=True):
        assert code in trace.calls, f"{hop}: the walk does not make it any more"
        assert fnmatch(trace.calls[code], hop.task), f"{hop}: made by {trace.calls[code]!r}"
    at = {hop: order.index(code) for hop, code in zip(table, codes, strict=True)}
    ordered = [hop for hop in table if not hop.is_beside]
    assert [str(hop) for hop in sorted(ordered, key=at.__getitem__)] == [str(h) for h in ordered]
    for hop in table:
        if hop.is_beside:
            *_, before, _ = [each for each in ordered if each.number < hop.number]
            assert at[hop] > at[before], f"{hop}: made before {before}"


def test_the_layers_are_those_that_are_enforced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    enforced = next(c["layers"] for c in contracts if c["id"] == "layers")
    _, _, block = PAGE.read_text().partition("## Layers\n")
    drawn = [re.split(r"\s{3,}", line)[0] for line in block.split("```")[1].strip().splitlines()]
    assert drawn == enforced
