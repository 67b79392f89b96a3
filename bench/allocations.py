"""`python -m bench.allocations`: whose allocations a daemon's memory is, as memray sees them.

The agent as a process on `FakeRuntime` behind a socket, as in `bench.scale`, under memray from its
start to its rest, and another one until it has pods. What is in use then, and what was when most
was, by the module that allocates and by allocator: unlike tracemalloc, with what C libraries take
for themselves. `--plots DIR` draws an SVG of each.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from bench.bars import Bar, bars
from bench.scale import Scale

_REST = 10.0  # seconds until the agent is looked at
_SMALL = 512  # bytes: pymalloc's own; what is larger it takes from malloc
_COLOURS = {"up to 512 bytes": "#3a7d44", "larger": "#2f6690", "C libraries": "#c98b2b"}
_MISSING = "memray is not installed: pip install -e .[bench]"
# Reads a module's code: the module that is read has no frame yet.
_IMPORTING = "code of modules, as it is read"


@dataclass(frozen=True, slots=True)
class Allocated:
    """What is in use of one stack's allocations; its frames are files, the innermost first."""

    size: int  # bytes, of all of them
    count: int
    allocator: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes in use at one moment, by module and kind of allocator.

    `mapped` is what the allocators have taken of the kernel, most of which the others are made of.
    """

    modules: Mapping[str, Mapping[str, int]]
    mapped: int

    @property
    def kinds(self) -> Mapping[str, int]:
        """Sum up all modules."""
        found: Counter[str] = Counter()
        for kinds in self.modules.values():
            found.update(kinds)
        return found


def summed(records: Iterable[Allocated]) -> Use:
    """Sum up allocations by the module that makes them."""
    modules: dict[str, Counter[str]] = {}
    mapped = 0
    for record in records:
        if record.allocator == "MMAP":
            mapped += record.size
        else:
            kinds = modules.setdefault(_module(record.files), Counter())
            kinds[_kind(record)] += record.size
    return Use(modules, mapped)


def _kind(record: Allocated) -> str:
    """Return whose allocations they are: Python's, by their mean size, or C code's."""
    if not record.allocator.startswith("PYMALLOC"):
        return "C libraries"
    return "up to 512 bytes" if record.size <= _SMALL * record.count else "larger"


def _module(files: Sequence[str]) -> str:
    """Return the package, or the room, of the innermost frame that is a module's own."""
    if files and files[0].startswith("<frozen importlib"):
        return _IMPORTING
    for file in files:
        if not file.startswith("<"):
            return _name(Path(file).parts)
    return "the interpreter"


def _name(parts: Sequence[str]) -> str:
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "kubelet_trio":
            return f"kubelet_trio.{parts[place + 1].removesuffix('.py')}"
        if parts[place] in ("site-packages", "dist-packages"):
            return parts[place + 1].removesuffix(".py")
        if parts[place].startswith("python3"):
            return f"{parts[place + 1].removesuffix('.py')} (of Python)"
    return parts[-1]


def measure(pods: int) -> Mapping[str, Use]:
    """Return what is in use once an agent has that many pods, and at its peak until then."""
    with tempfile.TemporaryDirectory() as place:
        scale = Scale(Path(place), 0, 0, child="bench.allocations_child")
        try:
            scale.wait_started()
            scale.put(pods)
            scale.wait(pods, settle=_REST)
            scale.told()
        finally:
            scale.close()
        return read(Path(place) / "holds.json.capture")


def read(capture: Path) -> Mapping[str, Use]:
    """Return what memray has noted in use at the end, and when most was."""
    import memray

    with memray.FileReader(capture) as reader:
        return {
            "now": summed(_records(reader.get_leaked_allocation_records())),
            "peak": summed(_records(reader.get_high_watermark_allocation_records())),
        }


def _records(records: Iterable[object]) -> Iterator[Allocated]:
    import memray

    for record in records:
        assert isinstance(record, memray.AllocationRecord)
        files = tuple(file for _, file, _ in record.stack_trace())
        name = memray.AllocatorType(record.allocator).name
        yield Allocated(record.size, record.n_allocations, name, files)


def table(taken: Mapping[str, Use], top: int) -> Iterator[str]:
    """Return a table of KB by module, those of the first column first."""
    first = next(iter(taken.values()))
    names = sorted(first.modules, key=lambda name: -sum(first.modules[name].values()))
    yield "| KB | " + " | ".join(taken) + " |"
    yield "| --- |" + " ---: |" * len(taken)
    for name in names[:top]:
        yield _row(f"`{name}`", (sum(use.modules.get(name, {}).values()) for use in taken.values()))
    for kind in _COLOURS:
        yield _row(f"all: {kind}", (use.kinds.get(kind, 0) for use in taken.values()))
    yield _row("mapped by allocators", (use.mapped for use in taken.values()))


def _row(name: str, sizes: Iterable[int]) -> str:
    return f"| {name} | " + " | ".join(f"{size / 1000:.0f}" for size in sizes) + " |"


def picture(title: str, use: Use, top: int) -> str:
    """Return an SVG of the modules that have allocated most, and of all others together."""
    largest = sorted(use.modules.items(), key=lambda item: -sum(item[1].values()))
    others: Counter[str] = Counter()
    for _, kinds in largest[top:]:
        others.update(kinds)
    drawn = [
        Bar(name, [(kinds.get(kind, 0) / 1000, _COLOURS[kind]) for kind in _COLOURS])
        for name, kinds in (*largest[:top], ("all others", others))
    ]
    return bars(f"{title} (KB, memray)", drawn)


@click.command()
@click.option("--pods", default=30, show_default=True)
@click.option("--top", default=25, show_default=True, help="Modules.")
@click.option("--plots", "plot_dir", type=click.Path(path_type=Path), help="Write SVGs here.")
def main(pods: int, top: int, plot_dir: Path | None) -> None:
    """Measure whose allocations the memory of an agent is."""
    try:
        import memray  # noqa: F401
    except ImportError as failed:
        raise click.ClickException(_MISSING) from failed
    rest, crowd = measure(0), measure(pods)
    under = f"under {pods} pods"
    taken = {"at rest": rest["now"], "peak of the start": rest["peak"]}
    taken |= {under: crowd["now"], f"peak until {under}": crowd["peak"]}
    click.echo("\n".join(table(taken, top)))
    if plot_dir is not None:
        plot_dir.mkdir(parents=True, exist_ok=True)
        for name, title in (("at rest", "at rest"), ("peak of the start", "at the start's peak")):
            told = f"Who allocated what is in use {title}: green up to 512 bytes, blue larger"
            file = f"memory-allocations-{'rest' if name == 'at rest' else 'peak'}.svg"
            (plot_dir / file).write_text(picture(told, taken[name], top))


if __name__ == "__main__":
    main()
