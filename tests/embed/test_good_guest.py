"""A kubelet leaves the program that embeds it as it was, and others in it alone."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import structlog
import trio
from trio.testing import MockClock

import kubelet_trio
from kubelet_trio import KubeletConfig, open_kubelet
from tests.embed.programs import Machine, pod


def process_state() -> dict[str, object]:
    return {
        "signals": [signal.getsignal(n) for n in signal.valid_signals() if n not in (9, 19)],
        "handlers": list(logging.getLogger().handlers),
        "level": logging.getLogger().level,
        "structlog": structlog.get_config(),
        "context": structlog.contextvars.get_contextvars(),
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "umask": os.umask(0o022),
    }


async def test_nothing_of_the_process_is_changed(tmp_path: Path, autojump_clock: MockClock) -> None:
    before = process_state()
    async with Machine(tmp_path).opened() as kubelet, kubelet.run_pod(pod()) as running:
        await running.wait_ready()
        assert process_state() == before
    assert process_state() == before


def own_children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


async def test_no_descriptor_and_no_child_is_left_behind(tmp_path: Path) -> None:
    command = ["sh", "-c", "trap 'exit 0' TERM; echo here; while :; do sleep 0.1; done"]
    main = {"name": "main", "image": "none", "command": command}
    config = KubeletConfig(root_dir=tmp_path, allow_root=True)

    async def once() -> None:
        async with open_kubelet(config) as kubelet:
            given = {"metadata": {"name": "web"}, "spec": {"containers": [main]}}
            async with kubelet.run_pod(given) as running:
                await running.wait_ready()
                assert (await running.exec(["echo", "hi"])).stdout == b"hi\n"
                async for line in running.logs(follow=True):
                    assert line == "here"
                    break

    before = own_children()  # of other tests' fixtures
    with trio.fail_after(30):
        await once()
        descriptors = set(os.listdir("/proc/self/fd"))
        await once()
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert own_children() <= before


PROGRAM = """
import sys, trio
from kubelet_trio import KubeletConfig, open_kubelet

def pod(name):
    script = "echo $$$$; trap 'exit 0' TERM; while :; do sleep 0.1; done"
    main = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    return {"metadata": {"name": name}, "spec": {"containers": [main]}}

async def main():
    async with open_kubelet(KubeletConfig(root_dir=sys.argv[1], allow_root=True)) as kubelet:
        (kept,) = await kubelet.apply(pod("kept"))
        async with kubelet.run_pod(pod("scoped")) as scoped:
            await kept.wait_ready()
            await scoped.wait_ready()
            print("up", flush=True)
            await trio.sleep_forever()

trio.run(main)
"""


async def test_a_killed_program_kills_nothing_and_the_next_one_sorts_it_out(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:  # noqa: ASYNC220  # to be killed
        assert program.stdout is not None
        with trio.fail_after(30):
            while (line := await trio.to_thread.run_sync(program.stdout.readline)) != "up\n":
                assert line, "the program has ended"
        program.kill()
    logs = {p.parts[-3].split("_")[1]: p for p in tmp_path.rglob("pods/*/main/0.log")}
    with trio.fail_after(30):  # ready is said of what has started, not of what has spoken
        while not all(path.read_text().endswith("\n") for path in logs.values()):  # noqa: ASYNC110  # a file tells nobody
            await trio.sleep(0.02)
    pids = {name: int(path.read_text().split()[-1]) for name, path in logs.items()}
    assert set(pids) == {"kept", "scoped"}
    assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
    with trio.fail_after(30):
        config = KubeletConfig(root_dir=tmp_path, allow_root=True)
        async with open_kubelet(config) as kubelet:
            await kubelet.pods.wait_value(lambda pods: len(pods) == 1)
            kept = kubelet.get("kept")
            await kept.wait_ready()
            assert (kept.status.value.containerStatuses or [])[0].restartCount == 0
            assert Path(f"/proc/{pids['kept']}").exists()
            assert not Path(f"/proc/{pids['scoped']}").exists()
            await kept.delete()
    assert not Path(f"/proc/{pids['kept']}").exists()
    # No shim is left either: they have the directory on their command lines.
    cmdlines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not [line for line in cmdlines if str(tmp_path).encode() in line]


async def test_kubelets_of_one_program_do_not_meet(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened("a") as a, machine.opened("b") as b:
        assert a.instance != b.instance
        async with a.run_pod(pod()) as one, b.run_pod(pod()) as other:
            await one.wait_ready()
            await other.wait_ready()
            assert one.uid != other.uid
            assert set(a.pods.value) == {one.uid}
            assert set(b.pods.value) == {other.uid}
            told = [e.involvedObject for e in a._core.agent.events.events()]
            assert {o.uid for o in told if o.kind == "Pod"} == {one.uid}
            await one.delete()
            assert other.status.value.phase == "Running"


def test_the_import_is_light() -> None:
    code = "import sys, kubelet_trio; print(*[m for m in sys.modules if '.' not in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"trio", "structlog", "lightkube", "msgspec"} & set(done.stdout.split()) - {
        "lightkube"  # present, but not executed: see `_deferred`
    }


def test_the_library_brings_neither_client_nor_http() -> None:
    code = (
        "import sys; sys.modules['rich'] = None\nfrom kubelet_trio import open_kubelet\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    unwanted = {"h2", "httpx2", "click", "yaml", "kubernetes_asyncio", "pytest", "kubelet_trio.cli"}
    assert not unwanted & loaded


def test_every_public_name_is_there() -> None:
    for name in kubelet_trio.__all__:
        assert getattr(kubelet_trio, name) is not None
    assert set(kubelet_trio.__all__) <= set(dir(kubelet_trio))
