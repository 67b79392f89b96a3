"""The quick bench without a runtime: what it says then, whom it lets begin, what it installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from bench.install import link
from bench.loads import to_floor
from bench.pairs import _Taken
from bench.quick import why

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--strict"], 1)])
def test_a_machine_without_containerd_says_so_in_one_line(options: list[str], status: int) -> None:
    command = [sys.executable, "-m", "bench", "--quick", *options]
    environment = {**os.environ, "KUBELET_TRIO_CONTAINERD": "/nowhere/containerd"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line.startswith("bench --quick: not run: this machine has no /nowhere/containerd")


def test_a_baseline_of_one_run_is_refused_before_anything_runs() -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--update-baseline", "--runs=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--runs: a tolerance is learned from two runs or more" in done.stderr


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (OSError(2, "No such file"), "[Errno 2] No such file"),
        (RuntimeError("first\nsecond"), "first"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_what_broke_a_run_off_is_told_in_one_line(broken: Exception, told: str) -> None:
    assert why(broken) == told


def test_a_call_that_broke_a_run_off_is_told_with_its_code(tmp_path: Path) -> None:
    with grpc.insecure_channel(f"unix:{tmp_path}/nobody.sock") as channel:
        with pytest.raises(grpc.RpcError) as broken:
            channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=20)
    assert why(broken.value).startswith("a call of the runtime failed: UNAVAILABLE: ")


def test_both_sides_take_turns_in_beginning() -> None:
    began: list[str] = []

    def ours(number: int) -> dict[str, float]:
        began.append(f"ours {number}")
        return {"death": 2.0 + number}

    def floor() -> dict[str, float]:
        began.append("floor")
        return {"death": 1.0}

    taken = _Taken(deadline=float("inf"))
    taken.pairs(3, 1, ours, floor)
    assert began == ["ours 0", "floor", "floor", "ours 1", "ours 2", "floor"]
    assert taken.run()["death"].compared == (2.0, 3.0, 4.0)


def test_only_the_least_is_measured_once_time_is_up() -> None:
    taken = _Taken(deadline=0.0)
    taken.pairs(10, 3, lambda number: {"death": 1.0}, lambda: {"death": 1.0})
    assert len(taken.run()["death"].ours) == 3


def test_the_agent_is_linked_with_what_it_requires_and_nothing_else(tmp_path: Path) -> None:
    program = link(tmp_path / "venv")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    code = (
        "import importlib.util as u, kubelet_trio, kubelet_trio.daemon\n"
        "assert not any(map(u.find_spec, ('pytest', 'mypy', 'grpc', 'rich')))\n"
        "print(kubelet_trio.__file__)"
    )
    python = [str(program.with_name("python")), "-P", "-c", code]
    done = subprocess.run(python, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).resolve() == ROOT / "kubelet_trio/__init__.py"


def test_every_time_figure_of_a_pods_life_has_its_ratio_to_the_floor() -> None:
    results = {
        "by bare calls, 1 pod started s": 0.2,
        "by bare calls, death to restart s": 0.1,
        "by bare calls, 1 pod deleted, nothing runs s": 0.1,
        "by bare calls, 1 pod deleted, nothing left s": 0.2,
        "by bare calls, 30 pods started s": 4.0,
        "by bare calls, 30 pods deleted, nothing runs s": 3.0,
        "by bare calls, 30 pods deleted, nothing left s": 4.0,
        "one pod, written to started s": 0.3,
        "one pod, written to Ready s": 0.4,
        "death to restart s": 0.15,
        "1 pod deleted, nothing runs s": 0.2,
        "1 pod deleted, nothing left s": 0.3,
        "30 pods Ready s": 5.0,
        "30 pods deleted, nothing runs s": 3.0,
        "30 pods deleted, nothing left s": 4.0,
    }
    ratios = {key: value for key, value in to_floor(results).items() if "to the floor" in key}
    assert ratios == {
        "one pod, written to started to the floor": pytest.approx(1.5),
        "one pod, written to Ready to the floor": pytest.approx(2.0),
        "death to restart to the floor": pytest.approx(1.5),
        "1 pod deleted, nothing runs to the floor": pytest.approx(2.0),
        "1 pod deleted, nothing left to the floor": pytest.approx(1.5),
        "30 pods Ready to the floor": pytest.approx(1.25),
        "30 pods deleted, nothing runs to the floor": pytest.approx(1.0),
        "30 pods deleted, nothing left to the floor": pytest.approx(1.0),
    }


def test_nothing_is_compared_with_a_floor_that_was_not_taken() -> None:
    assert to_floor({"one pod, written to started s": 0.3}) == {}
