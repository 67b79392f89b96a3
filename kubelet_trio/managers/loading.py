"""Decides which managers a node needs, and loads those only.

A node whose policies are all `none` reads neither its topology nor any of their modules. It only
looks whether a checkpoint of another policy is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kubelet_trio.managers.settings import NONE, ManagerSettings
from kubelet_trio.managers.shares import ManagerStateError
from kubelet_trio.managers.types import Machine
from kubelet_trio.model import JSON_ERRORS, read_regular

if TYPE_CHECKING:
    from kubelet_trio.managers.claims import Claim, ClaimKey
    from kubelet_trio.managers.node import LoadedManagers

_CPU_FILE, _MEMORY_FILE = "cpu_manager_state", "memory_manager_state"
_CLAIM_FILE = "dra_manager_state"
_MOST_BYTES = 4 << 20


class _Checkpoint(msgspec.Struct):
    policyName: str = ""  # noqa: N815  # as in the file


def load_managers(
    settings: ManagerSettings,
    root_dir: Path,
    read: Callable[[], Machine] | None = None,
    *,
    device_plugins: bool = False,
) -> LoadedManagers | None:
    """Return this node's managers with their states; None if it needs none. Blocks.

    Args:
        settings: their policies.
        root_dir: the kubelet's root directory, which has the checkpoints.
        read: returns the machine; None: this one is read.
        device_plugins: whether the node has device plugins; else it needs no manager if all
            policies are `none`.

    Raises:
        ManagerStateError: a policy, the machine or a reservation does not fit, or has changed. The
            message says what to do.
        OSError: a checkpoint cannot be read.
    """
    if not settings.gives_cpus:
        _expect_policy(root_dir / _CPU_FILE, NONE, "CPU")
    if not settings.gives_memory:
        _expect_policy(root_dir / _MEMORY_FILE, "None", "memory")
    is_static = settings.gives_cpus or settings.gives_memory or settings.topology_policy != NONE
    if not (is_static or device_plugins):
        return None
    from kubelet_trio.managers.node.load import load_static

    machine = (read or _read_machine)() if is_static else Machine((), ())
    return load_static(settings, root_dir, machine, device_plugins=device_plugins)


def load_claims(root_dir: Path) -> Mapping[ClaimKey, Claim]:
    """Return the resource claims that an earlier agent has left. Blocks.

    Raises:
        ManagerStateError: their checkpoint is damaged; the message says what to do.
        OSError: it cannot be read.
    """
    if not os.path.lexists(root_dir / _CLAIM_FILE):
        return {}
    from kubelet_trio.managers.claims import load_claims as load

    return load(root_dir) or {}


def read_checkpoint(path: Path) -> bytes | None:
    """Return a checkpoint's content; None if there is none. Blocks.

    Raises OSError, ManagerStateError.
    """
    try:
        # A FIFO in its place must not hold up the start for ever.
        return read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno != errno.EFBIG:
            raise
        raise ManagerStateError(
            f'the checkpoint "{path}" has more than {_MOST_BYTES} bytes: drain this node and '
            "delete it"
        ) from exc


def _expect_policy(path: Path, policy: str, which: str) -> None:
    """Raise `ManagerStateError` if a checkpoint is of another policy than this node's."""
    # As upstream: what the checkpoint gives away may still be in use by running containers.
    data = read_checkpoint(path)
    if data is None:
        return
    try:
        found = msgspec.json.decode(data, type=_Checkpoint).policyName
        problem = f'configured policy "{policy}" differs from state checkpoint policy "{found}"'
    except JSON_ERRORS as exc:
        found, problem = "", f"it is no checkpoint in JSON: {exc}"
    if found != policy:
        raise ManagerStateError(
            f"could not restore state from checkpoint: {problem}, please drain this node and "
            f'delete the {which} manager checkpoint file "{path}" before restarting Kubelet'
        )


def _read_machine() -> Machine:
    from kubelet_trio.managers.topology import TopologyError, read_machine

    try:
        return read_machine()
    except TopologyError as exc:
        raise ManagerStateError(f"cannot read this machine's topology: {exc}") from exc
