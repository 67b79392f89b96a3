"""`kubelet-trio run`: starts the agent from its command line, and ends it by signal.

The first SIGTERM or SIGINT sets `stop`, and the agent ends in order; the second one cancels it.
Containers keep running in both cases. A thread that hangs in a system call (a dead disk, an NFS
server) does not delay the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kubelet_trio.lean import import_libraries, load_lean

if TYPE_CHECKING:
    import trio

    from kubelet_trio.cli.notify import Notifier
    from kubelet_trio.config import Settings


class AgentMain(Protocol):
    """The agent's main function, as `run` starts it.

    It calls `task_status.started(is_healthy)` when its tree runs, ends in order when `stop` is
    set, and returns the exit code.
    """

    async def __call__(
        self, *, stop: trio.Event, task_status: trio.TaskStatus[Callable[[], bool]]
    ) -> int: ...


def run(argv: Sequence[str]) -> int:
    """Run the agent and return its exit code: 1 if it refuses to start, 2 for wrong flags."""
    # structlog imports rich if it is installed: 9 MB that the agent never uses.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    load_lean()
    import_libraries()
    from kubelet_trio.cli.local import local_facts
    from kubelet_trio.config import ConfigError, parse_flags, run_help, settle, settle_locally

    try:
        line = parse_flags(argv)
    except ConfigError as exc:
        _refuse(exc.problems)
        print("Run 'kubelet-trio run --help' for usage.", file=sys.stderr)
        return 2
    if line.wants_help:
        print(run_help(every=line.wants_all_help), end="")
        return 0
    if line.wants_version:
        from kubelet_trio import __version__

        print(f"kubelet-trio {__version__}")
        return 0
    try:
        settings = settle_locally(settle(line), local_facts())
    except ConfigError as exc:
        return _refuse(list(map(str, exc.located)))
    if line.wants_check:
        from kubelet_trio.cli.run_check import check_run

        return check_run(settings)
    return _start(settings)


def _start(settings: Settings) -> int:
    import structlog
    import trio

    from kubelet_trio.cli.host import apply_to_process, harden_process, host_facts
    from kubelet_trio.cli.logging import configure_logging
    from kubelet_trio.cli.notify import Notifier
    from kubelet_trio.config import startup_refusals
    from kubelet_trio.daemon import run_agent

    config = settings.config
    if refusals := startup_refusals(config, host_facts(config)):
        return _refuse(refusals)
    options = config.logging.options
    split = {"text": options.text.split_stream, "json": options.json.split_stream}
    configure_logging(
        config.logging.verbosity,
        settings.log_format,
        vmodule=[(item.file_pattern, item.verbosity) for item in config.logging.vmodule],
        split=[name for name, is_split in split.items() if is_split],
    )
    log = structlog.get_logger()
    for note in settings.notes:
        log.warning("config.note", note=note)
    # In this order: without root, a process that is not dumpable may not write to /proc/self.
    left_out = apply_to_process(config.oom_score_adj, config.max_open_files)
    harden_process()
    notifier = Notifier.from_environment(os.environ)
    hurry = trio.Event() if settings.flags.remove_pods_on_exit else None
    agent = partial(run_agent, settings, left_out=left_out, hurry=hurry)
    return leave(trio.run(run_until_signal, agent, notifier, hurry))


def leave(code: int) -> int:
    """Return the exit code; if a thread hangs, end the process with it immediately."""
    # The agent itself has ended in order. At a normal exit the interpreter is taken down while
    # the thread may wake up and run in it.
    import structlog

    from kubelet_trio.model import busy_threads

    if threads := busy_threads():
        structlog.get_logger().warning("agent.threads_left", threads=threads)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _refuse(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1


async def run_until_signal(
    agent: AgentMain, notifier: Notifier, hurry: trio.Event | None = None
) -> int:
    """Run the agent to its end and return its exit code; 1 if a second signal cancelled it.

    With `hurry`, the second SIGINT sets that event, and the next signal cancels.
    """
    import trio

    stop = trio.Event()
    at_once = trio.CancelScope()
    code = 1

    async def main(task_status: trio.TaskStatus[Callable[[], bool]]) -> None:
        nonlocal code
        code = await agent(stop=stop, task_status=task_status)
        # If the agent ended before its tree ran, `start` still waits. RuntimeError: it was called.
        with contextlib.suppress(RuntimeError):
            task_status.started(lambda: True)

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, at_once:
        # The outer nursery serves signals until the agent has ended.
        async with trio.open_nursery() as attendants:
            attendants.start_soon(_obey, signals, stop, hurry, at_once, notifier)
            async with trio.open_nursery() as agents:
                is_healthy = await agents.start(main)
                # Stopped during the start: STOPPING=1 was sent, and READY=1 must not follow.
                if not stop.is_set():
                    notifier.notify("READY=1")
                attendants.start_soon(notifier.run_watchdog, is_healthy)
            attendants.cancel_scope.cancel()
    # The agent ended by itself: systemd has not been notified yet.
    if not stop.is_set():
        notifier.notify("STOPPING=1")
    return code


async def _obey(
    signals: AsyncIterator[int],
    stop: trio.Event,
    hurry: trio.Event | None,
    at_once: trio.CancelScope,
    notifier: Notifier,
) -> None:
    import structlog

    from kubelet_trio.model import end_threads

    async for number in signals:
        name = signal.Signals(number).name
        # A service manager, which sends SIGTERM, wants the end of the process and not of pods.
        may_hurry = stop.is_set() and number == signal.SIGINT
        if may_hurry and hurry is not None and not hurry.is_set():
            structlog.get_logger().warning("agent.killing_pods", signal=name)
            hurry.set()
        elif stop.is_set():
            structlog.get_logger().warning("agent.stop_at_once", signal=name)
            at_once.cancel()
            # Calls that wait for their thread to finish would ignore the cancellation.
            end_threads()
        else:
            structlog.get_logger().info("agent.stopping", signal=name)
            notifier.notify("STOPPING=1")
            stop.set()
