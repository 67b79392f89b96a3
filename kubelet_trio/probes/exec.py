"""An `exec` probe: it runs a command in the container, and ends what the command leaves running.

The ExecSync call is never cancelled: containerd recovers slowly from that, and other runtimes
leave the command running. The probe stops waiting after its timeout, and the call goes on in a
task of the probe until the runtime answers (at most the probe's timeout plus the request timeout).
Until then the probe starts no other command.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from lightkube.models.core_v1 import EnvVar

from kubelet_trio.containers import expand_from
from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeTimeoutError
from kubelet_trio.handlers import BODY_LIMIT
from kubelet_trio.model import ContainerId, get_logger
from kubelet_trio.probes.orphans import ExecOrphans
from kubelet_trio.probes.state import Finding, ProbeError

log = get_logger()

_SLACK = 2.0  # s after the timeout, in which the runtime kills the command and answers
_SWEEP_AFTER = 0.25  # s from the timeout to the first search for processes left behind
_SWEEP_PERIOD = 0.5  # s between searches while the runtime does not answer, doubled each time
_SWEEP_PERIOD_MAX = 8.0  # s


def static_command(command: Sequence[str], env: Sequence[EnvVar]) -> list[str]:
    """Expand a probe's command with the literal env values in the container's spec.

    Raises `ProbeError` if an argument becomes longer than Linux allows.
    """
    variables = {variable.name: variable.value or "" for variable in env}
    try:
        return [expand_from(word, variables) for word in command]
    except ValueError as exc:
        raise ProbeError(f"the command {exc}") from exc


class ProbeCommands:
    """Runs the commands of one probe, one at a time. Made by `open_commands`."""

    def __init__(
        self, runtime: Runtime, orphans: ExecOrphans | None, nursery: trio.Nursery
    ) -> None:
        """Run commands in tasks of `nursery`, since they may outlast the wait for their answer."""
        self._runtime = runtime
        self._orphans = orphans
        self._nursery = nursery
        self.is_busy = False  # whether a command has not ended yet, even if its timeout has passed

    async def check(self, container_id: ContainerId, command: list[str], within: int) -> Finding:
        """Run a command and wait `within` seconds for its end. Raises `ProbeError`.

        The runtime kills the command at that time. It may answer later, if a process that the
        command started holds its output open.
        """
        assert not self.is_busy
        found: list[Finding | ProbeError] = []
        answered = trio.Event()

        async def carry_out() -> None:
            try:
                answer = await self._carry_out(container_id, command, within)
            finally:
                self.is_busy = False
            if answer is not None:
                found.append(answer)
            answered.set()

        self.is_busy = True
        self._nursery.start_soon(carry_out, name=f"exec probe in {container_id}")
        with trio.move_on_after(within + _SLACK):
            await answered.wait()
        if not answered.is_set():
            log.info("probe.command_late", containerID=container_id, within=within)
        if not found:
            quoted = " ".join(command)
            return Finding(False, f'command timed out: "{quoted}" timed out after {within}s')
        if isinstance(found[0], ProbeError):
            raise found[0]
        return found[0]

    async def _carry_out(
        self, container_id: ContainerId, command: list[str], within: int
    ) -> Finding | ProbeError | None:
        """Run a command to its end, and kill what it leaves running."""
        leaders: set[int] = set()
        async with trio.open_nursery() as nursery:
            if self._orphans is not None:
                about = container_id, command, within
                nursery.start_soon(_sweep, self._runtime, *about, self._orphans, leaders)
            found = await _run(self._runtime, container_id, command, within)
            nursery.cancel_scope.cancel()
        if found is None and self._orphans is not None and leaders:
            await self._orphans.kill(leaders)
        return found


@asynccontextmanager
async def open_commands(
    runtime: Runtime, orphans: ExecOrphans | None = None
) -> AsyncIterator[ProbeCommands]:
    """Run the commands of one probe within a block."""
    async with trio.open_nursery() as nursery:
        yield ProbeCommands(runtime, orphans, nursery)
        nursery.cancel_scope.cancel()


async def _run(
    runtime: Runtime, container_id: ContainerId, command: list[str], within: int
) -> Finding | ProbeError | None:
    """Return the finding or error of a command; None if it timed out."""
    try:
        done = await runtime.exec_sync(container_id, command, within)
    except RuntimeTimeoutError:
        return None
    except RuntimeCallError as exc:
        error = ProbeError(exc.go_text)
        error.__cause__ = exc
        return error
    output = (done.stdout + done.stderr)[:BODY_LIMIT]
    return Finding(done.exit_code == 0, output.decode("utf-8", "replace"))


async def _sweep(
    runtime: Runtime,
    container_id: ContainerId,
    command: list[str],
    within: int,
    orphans: ExecOrphans,
    leaders: set[int],
) -> None:
    """Find the process of a slow command; after its timeout kill what it left running."""
    await trio.sleep(within / 2)
    try:
        _, pid = await runtime.container_status(container_id, verbose=True)
    except RuntimeCallError:
        return
    if pid:
        leaders |= await orphans.find(pid, command, within)
    await trio.sleep(within / 2 + _SWEEP_AFTER)
    pause = _SWEEP_PERIOD
    while leaders:
        await orphans.kill(leaders)
        await trio.sleep(pause)
        pause = min(2 * pause, _SWEEP_PERIOD_MAX)
