"""Defaults for this user and this machine: root directory, and facts for `run`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubelet_trio.config import LocalFacts

ROOTS_ROOT = "/var/lib/kubelet"


def default_root() -> str:
    """Return the default root directory: root's, or one in the user's state directory."""
    if os.geteuid() == 0:
        return ROOTS_ROOT
    state = os.environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):  # XDG Base Directory: ignore a relative path
        state = os.path.expanduser("~/.local/state")
    return f"{state}/kubelet-trio"


def local_facts() -> LocalFacts:
    """Return the facts about user and machine. Blocks."""
    from kubelet_trio.config import LocalFacts
    from kubelet_trio.runtimes import has_runtime_installed, usable_socket

    return LocalFacts(os.geteuid() == 0, default_root(), usable_socket(), has_runtime_installed())
