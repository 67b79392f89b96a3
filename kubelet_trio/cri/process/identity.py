"""The user and groups of a container's process: those the pod asks for, if permitted here.

Only root may start processes as another user. A container runs as root only with
`--process-allow-root`, since nothing isolates it from the host. A refusal names the field that
asks for too much.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from kubelet_trio.cri.generated.runtime import v1

_ROOT = 0


class RefusedError(Exception):
    """A container cannot run as its config asks. The text names the field and the reason."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A user, a primary group, and supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """A user's entry in the host's user database."""

    name: str
    gid: int
    home: str


def own_identity() -> Identity:
    """Return the identity of this process."""
    return Identity(os.geteuid(), os.getegid(), tuple(os.getgroups()))


def find_account(user: int | str) -> tuple[int, Account | None]:
    """Return a user's UID and account. Raises `RefusedError` for an unknown name. Blocks."""
    try:
        entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        if isinstance(user, int):
            return user, None
        raise RefusedError(f"user {user!r} is not known on this host") from None
    return entry.pw_uid, Account(entry.pw_name, entry.pw_gid, entry.pw_dir)


def decide_identity(
    security: v1.LinuxContainerSecurityContext, own: Identity, *, allow_root: bool
) -> tuple[Identity, Account | None]:
    """Return the identity of a container's process, and its account if it has one. Blocks.

    A container that names no user runs as the agent's. Raises `RefusedError`.
    """
    user: int | str = own.uid
    if security.run_as_user is not None:
        user = security.run_as_user.value
    elif security.run_as_username:
        user = security.run_as_username
    uid, account = find_account(user)
    if own.uid != _ROOT and uid != own.uid:
        raise RefusedError(
            f"runAsUser {uid}: the agent runs as user {own.uid}, and only root may start "
            "processes as another user"
        )
    if uid == _ROOT and not allow_root:
        raise RefusedError(
            "it would run as root, with nothing between it and this host: set "
            "securityContext.runAsUser, or allow root (--process-allow-root; in a program "
            "KubeletConfig(allow_root=True))"
        )
    asked_group = security.run_as_group.value if security.run_as_group is not None else None
    if own.uid != _ROOT:
        return _as_ourselves(security, own, asked_group), account
    gid = asked_group
    if gid is None:
        # CRI's default, group 0, would be the host's root group here.
        gid = account.gid if account is not None else uid
    groups = set(security.supplemental_groups)
    merge = security.supplemental_groups_policy == v1.SupplementalGroupsPolicy.Merge
    if account is not None and merge:
        groups |= set(os.getgrouplist(account.name, gid))
    return Identity(uid, gid, tuple(sorted(groups - {gid}))), account


def _as_ourselves(
    security: v1.LinuxContainerSecurityContext, own: Identity, gid: int | None
) -> Identity:
    if gid not in (None, own.gid):
        raise RefusedError(
            f"runAsGroup {gid}: the agent runs as group {own.gid}, and only root may start "
            "processes as another group"
        )
    missing = sorted(set(security.supplemental_groups) - {own.gid, *own.groups})
    if missing:
        raise RefusedError(
            f"fsGroup or supplementalGroups {', '.join(map(str, missing))}: the agent's user "
            f"{own.uid} is not in there, and only root may start processes in other groups"
        )
    return own
