"""`python -m bench.footprint`: what the memory of a daemon at rest consists of.

A real agent on a private containerd, standalone, at rest and then with static pods: its resident
set by kind of mapping, and, in a second agent under tracemalloc, the modules and the lines that
allocated most. `--against DIR` alternates with the agent of another checkout; `--plots DIR` draws
two SVGs, one of them from the history that `--note LABEL` adds to.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from bench.bars import Bar, bars
from tests.harness import BUSYBOX, Agent, Containerd, missing

HISTORY = Path(__file__).parent / "footprint.json"
ROOT = Path(__file__).parents[1]
_REST = 8.0  # seconds from READY=1 until the agent is looked at
_SETTLE = 15.0  # seconds for pods to start, at most
# Not from the current directory, which is that of one checkout.
_PROGRAM = """import sys
sys.path.remove("")
sys.argv[0] = "kubelet-trio"
from kubelet_trio.cli import main
main()
"""
_COLOURS = ("#3a7d44", "#2f6690", "#c98b2b", "#8a5a83", "#7d8597", "#c1432e")

Split = dict[str, dict[str, float]]


@contextmanager
def _agent(
    base: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    python: str = sys.executable,
) -> Iterator[tuple[Agent, Path]]:
    """Run an agent on a containerd of its own, by `command` and the arguments of `run`."""
    program = base / "program"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([python, *command])} "$@"\n')
    program.chmod(0o755)
    with Containerd() as containerd:
        agent = Agent(base / "agent", containerd, program=program, environment=environment)
        try:
            agent.start()
            time.sleep(_REST)
            yield agent, base
        finally:
            agent.close()


def measure(checkout: Path, pods: int, python: str = sys.executable) -> dict[str, Split]:
    """Return the split of an agent at rest, and under `pods` pods."""
    found: dict[str, Split] = {}
    with tempfile.TemporaryDirectory() as base:
        environment = {"PYTHONPATH": str(checkout)}
        with _agent(Path(base), ["-c", _PROGRAM], environment, python) as (agent, _):
            found["at rest"] = split(agent.pid)
            if pods:
                for number in range(pods):
                    agent.put(_manifest(number))
                _wait_ready(agent, pods)
                time.sleep(_REST)
                found[f"under {pods} pods"] = split(agent.pid)
    return found


def _manifest(number: int) -> dict[str, object]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "1000000"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    meta = {"name": f"pod-{number}", "namespace": "default"}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _wait_ready(agent: Agent, pods: int) -> None:
    deadline = time.monotonic() + _SETTLE * 8
    while len(list((agent.root / "pods").glob("*/containers/main"))) < pods:
        if time.monotonic() > deadline:
            raise click.ClickException(f"{pods} pods did not start:\n{agent.tail()}")
        time.sleep(0.2)


def split(pid: int) -> Split:
    """Return RSS, PSS and anonymous memory in MB, by kind of mapping; `all` has the sums."""
    found: Split = {}
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            kind = _kind(line.split(maxsplit=5)[5:])
        elif head in ("Rss:", "Pss:", "Anonymous:"):
            for name in (kind, "all"):
                figures = found.setdefault(name, {"Rss": 0.0, "Pss": 0.0, "Anonymous": 0.0})
                figures[head[:-1]] += int(rest.split()[0]) / 1000
    return found


def _kind(names: Sequence[str]) -> str:
    name = names[0] if names else ""
    if name == "[heap]":
        return "malloc: objects over 512 bytes"
    if not name:
        return "pymalloc, and malloc's mappings"
    if "libpython" in name or "/bin/python" in name:
        return "interpreter"
    if ".so" in name:
        return "shared libraries"
    return "stacks and others"


def libraries(pid: int) -> dict[str, float]:
    """Return the RSS in KB of each shared library."""
    found: Counter[str] = Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            name = Path(line.split()[-1]).name.split(".cpython")[0]
            name = name if ".so" in line else ""
        elif head == "Rss:" and name:
            found[name] += int(rest.split()[0])
    return dict(found)


def traced(checkout: Path, top: int) -> tuple[dict[str, float], list[str]]:
    """Return KB by package, and the report's lines, of an agent under tracemalloc."""
    with tempfile.TemporaryDirectory() as base:
        out = Path(base) / "traced.json"
        child = [str(Path(__file__).parent / "footprint_child.py")]
        environment = {"PYTHONPATH": str(checkout), "FOOTPRINT": str(out)}
        with _agent(Path(base), child, environment) as (agent, _):
            (Path(base) / "traced.json.go").touch()
            deadline = time.monotonic() + 60
            while not out.exists():
                if time.monotonic() > deadline:
                    raise click.ClickException(f"no figures from the agent:\n{agent.tail()}")
                time.sleep(0.2)
            shared = libraries(agent.pid)
            figures = json.loads(out.read_text())
    return _by_package(figures["modules"]), list(_report(figures, shared, top))


def _by_package(modules: Mapping[str, float]) -> dict[str, float]:
    found: Counter[str] = Counter()
    for name, size in modules.items():
        first, _, rest = name.partition(".")
        deep = first in ("kubelet_trio", "lightkube")
        found[f"{first}.{rest.partition('.')[0]}" if deep and rest else first] += int(size)
    return {name: size / 1000 for name, size in found.items()}


def _report(
    figures: Mapping[str, dict[str, float]], shared: Mapping[str, float], top: int
) -> Iterator[str]:
    now, peak = (figures["sums"][name] / 1e6 for name in ("now", "peak"))
    yield f"tracemalloc: {now:.1f} MB, most ever {peak:.1f}"
    yield ""
    for title, sizes, unit in (
        ("module", figures["modules"], 1000),
        ("line", figures["lines"], 1000),
        ("shared library", shared, 1),
    ):
        yield f"| {title} | KB |\n| --- | ---: |"
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:top]:
            yield f"| `{name}` | {size / unit:.0f} |"
        yield ""


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--pods", default=30, show_default=True, help="Static pods after the rest; 0: none.")
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Another checkout.")
@click.option("--top", default=25, show_default=True, help="Modules, lines, libraries; 0: none.")
@click.option("--note", help="Add the medians to the history under this label.")
@click.option("--python", default=sys.executable, help="The agent's interpreter.")
@click.option("--plots", "plot_dir", type=click.Path(path_type=Path), help="Write SVGs here.")
def main(
    rounds: int,
    pods: int,
    against: Path | None,
    top: int,
    note: str | None,
    python: str,
    plot_dir: Path | None,
) -> None:
    """Measure the memory of a standalone agent at rest and under pods."""
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    checkouts = {"this": ROOT} | ({"other": against.absolute()} if against is not None else {})
    taken: dict[str, list[dict[str, Split]]] = {name: [] for name in checkouts}
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            taken[name].append(measure(checkout, pods, python))
    click.echo("\n".join(_table(taken)))
    if top or plot_dir is not None:
        packages, lines = traced(ROOT, top)
        click.echo("\n" + "\n".join(lines) if top else "")
        if plot_dir is not None:
            plot_dir.mkdir(parents=True, exist_ok=True)
            (plot_dir / "memory-modules.svg").write_text(_modules_svg(packages))
    if note is not None:
        _remember(note, taken["this"])
    if plot_dir is not None:
        (plot_dir / "memory-history.svg").write_text(_history_svg())


def _table(taken: Mapping[str, Sequence[Mapping[str, Split]]]) -> Iterator[str]:
    columns = [(name, state) for name in taken for state in taken[name][0]]
    yield "| MB, medians | " + " | ".join(f"{n} {s}" for n, s in columns) + " |"
    yield "| --- |" + " ---: |" * len(columns)
    first = taken["this"][0]["at rest"]
    for kind in sorted(first, key=lambda kind: -first[kind]["Rss"]):
        for figure in ("Rss", "Pss", "Anonymous") if kind == "all" else ("Rss",):
            values = [_median(taken[n], s, kind, figure) for n, s in columns]
            shown = " | ".join(f"{v:.1f}" for v in values)
            yield f"| {figure.upper() if kind == 'all' else kind} | {shown} |"


def _median(rounds: Sequence[Mapping[str, Split]], state: str, kind: str, figure: str) -> float:
    return median(one[state].get(kind, {}).get(figure, 0.0) for one in rounds)


def _remember(label: str, rounds: Sequence[Mapping[str, Split]]) -> None:
    history = json.loads(HISTORY.read_text()) if HISTORY.exists() else {}
    history[label] = {
        state: {f: round(_median(rounds, state, "all", f), 1) for f in ("Rss", "Pss")}
        for state in rounds[0]
    }
    HISTORY.write_text(json.dumps(history, indent=1) + "\n")


def _history_svg() -> str:
    history: dict[str, Split] = json.loads(HISTORY.read_text())
    drawn = [
        Bar(f"{label}, {state}", [(figures["Pss"], _COLOURS[0]), (rest, _COLOURS[4])])
        for label, states in history.items()
        for state, figures in states.items()
        if (rest := figures["Rss"] - figures["Pss"]) >= 0
    ]
    return bars("Standalone agent: PSS, and what RSS adds to it (MB)", drawn)


def _modules_svg(packages: Mapping[str, float], top: int = 40) -> str:
    largest = sorted(packages.items(), key=lambda item: -item[1])[:top]
    rest = sum(packages.values()) - sum(size for _, size in largest)
    drawn = [
        Bar(name, [(size, _COLOURS[0 if name.startswith("kubelet_trio") else 1])])
        for name, size in (*largest, ("all others", rest))
    ]
    return bars("What a standalone agent at rest keeps of its imports (KB, tracemalloc)", drawn)


if __name__ == "__main__":
    main()
