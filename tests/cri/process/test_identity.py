"""Whom a container runs as, and what is refused by name."""

from __future__ import annotations

import pwd

import pytest

from kubelet_trio.cri import v1
from kubelet_trio.cri.process.identity import Identity, RefusedError, decide_identity

ROOT = Identity(0, 0, ())
NOBODY = pwd.getpwnam("nobody")
PERSON = Identity(123_456, 123_456, (50_000,))  # without an account


def security(
    user: int | None = None,
    group: int | None = None,
    groups: tuple[int, ...] = (),
    username: str = "",
    policy: v1.SupplementalGroupsPolicy = v1.SupplementalGroupsPolicy.Merge,
) -> v1.LinuxContainerSecurityContext:
    return v1.LinuxContainerSecurityContext(
        run_as_user=None if user is None else v1.Int64Value(value=user),
        run_as_group=None if group is None else v1.Int64Value(value=group),
        run_as_username=username,
        supplemental_groups=list(groups),
        supplemental_groups_policy=policy,
    )


def decide(
    asked: v1.LinuxContainerSecurityContext, own: Identity, *, allow_root: bool = False
) -> Identity:
    return decide_identity(asked, own, allow_root=allow_root)[0]


def test_an_ordinary_user_runs_everything_as_itself() -> None:
    for asked in (
        security(),
        security(user=PERSON.uid),
        security(user=PERSON.uid, group=PERSON.gid),
        security(groups=(50_000, PERSON.gid)),
    ):
        assert decide(asked, PERSON) == PERSON


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (security(user=0), "runAsUser 0: the agent runs as user 123456"),
        (security(user=1), "runAsUser 1: the agent runs as user 123456"),
        (security(username="nobody"), f"runAsUser {NOBODY.pw_uid}: the agent"),
        (security(group=1), "runAsGroup 1: the agent runs as group 123456"),
        (security(groups=(50_000, 7, 8)), "fsGroup or supplementalGroups 7, 8: the agent's user"),
        (security(username="no such user"), "user 'no such user' is not known on this host"),
    ],
)
def test_what_an_ordinary_user_may_not_do_is_refused_by_name(
    asked: v1.LinuxContainerSecurityContext, words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        decide(asked, PERSON)


@pytest.mark.parametrize(
    "asked", [security(), security(user=0), security(username="root"), security(user=0, group=5)]
)
def test_root_is_refused_unless_it_is_asked_for(asked: v1.LinuxContainerSecurityContext) -> None:
    with pytest.raises(RefusedError, match=r"as root.*--process-allow-root"):
        decide(asked, ROOT)
    assert decide(asked, ROOT, allow_root=True).uid == 0


def test_root_may_run_a_container_as_anybody() -> None:
    assert decide(security(user=4711), ROOT) == Identity(4711, 4711, ())
    assert decide(security(user=4711, group=5, groups=(9, 7)), ROOT) == Identity(4711, 5, (7, 9))
    assert decide(security(username="nobody"), ROOT).gid == NOBODY.pw_gid
    assert decide(security(user=NOBODY.pw_uid), ROOT).uid == NOBODY.pw_uid


def test_strict_groups_are_only_those_that_are_named() -> None:
    strict = v1.SupplementalGroupsPolicy.Strict
    asked = security(username="nobody", groups=(7,), policy=strict)
    assert decide(asked, ROOT).groups == (7,)
