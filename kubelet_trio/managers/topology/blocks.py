"""The parts of a NUMA node's box: its cores in their caches, its memory, its devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubelet_trio.managers.topology.holdings import MachineDevice, MachineHoldings
from kubelet_trio.managers.topology.ink import (
    DIM,
    PLAIN,
    Block,
    Glyphs,
    Line,
    clipped,
    grid,
    plain,
    width_of,
)
from kubelet_trio.managers.topology.marks import Mark, Marks
from kubelet_trio.managers.types import Cpu, Machine, NumaNode

_UNITS = ((2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_LONGEST_BAR = 60
_SHORTEST_BAR = 8
_WIDE = 44
_TIDY = (32, 16, 8, 4, 2, 1)  # cores in a row, if they do not fit in one


@dataclass(frozen=True, slots=True)
class Sketch:
    """What all parts of one drawing need."""

    machine: Machine
    holdings: MachineHoldings
    marks: Marks
    glyphs: Glyphs
    numbered: bool  # each CPU with its number, or rows with the number of their first

    @property
    def digits(self) -> int:
        """The digits of the largest CPU."""
        numbers = (*(cpu.id for cpu in self.machine.cpus), *self.machine.offline, 0)
        return len(str(max(numbers)))

    @property
    def cell(self) -> int:
        """The width of a CPU, with the gap after it."""
        return self.marks.width + 1 + (self.digits if self.numbered else 0)


def node_block(sketch: Sketch, node: NumaNode, width: int, *, packages: bool) -> Block:
    """Return what is in a node's box; `packages` puts its CPUs under their sockets."""
    cpus = [cpu for cpu in sketch.machine.cpus if cpu.node == node.id]
    lines = core_lines(sketch, cpus, width, packages=packages)
    if not cpus:
        lines = [plain("no CPUs", DIM)]
    devices = device_names(sketch, width, node.id)
    # Bars and devices begin in one column, if that leaves the bars a length.
    label = max((len(name) for name in devices.values()), default=0) if width >= _WIDE else 0
    held = memory_lines(sketch, node, width, label)
    held += device_lines(
        sketch, width, node.id, width_of(held[0][:1]) if held and width >= _WIDE else 0
    )
    return [*lines, *([()] if held else []), *held]


def core_lines(sketch: Sketch, cpus: Sequence[Cpu], width: int, *, packages: bool) -> Block:
    """Return the cores of some CPUs, those of each cache (die, socket) together."""
    groups: dict[tuple[int, int, int], list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault((cpu.package if packages else 0, cpu.die, cpu.cache), []).append(cpu)
    if not groups:
        return []
    names = ("socket", "die", "cache")
    # Only what tells the groups apart is said of them.
    said = [at for at in range(3) if _parts(groups, at) > 1]
    # A level that has a part for each one of the level above adds nothing.
    said = [
        at
        for n, at in enumerate(said)
        if n == 0 or _parts(groups, at) > _parts(groups, said[n - 1])
    ]
    blocks = []
    for key in sorted(groups):
        title = " ".join(f"{names[at]} {key[at]}" for at in said)
        rows = _rows(sketch, groups[key], width)
        blocks.append([plain(title, DIM), *rows] if title else rows)
    return grid(blocks, width)


def _parts(groups: Iterable[tuple[int, int, int]], level: int) -> int:
    return len({key[level] for key in groups})


def _rows(sketch: Sketch, cpus: Sequence[Cpu], width: int) -> Block:
    """Return cores as columns of their threads."""
    cores: dict[int, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(cpu.core, []).append(cpu.id)
    label = 0 if sketch.numbered else sketch.digits + 1
    fit = max(1, (width - label + 1) // sketch.cell)
    if fit < len(cores):
        fit = next(size for size in _TIDY if size <= fit)
    columns = [cores[core] for core in sorted(cores)]
    rows: Block = []
    for at in range(0, len(columns), fit):
        some = columns[at : at + fit]
        for thread in range(max(map(len, some))):
            row = [core[thread] if thread < len(core) else None for core in some]
            rows.append(_row(sketch, row, label))
    return rows


def _row(sketch: Sketch, row: Sequence[int | None], label: int) -> Line:
    first = next(cpu for cpu in row if cpu is not None)
    pieces = [(f"{first:>{label - 1}} ", DIM)] if label else []
    for at, cpu in enumerate(row):
        if cpu is None:
            pieces.append((" " * sketch.cell, PLAIN))
            continue
        mark = sketch.marks.cpus[cpu]
        after = row[at + 1] if at + 1 < len(row) else None
        pieces += cpu_pieces(sketch, cpu, mark)
        # Neighbours of one container are one patch of colour.
        same = after is not None and sketch.marks.cpus[after] is mark
        pieces.append((" ", mark.codes if same else PLAIN))
    return tuple(pieces[:-1])


def cpu_pieces(sketch: Sketch, cpu: int, mark: Mark) -> list[tuple[str, str]]:
    """Return a CPU without the gap after it."""
    number = f"{cpu:<{sketch.digits}}" if sketch.numbered else ""
    return [(f"{mark.sign:>{sketch.marks.width}}{number}", mark.codes)]


def memory_lines(sketch: Sketch, node: NumaNode, width: int, label: int = 0) -> Block:
    """Return a bar for memory and each size of huge pages, with what is held of it.

    `label` is the least width of what stands before the bars.
    """
    amounts = {"memory": node.memory} if node.memory else {}
    for page, count in node.huge_pages.items():
        if count:
            amounts[f"hugepages-{size(page)}"] = page * count
    held = {resource: _held(sketch, node.id, resource) for resource in amounts}
    labels = {resource: resource.replace("hugepages-", "huge ") for resource in amounts}
    figures = {
        resource: f"{size(sum(n for _, n in held[resource]))} of {size(amount)}"
        if held[resource]
        else size(amount)
        for resource, amount in amounts.items()
    }
    before = max(label, *map(len, labels.values()), 0) + 2
    after = max(map(len, figures.values()), default=0) + 1
    bar = min(_LONGEST_BAR, width - before - after)
    lines: Block = []
    for resource, amount in amounts.items():
        name = (f"{labels[resource]:<{before}}", DIM)
        # Without anything held, or room, a bar says nothing.
        drawn = _bar(sketch, held[resource], amount, bar) if any(held.values()) else ()
        lines.append((name, *drawn, (f" {figures[resource]}" if drawn else figures[resource], "")))
    return lines


def _held(sketch: Sketch, node: int, resource: str) -> list[tuple[Mark, int]]:
    """Return who holds how much of a node; of a group of nodes, each has the same share."""
    holders = [(sketch.marks.reserved, sketch.holdings.reserved_memory)]
    holders += [
        (mark, container.memory)
        for mark, container in zip(sketch.marks.containers, sketch.holdings.containers, strict=True)
    ]
    found = []
    for mark, memory in holders:
        amount = sum(
            each.amount // each.nodes.bit_count()
            for each in memory
            if each.resource == resource and each.nodes >> node & 1
        )
        if amount:
            found.append((mark, amount))
    return found


def _bar(sketch: Sketch, held: Sequence[tuple[Mark, int]], amount: int, width: int) -> Line:
    if width < _SHORTEST_BAR:
        return ()
    pieces = []
    total = end = drawn = 0
    for mark, share in held:
        total += share
        # At least one character each, while there is room for the others.
        end = min(width, max(drawn + 1, round(width * total / max(amount, total))))
        if end > drawn:
            text = mark.sign * (end - drawn)
            pieces.append((text[: end - drawn], mark.codes))
        drawn = end
    return (*pieces, (sketch.glyphs.free * (width - drawn), DIM))


def device_names(sketch: Sketch, width: int, node: int | None) -> dict[str, str]:
    """Return the resources of a node's devices, or of those of no node, as they are shown."""
    found = {device.resource for device in sketch.holdings.devices if _is_on(device, node)}
    return {name: clipped(printable(name), width // 2, sketch.glyphs) for name in sorted(found)}


def device_lines(sketch: Sketch, width: int, node: int | None, before: int = 0) -> Block:
    """Return the devices of a node, or those of none, a line for each resource.

    `before` is the least width of their names.
    """
    of_resource: dict[str, list[MachineDevice]] = {}
    for device in sketch.holdings.devices:
        if _is_on(device, node):
            of_resource.setdefault(device.resource, []).append(device)
    names = device_names(sketch, width, node)
    before = max(before, *(len(name) + 2 for name in names.values()), 0)
    return [
        ((f"{shown:<{before}}", DIM), *_devices(sketch, of_resource[name], width - before))
        for name, shown in names.items()
    ]


def _is_on(device: MachineDevice, node: int | None) -> bool:
    if node is None or device.nodes is None:
        return node is None and device.nodes is None
    return bool(device.nodes >> node & 1)


def _devices(sketch: Sketch, devices: Sequence[MachineDevice], width: int) -> Line:
    marks = [_device_mark(sketch, device) for device in devices]
    pieces: list[tuple[str, str]] = []
    if len(marks) * (sketch.marks.width + 1) - 1 <= width:
        for mark in marks:
            pieces += [(f"{mark.sign:>{sketch.marks.width}}", mark.codes), (" ", PLAIN)]
        return tuple(pieces[:-1])
    # Too many to draw: how many each has.
    counts: dict[Mark, int] = {}
    for mark in marks:
        counts[mark] = counts.get(mark, 0) + 1
    used = 0
    for at, (mark, count) in enumerate(counts.items()):
        text = f"x{count} "
        used += len(mark.sign) + len(text)
        if used + 1 > width and at:
            pieces.append((sketch.glyphs.ellipsis, DIM))
            break
        pieces += [(mark.sign, mark.codes), (text, PLAIN)]
    return tuple(pieces)


def _device_mark(sketch: Sketch, device: MachineDevice) -> Mark:
    held = sketch.marks.devices.get((device.resource, device.id))
    if held is not None:
        return held
    return sketch.marks.free if device.healthy else sketch.marks.broken


def printable(text: str) -> str:
    """Return a foreign text without control characters, which a terminal obeys."""
    return "".join(character if character.isprintable() else "?" for character in text)


def size(count: int) -> str:
    """Return bytes in the largest binary unit that leaves at least 1."""
    for unit, name in _UNITS:
        if count >= unit:
            whole, rest = divmod(count, unit)
            return (
                f"{whole}{name}"
                if rest * 20 < unit or whole >= 100
                else f"{count / unit:.1f}{name}"
            )
    return str(count)
