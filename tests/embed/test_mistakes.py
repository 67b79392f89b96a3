"""What a program does wrong comes back as what to do instead, at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import kubelet_trio
from kubelet_trio import (
    CommandFailedError,
    ExecResult,
    Kubelet,
    KubeletConfig,
    PodNotReadyError,
    open_kubelet,
)
from kubelet_trio.testing import FakeRuntime, fake_world
from kubelet_trio.testing.runtime import FakeExec
from tests.embed.programs import pod

ROOT = Path(__file__).parents[2]


async def test_a_command_is_a_list_of_words(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    async with kubelet.run_pod(pod()) as running:
        await running.wait_ready(timeout=5)
        with pytest.raises(TypeError, match=r"such as \['ls', '-l'\], not 'ls -l'"):
            await running.exec("ls -l")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="the command is empty"):
            await running.exec([])


async def test_a_command_that_fails_or_hangs_raises_if_asked_to(
    kubelet: Kubelet, fake_runtime: FakeRuntime, autojump_clock: MockClock
) -> None:
    failed = ExecResult(b"", b"first\nno such file\n", 2)
    fake_runtime.on_exec = lambda _, command: FakeExec(99 * (command == ["hang"]), failed)
    async with kubelet.run_pod(pod()) as running:
        await running.wait_ready()
        assert (await running.exec(["ls", "x"])).exit_code == 2
        with pytest.raises(CommandFailedError, match=r"'x'\] exited with code 2: no such file"):
            await running.exec(["ls", "x"], check=True)
        with pytest.raises(trio.TooSlowError):
            await running.exec(["hang"], timeout=7)
        assert trio.current_time() >= 7


async def test_a_pod_that_is_not_ready_in_time_says_what_it_waits_for(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    async with kubelet.run_pod(pod(image="missing-x")) as running:
        with pytest.raises(
            PodNotReadyError, match=r"web is not ready after 4 s: main: (Err)?Image"
        ):
            await running.wait_ready(timeout=4)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_another_system_than_linux_is_told_at_once_and_not_at_the_import(system: str) -> None:
    program = f"""
import builtins, sys
real = builtins.__import__
def blocked(name, *rest):
    if name in ("fcntl", "pwd", "grp", "resource", "termios"):
        raise ImportError(name)
    return real(name, *rest)
sys.platform = {system!r}
builtins.__import__ = blocked
import kubelet_trio
from kubelet_trio import KubeletConfig, ManifestError, open_kubelet
for use in (lambda: KubeletConfig(root_dir="x"), lambda: open_kubelet(None)):
    try:
        use()
    except ManifestError:
        pass
    except OSError as exc:
        print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        f"kubelet_trio.{name} needs Linux, and this is {system}"
        for name in ("KubeletConfig", "open_kubelet")
    ]


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


@pytest.mark.parametrize("name", sorted({*kubelet_trio.__all__} - {"PodLike", "ResourcesLike"}))
def test_public_names_are_shown_as_they_are_imported(name: str) -> None:
    found = getattr(kubelet_trio, name)  # the two that are left out are unions, which have no name
    assert (found.__module__, found.__qualname__) == ("kubelet_trio", name)


_NO_LOGGING = """
import sys, trio
from kubelet_trio import KubeletConfig, PodNotReadyError, open_kubelet
from kubelet_trio.testing import FakeRuntime

POD = {"metadata": {"name": "m"}, "spec": {"containers": [{"name": "m", "image": "exit-after-5"}]}}

async def main():
    config = KubeletConfig(root_dir=sys.argv[1], runtime=FakeRuntime())
    async with open_kubelet(config) as kubelet, kubelet.run_pod(POD) as running:
        try:
            await running.wait_ready(timeout=1)
        except PodNotReadyError:
            return

trio.run(main)
"""


def test_a_program_that_sets_up_no_logging_has_warnings_on_stderr_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _NO_LOGGING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if "level='warning'" not in line] == []
    assert any(
        "type='Warning'" in line and "does not know 'exit-after-5'" in line for line in lines
    )


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


async def test_a_recording_is_kept_where_it_is_asked_for(
    tmp_path: Path, fake_runtime: FakeRuntime, autojump_clock: MockClock
) -> None:
    with pytest.raises(ValueError, match="flight_recorder_size: 10: expected 0, or at least"):
        KubeletConfig(root_dir=tmp_path, flight_recorder_size=10)
    for size in (0, 1 << 20):
        root = tmp_path / str(size)
        config = KubeletConfig(root_dir=root, flight_recorder_size=size)
        async with open_kubelet(config, world=fake_world(fake_runtime, config)) as kubelet:
            async with kubelet.run_pod(pod()) as running:
                await running.wait_ready()
        assert (root / "recorder").exists() is bool(size)
