"""What a program does wrong comes back as what to do instead, at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import kubelet_trio
from kubelet_trio import Kubelet, PodNotReadyError, open_kubelet
from kubelet_trio.testing import FakeRuntime
from tests.embed.programs import pod

ROOT = Path(__file__).parents[2]


async def test_a_command_is_a_list_of_words(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    async with kubelet.run_pod(pod()) as running:
        await running.wait_ready()
        with pytest.raises(TypeError, match=r"such as \['ls', '-l'\], not 'ls -l'"):
            await running.exec("ls -l")
        with pytest.raises(ValueError, match="the command is empty"):
            await running.exec([])


async def test_a_path_is_no_configuration() -> None:
    with pytest.raises(TypeError, match=r"KubeletConfig\(root_dir=\.\.\.\), not str"):
        async with open_kubelet("/path"):  # type: ignore[arg-type]
            pass


async def test_a_pod_that_cannot_start_says_why(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    async with kubelet.run_pod(pod(image="no-create")) as running:
        with pytest.raises(PodNotReadyError, match=r"pod default/web cannot start: main: Create"):
            await running.wait_ready()
        assert running.why_not_ready.startswith("main: CreateContainerError: ")


async def test_what_heals_in_time_is_waited_for(
    kubelet: Kubelet, fake_runtime: FakeRuntime, autojump_clock: MockClock
) -> None:
    missing = {"envFrom": [{"configMapRef": {"name": "later"}}]}
    body = pod()
    body["spec"]["containers"][0].update(missing)  # type: ignore[index]
    async with kubelet.run_pod(body) as running:
        with trio.move_on_after(3) as early:
            await running.wait_ready()
        assert early.cancelled_caught
        assert "later" in running.why_not_ready
        objects = """
apiVersion: v1
kind: ConfigMap
metadata: {name: later}
data: {A: b}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec: {containers: [{name: main, image: web}]}
"""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.wait_ready)
            await trio.sleep(5)
            await kubelet.apply(objects)
        assert running.why_not_ready == ""


@pytest.mark.parametrize("name", [n for n in kubelet_trio.__all__ if n.endswith("Error")])
def test_errors_are_shown_under_the_name_that_is_imported(name: str) -> None:
    found = getattr(kubelet_trio, name)
    assert found.__module__ == "kubelet_trio"


def test_an_example_without_its_arguments_tells_them() -> None:
    command = [sys.executable, str(ROOT / "examples" / "embedding" / "keeper.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "usage: keeper.py DIR up|watch|down\n")


def test_the_package_tells_type_checkers_that_it_is_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from kubelet_trio import KubeletConfig\n"
        "reveal_type(KubeletConfig(root_dir='/x').parallel_pulls)\n"
        "KubeletConfig(root_dir=1)\n"
    )
    assert (Path(kubelet_trio.__file__).parent / "py.typed").is_file()
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert 'Revealed type is "int | None"' in checked.stdout.replace("builtins.", "").replace(
        "Union[int, None]", "int | None"
    )
    assert '"root_dir" to "KubeletConfig" has incompatible type "int"' in checked.stdout
    assert "py.typed" not in checked.stdout
