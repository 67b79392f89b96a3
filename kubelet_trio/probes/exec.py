"""An `exec` probe: a command in the container, ended with all that it started.

Its call is never cancelled: containerd is slow to get over that, and other runtimes leave the
command running. A result that is late is given up in time, and the call goes on in a task
of the probe's own until the runtime answers (its deadline: the probe's timeout and the
request timeout). Until then the probe begins no other.
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
from kubelet_trio.probes.types import Finding, ProbeError

log = get_logger()

# How much later than the runtime we give up on a command: it kills first and answers then.
_SLACK = 2.0
_SWEEP_AFTER = 0.25  # s after the time is up, and again as long as the runtime does not answer
_SWEEP_AGAIN = 0.5
_SWEEP_SELDOM = 8.0


def static_command(command: Sequence[str], env: Sequence[EnvVar]) -> list[str]:
    """Expand a probe's command: from literal values of the container's spec only.

    Raises `ProbeError` where a word becomes longer than Linux takes.
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
        """Run commands in tasks of `nursery`: they outlast the wait for their answer."""
        self._runtime = runtime
        self._orphans = orphans
        self._nursery = nursery
        self.is_busy = False  # a command that was given up on has not ended yet

    async def check(self, container_id: ContainerId, command: list[str], within: int) -> Finding:
        """Run a command and wait `within` seconds for its end. Raises `ProbeError`.

        The runtime kills the command when its time is up. It may answer later than that, if
        somebody holds the command's output open: what was left behind is swept up, and
        nobody waits for the answer for long.
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
            log.info("probe.command_late", container_id=container_id, within=within)
        if not found:
            quoted = " ".join(command)
            return Finding(False, f'command timed out: "{quoted}" timed out after {within}s')
        if isinstance(found[0], ProbeError):
            raise found[0]
        return found[0]

    async def _carry_out(
        self, container_id: ContainerId, command: list[str], within: int
    ) -> Finding | ProbeError | None:
        """Run a command to its end, and end what it leaves behind."""
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
    """Own the commands of one probe for as long as it lives."""
    async with trio.open_nursery() as nursery:
        yield ProbeCommands(runtime, orphans, nursery)
        nursery.cancel_scope.cancel()


async def _run(
    runtime: Runtime, container_id: ContainerId, command: list[str], within: int
) -> Finding | ProbeError | None:
    """Return what a command said; None if it took too long."""
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
    """Learn, of a command that takes long, who it is; when its time is up, end what it left."""
    await trio.sleep(within / 2)
    try:
        _, pid = await runtime.container_status(container_id, verbose=True)
    except RuntimeCallError:
        return
    if pid:
        leaders |= await orphans.find(pid, command, within)
    await trio.sleep(within / 2 + _SWEEP_AFTER)
    pause = _SWEEP_AGAIN
    while leaders:
        await orphans.kill(leaders)
        await trio.sleep(pause)
        pause = min(2 * pause, _SWEEP_SELDOM)
