"""Draws the machine and who has what: sockets, NUMA nodes, caches, cores, memory and devices."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubelet_trio.managers.topology.blocks import (
    Sketch,
    cpu_pieces,
    device_lines,
    node_block,
    printable,
    size,
)
from kubelet_trio.managers.topology.holdings import ContainerHoldings, MachineHoldings
from kubelet_trio.managers.topology.ink import (
    ASCII,
    BOLD,
    DIM,
    PLAIN,
    UNICODE,
    Block,
    Line,
    boxes,
    clipped,
    grid,
    plain,
    render,
    shares,
)
from kubelet_trio.managers.topology.marks import Mark, by_place, marks_of
from kubelet_trio.managers.types import Machine, NumaNode, nodes_of
from kubelet_trio.model import format_cpus

_NARROWEST = 40  # columns: a drawing for less is of this width
_NODE = 36  # the least width of a NUMA node's box
_NUMBERED_LINES = 24  # that CPUs with their numbers may fill
_MOST_DISTANCES = 16  # nodes: the table of more is for no eye
_NAMES = 0.45  # of the width, for pod and container in the list below


def draw_machine(
    machine: Machine,
    holdings: MachineHoldings | None,
    *,
    width: int = 80,
    unicode: bool = True,
    colour: bool = False,
) -> str:
    """Return the machine as text of at most `width` columns, but at least 40.

    Args:
        machine: the machine.
        holdings: who has what; None: nobody can say, and the machine alone is drawn.
        width: columns of the terminal.
        unicode: False: ASCII alone.
        colour: with escape sequences for 256 colours.
    """
    width = max(width, _NARROWEST)
    glyphs = UNICODE if unicode else ASCII
    held = holdings or MachineHoldings()
    held = replace(held, containers=by_place(held.containers))
    marks = marks_of(machine, held, glyphs, known=holdings is not None)
    sketch = Sketch(machine, held, marks, glyphs, numbered=True)
    if len(machine.cpus) * sketch.cell > _NUMBERED_LINES * width:
        sketch = replace(sketch, numbered=False)
    lines = [
        *_heading(sketch, width),
        (),
        *_machine(sketch, width),
        *_distances(sketch, width),
        *_signs(sketch, width),
        *_containers(sketch, width),
    ]
    text = render(lines, colour=colour)
    return text if unicode else text.encode("ascii", "replace").decode("ascii")


def _heading(sketch: Sketch, width: int) -> Block:
    machine = sketch.machine
    counts = [
        (len({cpu.package for cpu in machine.cpus}), "socket"),
        (len(machine.nodes), "NUMA node"),
        (len({cpu.core for cpu in machine.cpus}), "core"),
        (len(machine.cpus), "CPU"),
    ]
    words = [f"{count} {word}{'s' if count != 1 else ''}" for count, word in counts]
    words.append(size(sum(node.memory for node in machine.nodes)))
    heading = f" {sketch.glyphs.dot} ".join(words)
    lines = [plain(line, BOLD) for line in textwrap.wrap(heading, width)]
    if sketch.holdings.policies:
        said = ", ".join(
            printable(f"{name} {value}") for name, value in sketch.holdings.policies.items()
        )
        lines += [plain(line, DIM) for line in textwrap.wrap(f"policies: {said}", width)]
    return lines


def _machine(sketch: Sketch, width: int) -> Block:
    """Return the boxes: nodes in their sockets, or sockets in their nodes."""
    machine = sketch.machine
    sockets: dict[int, set[int]] = {}
    packages: dict[int, set[int]] = {}
    for cpu in machine.cpus:
        sockets.setdefault(cpu.package, set()).add(cpu.node)
        packages.setdefault(cpu.node, set()).add(cpu.package)
    nested = len(sockets) > 1 and all(len(found) == 1 for found in packages.values())
    inside = [node for node in machine.nodes if node.cpus] if nested else []
    outside = [node for node in machine.nodes if not nested or not node.cpus]
    lines: Block = []
    if nested:
        wanted = max(_wanted(sketch, node) for node in inside) + 4
        columns = _columns(len(sockets), width, wanted)
        widths = shares(width, columns, 1)
        named = []
        for at, package in enumerate(sorted(sockets)):
            nodes = [node for node in inside if node.id in sockets[package]]
            named.append((f"Socket {package}", _nodes(sketch, nodes, widths[at % columns] - 4)))
        lines += boxes(named, widths, columns, sketch.glyphs.thick, 1)
    lines += _nodes(sketch, outside, width)
    loose = device_lines(sketch, width - 4, None)
    if loose:
        lines += boxes([("Devices of no NUMA node", loose)], [width], 1, sketch.glyphs.thin, 0)
    if machine.offline:
        lines += boxes(
            [("Offline", _offline(sketch, width - 4))], [width], 1, sketch.glyphs.thin, 0
        )
    return lines


def _nodes(sketch: Sketch, nodes: Sequence[NumaNode], width: int) -> Block:
    if not nodes:
        return []
    columns = _columns(len(nodes), width, _NODE)
    widths = shares(width, columns, 1)
    shown = sorted(nodes, key=lambda node: node.id)
    named = []
    for at, node in enumerate(shown):
        packages = {cpu.package for cpu in sketch.machine.cpus if cpu.node == node.id}
        block = node_block(sketch, node, widths[at % columns] - 4, packages=len(packages) > 1)
        named.append((f"NUMA node {node.id}", block))
    return boxes(named, widths, columns, sketch.glyphs.thin, 1)


def _wanted(sketch: Sketch, node: NumaNode) -> int:
    """Return the width in which a node's box looks best."""
    cores = len({cpu.core for cpu in sketch.machine.cpus if cpu.node == node.id})
    return max(_NODE, min(cores, 16) * sketch.cell + sketch.digits + 6)


def _columns(count: int, width: int, least: int) -> int:
    """Return how many boxes stand side by side, without a ragged last row."""
    fit = max(1, min(count, (width + 1) // (least + 1)))
    return -(-count // -(-count // fit))


def _offline(sketch: Sketch, width: int) -> Block:
    mark = sketch.marks.offline
    if not sketch.numbered:
        return [
            plain(line, mark.codes) for line in textwrap.wrap(_list(sketch.machine.offline), width)
        ]
    cells: list[Block] = [
        [tuple(cpu_pieces(sketch, cpu, mark))] for cpu in sorted(sketch.machine.offline)
    ]
    return grid(cells, width, 1)


def _distances(sketch: Sketch, width: int) -> Block:
    nodes = sketch.machine.nodes
    if not 1 < len(nodes) <= _MOST_DISTANCES or not all(node.distances for node in nodes):
        return []
    numbers = [str(node.id) for node in nodes]
    cell = max(len(text) for text in [*numbers, *(str(d) for n in nodes for d in n.distances)]) + 2
    if 10 + cell * len(nodes) > width:
        return []
    head = "".join(f"{number:>{cell}}" for number in numbers)
    lines: Block = [(), plain(f"distance  {head}", DIM)]
    for node in nodes:
        row = tuple(
            (f"{distance:>{cell}}", PLAIN if distance > 10 else DIM) for distance in node.distances
        )
        lines.append(((f"{'node ' + str(node.id):<10}", DIM), *row))
    return lines


def _signs(sketch: Sketch, width: int) -> Block:
    """Return what the signs mean that are no containers."""
    marks, machine = sketch.marks, sketch.machine
    lines: Block = []
    for mark in (marks.free, marks.reserved, marks.isolated, marks.unknown):
        cpus = [cpu for cpu, used in marks.cpus.items() if used is mark]
        if cpus and (mark is not marks.free or sketch.holdings.shared):
            lines += _entry(mark, mark.meaning, f"CPUs {_list(cpus)}", width, 12)
    if machine.offline:
        lines += _entry(marks.offline, "offline", f"CPUs {_list(machine.offline)}", width, 12)
    if any(not device.healthy for device in sketch.holdings.devices):
        lines += _entry(marks.broken, "unhealthy", "devices", width, 12)
    if not sketch.numbered:
        lines.append(plain(clipped(_ROWS, width, sketch.glyphs), DIM))
    return [(), *lines] if lines else []


_ROWS = "A column is a core, a row one thread of each; the number is the row's first CPU."


def _containers(sketch: Sketch, width: int) -> Block:
    held = sketch.holdings.containers
    if not held:
        return []
    names = [printable(f"{each.namespace}/{each.pod} {each.container}") for each in held]
    room = min(max(map(len, names)), int(width * _NAMES))
    lines: Block = [()]
    for mark, name, container in zip(sketch.marks.containers, names, held, strict=True):
        lines += _entry(mark, clipped(name, room, sketch.glyphs), _has(container), width, room)
    return lines


def _entry(mark: Mark, name: str, said: str, width: int, room: int) -> Block:
    """Return a sign, a name, and what is said of it, wrapped in the rest of the width."""
    before = 2 + len(mark.sign) + 2 + room + 2
    first, *more = textwrap.wrap(said, width - before, break_on_hyphens=False) or [""]
    head: Line = (
        ("  ", PLAIN),
        (mark.sign, mark.codes),
        (f"  {name:<{room}}  ", PLAIN),
        (first, PLAIN),
    )
    return [head, *(plain(" " * before + line) for line in more)]


def _has(container: ContainerHoldings) -> str:
    words = [f"CPUs {_list(container.cpus)}"] if container.cpus else []
    for held in container.memory:
        nodes = "+".join(map(str, nodes_of(held.nodes)))
        words.append(f"{held.resource} {size(held.amount)} on {nodes}")
    for resource, ids in container.devices.items():
        words.append(f"{resource} {' '.join(ids)}")
    return printable("; ".join(words))


def _list(cpus: Iterable[int]) -> str:
    # With a blank after each comma, long ones can be wrapped.
    return format_cpus(cpus).replace(",", ", ")
