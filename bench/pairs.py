"""The main loads of this agent beside their floor, pair by pair: what `bench --quick` measures.

Agent and floor have a containerd each in the same run, and take turns with each pod and each crowd:
what else the machine does meets both. Whoever begins changes each time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.bare import Floor
from bench.contender import Meter, Ours, wait_ready
from bench.figures import CROWD, Run, Samples
from bench.install import link
from bench.runtime import Runtime
from kubelet_trio.cri import v1
from tests.harness import Containerd, CriClient, container, eventually, forever, live_containers
from tests.harness.manifests import pod
from tests.harness.pods import Json

_LIVES = 10
_CROWDS = 3
# Seconds: a whole number of relists (10) and of looks at the runtime's health (5). Twelve seconds
# had 4 to 8 calls, as the window fell.
_IDLE = 20.0
_SETTLE = 3.0  # seconds of quiet before a quiet thing is measured
_LIMIT = 180.0
Figures = dict[str, float]


class _Runtimes:
    """A runtime, and what was asked of it by the measuring itself."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.cri, self._asked = runtime, runtime.cri, 0

    def sandboxes(self) -> list[v1.PodSandbox]:
        self._asked += 1
        return list(self.cri.sandboxes())

    def calls(self) -> int:
        """Return the CRI calls that others have made so far."""
        return self.runtime.calls() - self._asked


class _Agent:
    """This agent's side."""

    def __init__(self, ours: Ours, logs: Path, runtime: Runtime) -> None:
        self._ours, self._logs = ours, logs
        self._runtime, self._cri = _Runtimes(runtime), runtime.cri
        self._meter = Meter(ours.pid)
        self._number = 0

    def life(self) -> Figures:
        """One pod: started, Ready, killed and started again, removed."""
        self._number += 1
        made = _manifest(f"one-{self._number}")
        name, found = made["metadata"]["name"], Figures()
        with self._ours.watched() as wait:
            began = time.time_ns()
            self._ours.put(made)
            wait(name)
            found["one.ready"] = (time.time_ns() - began) / 1e9
        first = self._live(name)
        found["one.started"] = (self._started(first) - began) / 1e9
        time.sleep(0.3)
        began = time.time_ns()
        os.kill(self._cri.container_pid(first), signal.SIGKILL)
        eventually(
            lambda: self._live(name, first) != first, _LIMIT, f"{name} runs again", every=0.02
        )
        found["death"] = (self._started(self._live(name)) - began) / 1e9
        time.sleep(0.3)
        found["one.still"], found["one.left"] = self._remove([made], 0.005)
        return found

    def crowd(self, number: int, pause: Callable[[], None] | None = None) -> Figures:
        """Many pods at once, Ready and removed; `pause` is called while they run."""
        made = [_manifest(f"crowd{number}-{one}") for one in range(CROWD)]
        used, found = _Used(self._meter, self._runtime), Figures()
        with used.counting():
            began = time.monotonic()
            for manifest in made:
                self._ours.put(manifest)
            # Nobody is asked anything until all have started: that would be work of its own.
            eventually(lambda: self._log_files(number) >= CROWD, _LIMIT, "all have started")
            wait_ready(self._ours, {m["metadata"]["name"] for m in made}, 0.02, _LIMIT)
            found["crowd.ready"] = time.monotonic() - began
            time.sleep(1)
        found["start.cpu"] = used.each(CROWD)["life.cpu"]
        if pause is not None:
            pause()
        with used.counting():
            found["crowd.still"], found["crowd.left"] = self._remove(made, 0.05)
            time.sleep(1)
        return {**found, **used.each(CROWD)}

    def memory(self) -> Figures:
        """Return what it has in memory, in MB."""
        return {"rss": self._meter.rss(), "pss": self._meter.pss()}

    def idle(self) -> Figures:
        """Return what it does while nobody asks anything, a minute."""
        time.sleep(_SETTLE)
        cpu, calls = self._meter.cpu(), self._runtime.calls()
        time.sleep(_IDLE)
        per_minute = 60 / _IDLE
        return {
            "cpu": 1e3 * (self._meter.cpu() - cpu) * per_minute,
            "idle_calls": (self._runtime.calls() - calls) * per_minute,
        }

    def _remove(self, made: list[Json], every: float) -> tuple[float, float]:
        began = time.monotonic()
        for manifest in made:
            self._ours.drop(manifest["metadata"]["name"])
        ready = v1.PodSandboxState.SANDBOX_READY
        eventually(
            lambda: not any(s.state == ready for s in self._runtime.sandboxes()),
            _LIMIT,
            "nothing runs",
            every,
        )
        still = time.monotonic() - began
        eventually(lambda: not self._runtime.sandboxes(), _LIMIT, "nothing is left", every)
        return still, time.monotonic() - began

    def _live(self, name: str, otherwise: str = "") -> str:
        return live_containers(self._cri, f"{name}-node").get("main", otherwise)

    def _started(self, found: str) -> int:
        return self._cri.container_status(found).started_at

    def _log_files(self, number: int) -> int:
        """Return how many containers of a crowd have been started: each has a log then."""
        return sum(1 for _ in self._logs.glob(f"*_crowd{number}-*/main/0.log"))


class _Used:
    """CPU and CRI calls of the blocks that are counted."""

    def __init__(self, meter: Meter, runtime: _Runtimes) -> None:
        self._meter, self._runtime = meter, runtime
        self._sums = [0.0, 0.0, 0.0]

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = self._now()
        yield
        for number, (was, now) in enumerate(zip(before, self._now(), strict=True)):
            self._sums[number] += now - was

    def each(self, count: int) -> Figures:
        cpu, runtime_cpu, calls = (each / count for each in self._sums)
        return {"life.cpu": 1e3 * cpu, "life.runtime_cpu": 1e3 * runtime_cpu, "life.calls": calls}

    def _now(self) -> tuple[float, float, float]:
        runtime = self._runtime.runtime
        return self._meter.cpu(), runtime.meter.cpu(), float(self._runtime.calls())


class _Bare:
    """The floor's side: the same figures, of bare calls."""

    def __init__(self, floor: Floor, runtime: Runtime) -> None:
        self._floor, self._runtime = floor, runtime

    def life(self) -> Figures:
        started = self._floor.start(1)
        time.sleep(0.3)
        death = self._floor.replace()
        time.sleep(0.3)
        still, left = self._floor.end()
        return {
            "one.started": started,
            "one.ready": started,
            "death": death,
            "one.still": still,
            "one.left": left,
        }

    def crowd(self) -> Figures:
        used = _Used(self._runtime.meter, _Runtimes(self._runtime))
        with used.counting():
            ready = self._floor.start(CROWD)
            time.sleep(1)
        start = used.each(CROWD)["life.cpu"]
        with used.counting():
            still, left = self._floor.end()
            time.sleep(1)
        # The agent's own CPU is compared with that of containerd here: `_Used` has it twice.
        return {
            "crowd.ready": ready,
            "crowd.still": still,
            "crowd.left": left,
            "start.cpu": start,
            **used.each(CROWD),
        }


class _Taken:
    """The samples so far, and the time that is left for more."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._ours: dict[str, list[float]] = {}
        self._floor: dict[str, list[float]] = {}

    def pairs(
        self, count: int, least: int, ours: Callable[[int], Figures], floor: Callable[[], Figures]
    ) -> None:
        """Take pairs of samples by turns: `count`, or as many above `least` as time allows."""
        longest = 0.0
        for number in range(count):
            began = time.monotonic()
            if number >= least and began + longest > self._deadline:
                return
            if number % 2:
                bare, found = floor(), ours(number)
            else:
                found, bare = ours(number), floor()
            for key in found:
                self._ours.setdefault(key, []).append(found[key])
                self._floor.setdefault(key, []).append(bare[key])
            longest = max(longest, time.monotonic() - began)

    def add(self, prefix: str, found: Figures) -> None:
        """Add figures without a floor."""
        for key, value in found.items():
            self._ours.setdefault(f"{prefix}.{key}" if prefix else key, []).append(value)

    def value(self, key: str) -> float:
        return self._ours[key][-1]

    def run(self) -> Run:
        return {
            key: Samples(tuple(values), tuple(self._floor.get(key, ())))
            for key, values in self._ours.items()
        }


def take(budget: float, say: Callable[[str], None]) -> Run:
    """Run all loads and return their figures: the fewer samples the less a `budget` (s) allows.

    The first three lives and the first crowd are taken however long they take.
    """
    # An agent that compiles itself at each start has 12 MB more: the warm-up compiles for good.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    taken = _Taken(time.monotonic() + budget)
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        program = link(base / "venv")
        taken.add("", {"modules": float(_modules(program))})
        with (
            Containerd(metrics=True) as own,
            Containerd(metrics=True) as bare,
            CriClient(own.socket) as own_cri,
            CriClient(bare.socket) as bare_cri,
            ThreadPoolExecutor(CROWD) as threads,
        ):
            ours = Ours(program, base / "agent", own)
            try:
                runtime = Runtime(bare, bare_cri)
                floor = _Bare(Floor(runtime, base / "bare", threads), runtime)
                _warm_up(ours, Runtime(own, own_cri), base / "agent" / "logs", floor)
                agent = _Agent(ours, base / "agent" / "logs", Runtime(own, own_cri))
                _measure(taken, agent, floor, say)
            finally:
                ours.close()
    return taken.run()


def _warm_up(ours: Ours, runtime: Runtime, logs: Path, floor: _Bare) -> None:
    """Let both sides do everything once: compile, and fill the caches of the machine."""
    ours.start()
    _Agent(ours, logs, runtime).life()
    floor.life()
    ours.stop()
    ours.start()


def _measure(taken: _Taken, agent: _Agent, floor: _Bare, say: Callable[[str], None]) -> None:
    say("at rest")
    taken.add("rest", _without_calls(agent.idle()))
    taken.add("rest", agent.memory())
    say("one pod at a time")
    taken.pairs(_LIVES, 3, lambda _: agent.life(), floor.life)
    say(f"{CROWD} pods at once")

    def crowd(number: int) -> Figures:
        return agent.crowd(number, look if number == 0 else None)

    def look() -> None:
        taken.add("crowd", agent.idle())
        taken.add("crowd", agent.memory())

    # Not from rest on: the first pods also load code, and leave memory that later ones use.
    before = agent.memory()["pss"]
    taken.pairs(_CROWDS, 1, crowd, floor.crowd)
    taken.add("pod", {"pss": max(0.0, 1e3 * (taken.value("crowd.pss") - before) / CROWD)})


def _without_calls(found: Figures) -> Figures:
    return {key: value for key, value in found.items() if key != "idle_calls"}


def _modules(program: Path) -> int:
    """Return how many modules are loaded with the daemon."""
    code = "import sys, kubelet_trio.daemon; print(len(sys.modules))"
    command = [str(program.with_name("python")), "-c", code]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _manifest(name: str) -> Json:
    main = container("main", forever())
    return pod(name, main, terminationGracePeriodSeconds=1)
