"""The life of the daemon: from the configuration to the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent, make_node_directories
from kubelet_trio.config import KubeletFlags, Settings
from kubelet_trio.containers import NodeSettings, read_resolv_conf, resolv_conf_problem
from kubelet_trio.daemon.build import build_agent
from kubelet_trio.daemon.ending import end_pods
from kubelet_trio.daemon.failure import report_setup_failure
from kubelet_trio.daemon.garbage import collect_when_quiet, spare_collector
from kubelet_trio.daemon.machine import machine_children, set_up_machine
from kubelet_trio.daemon.settings import node_name
from kubelet_trio.host import Contention, LeftOut, lock_file
from kubelet_trio.model import (
    TERMINAL_PHASES,
    EventSink,
    PodUid,
    Purpose,
    SystemClock,
    about_pod,
    busy_threads,
    end_threads,
    get_logger,
    node_ref,
    thread_offload,
)
from kubelet_trio.node import look_up
from kubelet_trio.pods import PodRecord, load_records, unrecorded_pods
from kubelet_trio.server import SocketInUseError, is_healthy
from kubelet_trio.sources import ADOPTED_FILE
from kubelet_trio.supervision import GaveUpError
from kubelet_trio.volumes import has_tmpfs_noswap

if TYPE_CHECKING:
    from kubelet_trio.daemon.join import Apis
    from kubelet_trio.sources import Takeover

log = get_logger()

# Seconds that `--runonce` waits for its pods.
_RUN_ONCE_LIMIT = 600.0
# Seconds that a stopping agent waits for threads that hang. systemd kills it after 90 s
# (DefaultTimeoutStopSec in systemd-system.conf(5)).
_STOP_LIMIT = 30.0


async def run_agent(
    settings: Settings,
    *,
    stop: trio.Event,
    left_out: Sequence[LeftOut] = (),
    hurry: trio.Event | None = None,
    task_status: trio.TaskStatus[Callable[[], bool]] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Run the agent until `stop` is set, and return the process' exit code.

    Once `hurry` is set, pods that end with it (`--remove-pods-on-exit`) are killed.

    Ready once the whole tree runs, connected or not. The value of `started` is the health check
    for the watchdog. `left_out` is what the process was refused before.
    """
    preparing, watching = trio.CancelScope(), trio.CancelScope()

    async def end_preparation() -> None:
        with watching:
            await stop.wait()
            preparing.cancel(reason="asked to stop before it had started")

    code: int | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_preparation, name="stop while preparing")
        with preparing:
            async with AsyncExitStack() as stack:
                prepared = await _prepare(settings, left_out, stack)
                watching.cancel()  # from here on the agent ends in its own order
                code = 1
                if prepared is not None:
                    hurried = trio.Event() if hurry is None else hurry
                    code = await _run(*prepared, settings, stop, hurried, task_status)
    if code is None:
        log.info("agent.stopped_early")
        return 0
    return code


async def _prepare(
    settings: Settings, left_out: Sequence[LeftOut], stack: AsyncExitStack
) -> tuple[Agent, Contention | None] | None:
    """Return the agent, not running yet; log why and return None if it cannot be built."""
    apis: Apis | None = None
    try:
        # First: the kubelet that holds the lock still manages the pods.
        contention = await _hold_lock(settings.flags, stack)
        apis = await _open_apis(settings, stack)
        settings, denied = await set_up_machine(settings, left_out)
        records, takeover = await thread_offload.of(Purpose.RECORDS)(
            _load_state, Path(settings.flags.root_dir)
        )
        looked_up = await look_up(
            node_name(settings),
            settings.flags.node_ip,
            only_if_needed=not settings.flags.kubeconfig,
        )
        agent = build_agent(
            settings, records, apis, looked_up, machine_children(settings), takeover, denied
        )
        make_directories = partial(make_node_directories, for_plugins=True)
        await thread_offload.of(Purpose.RECORDS)(make_directories, agent.settings.node)
    except (OSError, ValueError) as exc:
        log.error("agent.refused", error=str(exc))
        if apis is not None:
            await report_setup_failure(apis, node_name(settings), str(exc), SystemClock())
        return None
    node, events = agent.settings.node, agent.events_recorder
    report_dns_limits(node, events)
    report_swap(node, events, noswap=has_tmpfs_noswap())
    return agent, contention


def _load_state(root_dir: Path) -> tuple[dict[PodUid, PodRecord], Takeover | None]:
    """Return what an earlier agent has recorded, and what another kubelet has left.

    Blocks. Raises OSError and ValueError, naming the file.
    """
    pods_dir = root_dir / "pods"
    records, foreign = load_records(pods_dir), unrecorded_pods(pods_dir)
    if not foreign and not (root_dir / ADOPTED_FILE).exists():
        return records, None
    from kubelet_trio.sources import Takeover, load_adopted

    return records, Takeover(root_dir, load_adopted(root_dir), foreign)


async def _hold_lock(flags: KubeletFlags, stack: AsyncExitStack) -> Contention | None:
    """Hold `--lock-file`; with `--exit-on-lock-contention` return the watcher of contention.

    Raises OSError, naming the file.
    """
    if not flags.lock_file:
        return None
    path = Path(flags.lock_file)
    await stack.enter_async_context(lock_file(path))
    # After the lock: the open(2) of this process must not count as contention.
    return stack.enter_context(Contention(path)) if flags.exit_on_lock_contention else None


def report_dns_limits(node: NodeSettings, events: EventSink) -> None:
    """Emit an event if pods do not get all of the host's resolver file, or nothing of it."""
    path, problem = node.resolver_file, ""
    try:
        conf = read_resolv_conf(path)
    except (OSError, ValueError) as exc:
        problem = f"{path}: {(exc.strerror if isinstance(exc, OSError) else None) or exc}"
    else:
        if conf is not None:
            problem = resolv_conf_problem(conf, path, node.cluster_domain) or ""
    if problem:
        events.emit(node_ref(node.node_name), "Warning", "CheckLimitsForResolvConf", problem)


def report_swap(node: NodeSettings, events: EventSink, *, noswap: bool) -> None:
    """Emit an event if memory-backed volumes may be swapped, because tmpfs lacks `noswap`."""
    if node.swap_capacity and not noswap:
        events.emit(
            node_ref(node.node_name),
            "Warning",
            "PossibleMemoryBackedVolumesOnDisk",
            "The kernel's tmpfs has no noswap option and swap is on: memory-backed volumes "
            "(secrets, emptyDirs in memory, and so on) may be swapped to disk and are not secure",
        )


async def _open_apis(settings: Settings, stack: AsyncExitStack) -> Apis | None:
    if not settings.flags.kubeconfig:
        return None
    # An HTTP client and all that uses it: memory that a standalone node does not need.
    from kubelet_trio.daemon.join import open_apis

    opened = open_apis(settings, node_name(settings), SystemClock())
    return await stack.enter_async_context(opened)


async def _run(
    agent: Agent,
    contention: Contention | None,
    settings: Settings,
    stop: trio.Event,
    hurry: trio.Event,
    task_status: trio.TaskStatus[Callable[[], bool]],
) -> int:
    # `--runonce` fails unless `_run_once` returns 0.
    code = 1 if settings.config.run_once else 0
    ready = _Ready()

    async def attend() -> None:
        nonlocal code
        await ready.event.wait()
        spare_collector()
        task_status.started(partial(is_healthy, agent.check_functions()))
        log.info("agent.started", node=agent.settings.node.node_name)
        if settings.config.run_once:
            code = await _run_once(agent)
            stop.set()

    try:
        async with trio.open_nursery() as nursery:
            # Before the start: a signal may arrive while the tree starts.
            ends_pods = settings.flags.remove_pods_on_exit
            nursery.start_soon(_stop_when_asked, agent, stop, hurry if ends_pods else None)
            if contention is not None:
                nursery.start_soon(_stop_when_contended, agent, contention)
            nursery.start_soon(attend)
            nursery.start_soon(collect_when_quiet)
            await agent.run(task_status=ready)
            nursery.cancel_scope.cancel()
    # A nursery wraps even a single exception in a group (strict_exception_groups).
    except* (GaveUpError, SocketInUseError) as failures:
        for failure in failures.exceptions:
            log.error("agent.failed", error=str(failure))
        code = 1
    return code


class _Ready:
    """A task status to wait for; unlike `nursery.start` it allows the task to end without it."""

    def __init__(self) -> None:
        self.event = trio.Event()

    def started(self, _value: None = None) -> None:
        self.event.set()


async def _stop_when_asked(agent: Agent, stop: trio.Event, hurry: trio.Event | None) -> None:
    """Stop the agent; with `hurry` end its pods before, which that event hurries."""
    await stop.wait()
    if hurry is not None:
        log.info("agent.removing_pods", pods=len(agent.pods.value))
        await end_pods(agent, hurry, sys.stderr if sys.stderr.isatty() else None)
    await _stop(agent)


async def _stop_when_contended(agent: Agent, contention: Contention) -> None:
    """Stop when another kubelet wants the lock; it takes over the pods."""
    await contention.wait()
    log.info("lock_file.contended", effect="the agent ends, pods run on")
    await _stop(agent)


async def _stop(agent: Agent) -> None:
    agent.stop()
    # Each step of the agent's shutdown has a deadline; a thread that hangs cannot have one.
    await trio.sleep(_STOP_LIMIT)
    log.warning("agent.threads_hang", threads=busy_threads())
    end_threads()


async def _run_once(agent: Agent) -> int:
    """Wait until every pod is ready or has terminated; return 0 if none has failed."""
    with trio.move_on_after(_RUN_ONCE_LIMIT):
        await agent.wait_delivered()
        await agent.pods.wait_value(lambda pods: all(_has_come_up(p) for p in pods.values()))
    failed = [p for p in agent.pods.value.values() if not _is_well(p)]
    for pod in failed:
        status = pod.status
        log.error(
            "runonce.pod_failed",
            **about_pod(pod),
            phase=status.phase if status is not None else None,
        )
    log.info("runonce.done", pods=len(agent.pods.value), failed=len(failed))
    return 1 if failed else 0


def _has_come_up(pod: Pod) -> bool:
    status = pod.status
    if status is None:
        return False
    ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())
    return ready or status.phase in TERMINAL_PHASES


def _is_well(pod: Pod) -> bool:
    return _has_come_up(pod) and pod.status is not None and pod.status.phase != "Failed"
