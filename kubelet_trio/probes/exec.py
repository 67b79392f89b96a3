"""An `exec` probe: a command in the container, ended with all that it started."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from lightkube.models.core_v1 import EnvVar

from kubelet_trio.containers import expand_from
from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeTimeoutError
from kubelet_trio.handlers import BODY_LIMIT
from kubelet_trio.model import ContainerId
from kubelet_trio.probes.orphans import ExecOrphans
from kubelet_trio.probes.types import Finding, ProbeError

# How much later than the runtime we give up on a command: it kills first and answers then.
_SLACK = 2.0
_SWEEP_AFTER = 0.25  # s after the time is up, and again as long as the runtime does not answer
_SWEEP_AGAIN = 0.5


def static_command(command: Sequence[str], env: Sequence[EnvVar]) -> list[str]:
    """Expand a probe's command: from literal values of the container's spec only."""
    variables = {variable.name: variable.value or "" for variable in env}
    return [expand_from(word, variables) for word in command]


async def check_exec(
    runtime: Runtime,
    container_id: ContainerId,
    command: list[str],
    within: int,
    orphans: ExecOrphans | None,
) -> Finding:
    """Run a command; `within` is in seconds. Raises `ProbeError`.

    The runtime kills the command when its time is up. It may answer later than that, if
    somebody holds the command's output open: what was left behind is swept up, and
    nobody waits for the answer for long.
    """
    found: Finding | ProbeError | None = None
    leaders: set[int] = set()
    async with trio.open_nursery() as nursery:
        if orphans is not None:
            nursery.start_soon(_sweep, runtime, container_id, command, within, orphans, leaders)
        with trio.move_on_after(within + _SLACK):
            found = await _run(runtime, container_id, command, within)
        nursery.cancel_scope.cancel()
    if found is None:
        if orphans is not None and leaders:
            await orphans.kill(leaders)
        quoted = " ".join(command)
        return Finding(False, f'command timed out: "{quoted}" timed out after {within}s')
    if isinstance(found, ProbeError):
        raise found
    return found


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
    while leaders:
        await orphans.kill(leaders)
        await trio.sleep(_SWEEP_AGAIN)
