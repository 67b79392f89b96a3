"""The checks for a node without root, decided on facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubelet_trio.cgroups import Delegation
from kubelet_trio.install.checks import CHECKS, MODULES, checks_for, run_checks
from kubelet_trio.install.facts import (
    CniFacts,
    Facts,
    NamespaceFacts,
    RuntimeFacts,
    Security,
    UserFacts,
    Wanted,
)
from kubelet_trio.install.gather import subordinate_ids
from kubelet_trio.install.rootless import NAMESPACE_CHECKS, USER_CHECKS
from tests.install.test_checks import DOWN, FEDORA, GOOD, V1, assert_told

TOOLS = frozenset({"rootlesskit", "newuidmap", "newgidmap", "slirp4netns"})
DELEGATED = frozenset({"cpu", "cpuset", "io", "memory", "pids", "hugetlb"})
ALICE = UserFacts("alice", 65536, 65536, DELEGATED, {"user.max_user_namespaces": "1000"})
# A user for whom all is prepared, and the namespace that they then have.
USER = replace(GOOD, is_root=False, user=ALICE, programs=GOOD.programs | TOOLS)
ROOT_INSIDE = NamespaceFacts(65537)
GATED = Wanted(has_user_namespace_gate=True)
INSIDE = replace(GOOD, namespace=ROOT_INSIDE, wanted=GATED)


def alice(**changed: object) -> Facts:
    return replace(USER, user=replace(ALICE, **changed))  # type: ignore[arg-type]


def inside(**cgroups: object) -> Facts:
    return replace(INSIDE, namespace=replace(ROOT_INSIDE, cgroups=Delegation(**cgroups)))  # type: ignore[arg-type]


def wanted(**changed: object) -> Wanted:
    return replace(GATED, **changed)  # type: ignore[arg-type]


# Check, facts, result, a part of the message, a part of the cure.
USER_CASES: tuple[tuple[str, Facts, str, str, str], ...] = (
    ("root", USER, "problem", "as root, of a user namespace at least", "docs/rootless.md"),
    ("root", replace(USER, wanted=Wanted(endpoint="process")), "ok", "needs no root", ""),
    ("user-namespaces", USER, "ok", "", ""),
    (
        "user-namespaces",
        alice(sysctls={"user.max_user_namespaces": "0"}),
        "problem",
        "user.max_user_namespaces is 0",
        "sysctl -w user.max_user_namespaces=28633",
    ),
    (
        "user-namespaces",
        alice(sysctls={"kernel.unprivileged_userns_clone": "0"}),
        "problem",
        "kernel.unprivileged_userns_clone is 0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "user-namespaces",
        alice(sysctls={"kernel.apparmor_restrict_unprivileged_userns": "1"}),
        "note",
        "AppArmor profile",
        "rootlesskit",
    ),
    ("subordinate-ids", USER, "ok", "65536 users", ""),
    (
        "subordinate-ids",
        alice(subuids=0),
        "problem",
        "/etc/subuid gives no IDs to alice",
        "usermod --add-subuids",
    ),
    (
        "subordinate-ids",
        alice(subuids=10, subgids=1000, name=""),
        "problem",
        "/etc/subuid gives 10 IDs and /etc/subgid gives 1000 IDs to this user",
        "200000-265535 USER",
    ),
    ("rootless-programs", USER, "ok", "", ""),
    (
        "rootless-programs",
        replace(USER, programs=(TOOLS - {"slirp4netns"}) | {"pasta"}),
        "ok",
        "",
        "",
    ),
    (
        "rootless-programs",
        replace(USER, programs=GOOD.programs),
        "problem",
        "rootlesskit, newuidmap, newgidmap, slirp4netns",
        "apt-get install -y rootlesskit uidmap slirp4netns",
    ),
    (
        "rootless-programs",
        replace(USER, programs=TOOLS - {"slirp4netns"}, os=FEDORA),
        "problem",
        "missing: slirp4netns",
        "dnf install -y slirp4netns",
    ),
    ("runtime", replace(USER, runtime=DOWN), "ok", "inside", ""),
    (
        "runtime",
        replace(USER, wanted=Wanted(endpoint="process")),
        "note",
        "processes of this machine",
        "",
    ),
    ("runtime-config", USER, "ok", "inside", ""),
    ("cgroup-driver", replace(USER, wanted=Wanted(cgroup_driver="systemd")), "ok", "inside", ""),
    ("network", replace(USER, cni=CniFacts()), "ok", "inside", ""),
    ("pause-image", replace(USER, runtime=DOWN), "ok", "inside", ""),
    ("sysctls", replace(USER, sysctls={}), "ok", "inside", ""),
    ("security", replace(USER, security=Security(apparmor=True)), "ok", "inside", ""),
    (
        "kernel-modules",
        replace(USER, missing_modules=MODULES),
        "note",
        "overlay",
        "as root: modprobe -a overlay br_netfilter",
    ),
    ("swap", replace(USER, swaps=("/dev/sda2",)), "problem", "/dev/sda2", "failSwapOn: false"),
    ("delegation", USER, "ok", "cpuset", ""),
    (
        "delegation",
        alice(delegated=frozenset({"memory", "pids"})),
        "note",
        "does not delegate cpu, cpuset, io",
        "Delegate=cpu cpuset io memory pids in /etc/systemd/system/user@.service.d/",
    ),
    ("delegation", alice(delegated=None), "note", "session", "loginctl enable-linger alice"),
    (
        "delegation",
        replace(USER, cgroup_version=1, controllers=V1),
        "note",
        "cgroup v1",
        "disable_cgroup = true",
    ),
)
INSIDE_CASES: tuple[tuple[str, Facts, str, str, str], ...] = (
    ("root", INSIDE, "ok", "of a user namespace", ""),
    ("user-namespace", INSIDE, "ok", "65537 users", ""),
    (
        "user-namespace",
        replace(INSIDE, namespace=NamespaceFacts(1)),
        "problem",
        "has 1 users",
        "/etc/subuid",
    ),
    (
        "user-namespace",
        replace(INSIDE, wanted=Wanted()),
        "note",
        "KubeletInUserNamespace is off",
        "featureGates: {KubeletInUserNamespace: true}",
    ),
    ("runtime", INSIDE, "ok", "containerd 1.6.20", ""),
    ("runtime", replace(INSIDE, runtime=DOWN), "problem", "No such file", "in this namespace"),
    (
        "runtime",
        replace(INSIDE, runtime=DOWN, wanted=wanted(endpoint="process")),
        "note",
        "processes of this namespace",
        "",
    ),
    ("runtime-config", INSIDE, "ok", "not read", ""),
    ("cgroup-driver", INSIDE, "ok", "cgroupfs", ""),
    (
        "cgroup-driver",
        replace(INSIDE, wanted=wanted(cgroup_driver="systemd")),
        "problem",
        "makes no slices",
        "cgroupDriver: cgroupfs",
    ),
    (
        "cgroup-driver",
        replace(INSIDE, runtime=RuntimeFacts(cgroup_driver="systemd")),
        "problem",
        "makes no slices",
        "SystemdCgroup = false",
    ),
    ("network", INSIDE, "ok", "ready", ""),
    ("network", replace(INSIDE, runtime=DOWN), "note", "not known", ""),
    (
        "network",
        replace(INSIDE, runtime=RuntimeFacts(network_problem="cni config uninitialized")),
        "problem",
        "cni config uninitialized",
        "conf_dir",
    ),
    ("cgroups", INSIDE, "ok", "cgroup v2, delegated", ""),
    (
        "cgroups",
        inside(missing=frozenset({"cpu", "cpuset"})),
        "note",
        "not delegated: cpu, cpuset",
        "Delegate=cpu cpuset io memory pids",
    ),
    (
        "cgroups",
        inside(busy=frozenset({"cpu"})),
        "note",
        "processes are in",
        "--evacuate-cgroup2",
    ),
    ("cgroups", inside(denied="/sys/fs/cgroup"), "note", "/sys/fs/cgroup", "--cgroupns"),
    (
        "cgroups",
        replace(
            inside(denied="/sys/fs/cgroup/cpu"),
            cgroup_version=1,
            wanted=wanted(fail_cgroup_v1=False),
        ),
        "note",
        "/sys/fs/cgroup/cpu",
        "disable_cgroup = true",
    ),
    (
        "cgroups",
        replace(inside(denied="/sys/fs/cgroup/cpu"), cgroup_version=1),
        "problem",
        "failCgroupV1 is true",
        "failCgroupV1: false",
    ),
    ("swap", INSIDE, "ok", "off", ""),
    ("swap", replace(INSIDE, swaps=("/dev/sda2",)), "problem", "/dev/sda2", "failSwapOn: false"),
    (
        "swap",
        replace(INSIDE, swaps=("/dev/sda2",), wanted=wanted(fail_swap_on=False)),
        "note",
        "volumes in memory",
        "",
    ),
    ("kernel-modules", INSIDE, "ok", "overlay", ""),
    (
        "kernel-modules",
        replace(INSIDE, missing_modules=MODULES),
        "note",
        "overlay br_netfilter",
        "modprobe -a overlay br_netfilter",
    ),
    ("sysctls", INSIDE, "ok", "ip_forward", ""),
    ("sysctls", replace(INSIDE, sysctls={}), "note", "until the first pod", ""),
    ("security", INSIDE, "ok", "", ""),
    (
        "security",
        replace(INSIDE, security=Security(apparmor=True, apparmor_parser=True)),
        "note",
        "no profiles",
        "disable_apparmor = true",
    ),
    (
        "security",
        replace(INSIDE, security=Security(selinux="enforcing"), os=FEDORA),
        "problem",
        "SELinux",
        "container-selinux",
    ),
    ("init", replace(INSIDE, systemd=False), "ok", "units of the user", ""),
)


@pytest.mark.parametrize(
    ("name", "facts", "result", "message", "cure"),
    USER_CASES + INSIDE_CASES,
    ids=[f"{case[0]}-{n}" for n, case in enumerate(USER_CASES + INSIDE_CASES)],
)
def test_a_check_tells_what_differs_and_its_cure(
    name: str, facts: Facts, result: str, message: str, cure: str
) -> None:
    assert_told(facts, name, result, message, cure)


def test_every_check_has_a_case() -> None:
    assert {case[0] for case in USER_CASES} == set(USER_CHECKS)
    assert {case[0] for case in INSIDE_CASES} == set(NAMESPACE_CHECKS)


def test_root_of_a_machine_has_the_machines_checks_alone() -> None:
    assert checks_for(GOOD) is CHECKS
    assert set(checks_for(USER)) == {*CHECKS, *USER_CHECKS}
    assert set(checks_for(INSIDE)) == {*CHECKS, *NAMESPACE_CHECKS}


def test_what_is_prepared_has_no_finding_but_ok() -> None:
    assert [f.check for f in run_checks(USER) if f.result != "ok"] == ["root"]
    assert [f.check for f in run_checks(INSIDE) if f.result != "ok"] == []


def test_for_a_user_without_root_nothing_needs_an_installation() -> None:
    for _, facts, *_ in USER_CASES:
        assert [f.check for f in run_checks(facts) if f.by_install] == []


def test_no_installation_cures_anything_in_a_user_namespace() -> None:
    for _, facts, *_ in INSIDE_CASES:
        assert [f.check for f in run_checks(facts) if f.by_install] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("alice:100000:65536\nbob:165536:65536\n", 65536),
        ("alice:100000:1000\n1000:300000:5\n", 1005),
        ("bob:165536:65536\n", 0),
        ("", 0),
        ("alice\nalice:x:1\nalice:1:\n:1:1\n# alice:1:1\n", 0),
    ],
)
def test_subordinate_ids_are_those_of_the_users_name_and_number(text: str, count: int) -> None:
    assert subordinate_ids(text, "alice", 1000) == count
