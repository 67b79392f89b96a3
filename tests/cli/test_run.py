"""From a command line to an agent, and its end by signal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cli.host import apply_to_process, host_facts
from kubelet_trio.cli.notify import Notifier
from kubelet_trio.cli.run import run, run_until_signal
from kubelet_trio.config import KubeletConfiguration
from kubelet_trio.containers import NodeSettings
from kubelet_trio.daemon.run import report_dns_limits, report_swap
from kubelet_trio.events import EventRecorder, EventRing
from kubelet_trio.host.tunables import TUNABLES
from kubelet_trio.model import Purpose, SystemClock, thread_offload

Status = trio.TaskStatus[Callable[[], bool]]


async def agent(*, stop: trio.Event, task_status: Status) -> int:
    task_status.started(lambda: True)
    await stop.wait()
    return 7


async def test_a_signal_stops_the_agent_in_good_order(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        for number in (signal.SIGTERM, signal.SIGINT):

            async def stopped_by(*, stop: trio.Event, task_status: Status, n: int = number) -> int:
                task_status.started(lambda: True)
                os.kill(os.getpid(), n)
                await stop.wait()
                return 7

            with trio.fail_after(5):
                assert await run_until_signal(stopped_by, Notifier(str(tmp_path / "notify"))) == 7
            assert [systemd.recv(99) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


async def test_a_second_signal_ends_it_at_once() -> None:
    was_cancelled = False

    async def stuck(*, stop: trio.Event, task_status: Status) -> int:
        nonlocal was_cancelled
        task_status.started(lambda: True)
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            was_cancelled = True
            raise
        return 0

    with trio.fail_after(5):
        assert await run_until_signal(stuck, Notifier()) == 1
    assert was_cancelled


async def test_a_second_signal_waits_for_no_thread() -> None:
    hang = threading.Event()

    async def stuck(*, stop: trio.Event, task_status: Status) -> int:
        task_status.started(lambda: True)
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await thread_offload.of(Purpose.RECORDS)(hang.wait, 30)
        return 0

    try:
        with trio.fail_after(5):
            assert await run_until_signal(stuck, Notifier()) == 1
    finally:
        hang.set()


def test_a_process_with_a_thread_that_hangs_ends_with_its_exit_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = f"""
import atexit, trio
from kubelet_trio.cli.run import leave
from kubelet_trio.model import thread_offload

async def main():
    with trio.move_on_after(0.2):
        await thread_offload.of(Purpose.LOGS)(open, {str(tmp_path / "fifo")!r})
    return 7

from kubelet_trio.model import Purpose
atexit.register(print, "a hook ran")
print("written", end="")
leave(trio.run(main))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith(b"written")
    assert b"a hook ran" not in done.stdout
    assert b"logs: open" in done.stdout + done.stderr


async def test_an_agent_that_ends_by_itself_gives_its_exit_code() -> None:
    async def once(*, stop: trio.Event, task_status: Status) -> int:
        await trio.lowlevel.checkpoint()
        return 3

    with trio.fail_after(5):
        assert await run_until_signal(once, Notifier()) == 3


async def test_the_watchdog_ends_with_the_agent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def brief(*, stop: trio.Event, task_status: Status) -> int:
        task_status.started(lambda: True)
        await trio.sleep(60)
        return 0

    assert await run_until_signal(brief, Notifier(str(tmp_path / "none"), 20)) == 0
    assert trio.current_time() == 60


def test_what_is_wrong_is_told_and_nothing_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--nope", "--max-pods=x"]) == 2
    assert capsys.readouterr().err == (
        "error: unknown flag: --nope\n"
        'error: invalid argument "x" for "--max-pods" flag: "x" is not a whole number\n'
        "Run 'kubelet-trio run --help' for usage.\n"
    )


def test_help_and_version_need_no_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "--pod-manifest-path" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kubelet-trio ")


def test_the_host_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "swaps").write_text("Filename Type Size Used Priority\n/dev/sdb1 x 1 0 -2\n")
    assert host_facts(KubeletConfiguration(), tmp_path).swaps == ("/dev/sdb1",)
    assert host_facts(KubeletConfiguration(), tmp_path / "none").swaps == ()


def test_kernel_settings_are_read_only_where_they_are_protected(tmp_path: Path) -> None:
    assert host_facts(KubeletConfiguration(), tmp_path, tmp_path).kernel == ()
    protected = KubeletConfiguration(protect_kernel_defaults=True)
    told = host_facts(protected, tmp_path, tmp_path).kernel
    assert len(told) == len(TUNABLES)
    assert "vm/overcommit_memory cannot be read" in told[0]


def test_a_cgroup_root_that_is_not_there_is_told(tmp_path: Path) -> None:
    named = KubeletConfiguration(cgroup_root=f"/none-{tmp_path.name}")
    assert host_facts(named, tmp_path).missing_cgroup_root
    assert host_facts(KubeletConfiguration(), tmp_path).missing_cgroup_root == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search " + "x " * 33, "contains search line consisting of more than 32 domains!"),
        ("search " + "x " * 32, ""),
        ("nameserver", "nameserver list is empty"),
        (None, "No such file or directory"),  # systemd-resolved has not written it yet
    ],
)
async def test_what_is_wrong_with_the_hosts_resolver_file_is_told_on_the_node(
    tmp_path: Path, text: str | None, message: str, autojump_clock: MockClock
) -> None:
    file = tmp_path / "resolv.conf"
    if text is not None:
        file.write_text(text)
    events = EventRecorder(EventRing("node-1"), SystemClock())
    report_dns_limits(NodeSettings("node-1", "host", resolver_file=str(file)), events)
    report_dns_limits(NodeSettings("node-1", "host", resolv_conf=None), events)
    async with trio.open_nursery() as nursery:
        await nursery.start(events.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    found = events.ring.events(name="node-1")
    assert [e.reason for e in found] == ["CheckLimitsForResolvConf"] * bool(message)
    assert all(message in (e.message or "") and str(file) in (e.message or "") for e in found)


@pytest.mark.parametrize(
    ("swap", "noswap", "told"),
    [(0, False, False), (1 << 30, True, False), (1 << 30, False, True)],
)
async def test_swap_that_volumes_in_memory_may_go_to_is_told_on_the_node(
    swap: int, noswap: bool, told: bool, autojump_clock: MockClock
) -> None:
    events = EventRecorder(EventRing("node-1"), SystemClock())
    report_swap(NodeSettings("node-1", "host", swap_capacity=swap), events, noswap=noswap)
    events.flush()
    reasons = [e.reason for e in events.ring.events(name="node-1")]
    assert reasons == ["PossibleMemoryBackedVolumesOnDisk"] * told


def test_the_process_is_set_up_as_far_as_it_may(tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert apply_to_process(-999, before[0], tmp_path) == []
        assert (tmp_path / "oom_score_adj").read_text() == "-999"
        [left_out] = apply_to_process(-999, before[0], tmp_path / "none")
        assert left_out.event == "process.oom_score_adj"
        assert left_out.what == "the agent's oom_score_adj -999"
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_client_does_not_load_the_agent() -> None:
    import subprocess

    script = (
        "import sys, kubelet_trio.cli.reading, kubelet_trio.cli.main, kubelet_trio.cli.describe;"
        "print([m for m in ('trio', 'structlog', 'lightkube.models', 'yaml', 'asyncio.events')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


_RUNNING = """
import gc, sys
from functools import partial
import trio
from kubelet_trio.cli.local import local_facts
from kubelet_trio.config import parse_flags, settle, settle_locally
from kubelet_trio.daemon import run_agent

async def main():
    settings = settle_locally(settle(parse_flags(sys.argv[1:])), local_facts())
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_agent, settings, stop=stop))
        print(gc.get_freeze_count(), len(gc.get_objects()))
        stop.set()

trio.run(main)
"""


def test_collections_pass_over_what_a_running_agent_has_loaded(tmp_path: Path) -> None:
    flags = (
        f"--root-dir={tmp_path}",
        f"--container-runtime-endpoint=unix://{tmp_path}/none.sock",
        "--cgroups-per-qos=false",
        "--enforce-node-allocatable=",
        "--healthz-port=0",
        "--keep-kernel-settings",
        "--make-iptables-util-chains=false",
    )
    ran = subprocess.run(
        [sys.executable, "-c", _RUNNING, *flags], capture_output=True, text=True, check=True
    )
    passed_over, looked_through = map(int, ran.stdout.splitlines()[-1].split())
    assert passed_over > 10 * looked_through


_HARDENED = """
import os, subprocess, sys, threading
from kubelet_trio.cli.host import harden_process
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
os.umask(int(sys.argv[1], 8))
harden_process()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("Umask")))
print(os.stat("/proc/self/environ").st_uid)
# The agent itself reads what it needs, in its threads too, and what it starts is as any program.
def read():
    for name in ("mountinfo", "cgroup", "status"):
        open(f"/proc/self/{name}").read()
    with open("/dev/null") as file:
        os.close(os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY))
    print("read", flush=True)
thread = threading.Thread(target=read)
thread.start()
thread.join()
subprocess.run(["stat", "-L", "-c", "%u", "/proc/self/environ"], check=True)
"""


@pytest.mark.parametrize(("before", "after"), [("0", "0022"), ("077", "0077"), ("002", "0022")])
def test_the_process_keeps_its_secrets_and_makes_nothing_for_everybody(
    before: str, after: str
) -> None:
    user = os.geteuid() or 65534
    done = subprocess.run(
        [sys.executable, "-c", _HARDENED, before], check=True, capture_output=True, text=True
    )
    # Root's is what of a process nobody may read its memory, its environment or a core dump of.
    assert done.stdout.split() == [after, "0", "read", str(user)]
