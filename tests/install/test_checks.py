"""Every check, decided on facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubelet_trio.cri import v1
from kubelet_trio.install.checks import CHECKS, MODULES, PLUGINS, SYSCTLS, run_checks
from kubelet_trio.install.containerd import ContainerdFiles
from kubelet_trio.install.facts import CniFacts, Facts, Process, RuntimeFacts, Security, Wanted
from kubelet_trio.install.findings import OsRelease, parse_os_release, problems
from kubelet_trio.install.runtime import ask, ask_runtime
from kubelet_trio.testing import FakeRuntime

DEBIAN = parse_os_release('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n')
FEDORA = parse_os_release("ID=fedora\n# a comment\n\nID_LIKE=\n")
CONFIG = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/usr/lib/cni"\n'
# A machine on which everything is right.
GOOD = Facts(
    Wanted(),
    os=DEBIAN,
    controllers=frozenset({"cpu", "cpuset", "memory", "pids", "io"}),
    memory=4 << 30,
    free={"/var/lib/kubelet": 20 << 30},
    machine_id="0123456789abcdef0123456789abcdef",
    programs=frozenset({"mount", "umount", "iptables", "modprobe"}),
    sysctls=SYSCTLS,
    is_clock_synchronised=True,
    runtime=RuntimeFacts(name="containerd", version="1.6.20"),
    cni=CniFacts(("/etc/cni/net.d/10-net.conflist",), {"/usr/lib/cni": PLUGINS}),
    containerd=ContainerdFiles("1.6.20", CONFIG),
)
DOWN = RuntimeFacts(error="No such file or directory", is_down=True)
V1 = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer"})
SYSTEMD = Wanted(cgroup_driver="systemd")


def finding(facts: Facts, name: str) -> tuple[str, str, str]:
    (found,) = (f for f in run_checks(facts) if f.check == name)
    return found.result, found.message, "install" if found.by_install else found.cure


def assert_told(facts: Facts, name: str, result: str, message: str, cure: str) -> None:
    """Assert a check's result, and parts of its message and cure; "": it has no cure."""
    found = finding(facts, name)
    assert found[0] == result
    assert message in found[1]
    assert cure in found[2]
    assert bool(cure) == bool(found[2])


def test_a_good_machine_has_no_finding_but_ok() -> None:
    findings = run_checks(GOOD)
    assert {f.check: f.message for f in findings if f.result != "ok"} == {}
    assert [f.check for f in findings] == list(CHECKS)


# Check, the facts that differ, result, a part of the message, a part of the cure.
CASES: tuple[tuple[str, Facts, str, str, str], ...] = (
    (
        "configuration",
        replace(GOOD, wanted=Wanted(("a: bad",))),
        "problem",
        "a: bad",
        "--config",
    ),
    ("root", replace(GOOD, is_root=False), "problem", "as root", "sudo"),
    (
        "other-kubelet",
        replace(GOOD, processes=(Process(7, "kubelet", ("/usr/bin/kubelet", "--v=2")),)),
        "problem",
        "kubelet (pid 7)",
        "systemctl disable --now kubelet",
    ),
    (
        "other-kubelet",
        replace(
            GOOD,
            systemd=False,
            processes=(Process(9, "python3", ("python3", "/opt/bin/kubelet-trio", "run")),),
        ),
        "problem",
        "pid 9",
        "kill 9",
    ),
    (
        "other-kubelet",
        replace(
            GOOD,
            agent_pid=9,
            processes=(
                Process(9, "kubelet-trio", ("python3", "/opt/bin/kubelet-trio", "run")),
                Process(10, "vi", ("vi", "kubelet-trio", "run")),
                Process(11, "kubelet-trio", ("python3", "/opt/bin/kubelet-trio", "pods")),
            ),
        ),
        "ok",
        "",
        "",
    ),
    (
        "runtime",
        replace(GOOD, runtime=DOWN),
        "problem",
        "/run/containerd/containerd.sock: No such file",
        "systemctl enable --now containerd",
    ),
    (
        "runtime",
        replace(GOOD, runtime=DOWN, containerd=ContainerdFiles()),
        "problem",
        "no container runtime answers",
        "apt-get install -y containerd runc containernetworking-plugins",
    ),
    (
        "runtime",
        replace(GOOD, runtime=DOWN, containerd=ContainerdFiles(), os=FEDORA),
        "problem",
        "",
        "dnf install -y containerd",
    ),
    (
        "runtime",
        replace(GOOD, runtime=RuntimeFacts(error="unknown service")),
        "problem",
        "does not serve CRI v1: unknown service",
        "1.6 or later",
    ),
    (
        "runtime",
        replace(
            GOOD,
            runtime=RuntimeFacts(error="unknown service"),
            containerd=ContainerdFiles("1.7.1", 'disabled_plugins = ["cri"]\n'),
        ),
        "problem",
        "disables it",
        "install",
    ),
    (
        "runtime",
        replace(GOOD, wanted=Wanted(endpoint="process")),
        "note",
        "without images",
        "",
    ),
    (
        "runtime-config",
        replace(GOOD, containerd=ContainerdFiles("1.6.20", "a = [")),
        "problem",
        "/etc/containerd/config.toml: ",
        "mend",
    ),
    (
        "runtime-config",
        replace(GOOD, containerd=ContainerdFiles("1.6.20", "[plugins.cri]\nx = 1\n")),
        "problem",
        "version 1",
        "mend",
    ),
    (
        "runtime-config",
        replace(GOOD, containerd=ContainerdFiles("1.7.1", 'disabled_plugins = ["cri"]\n')),
        "problem",
        "disables the CRI plugin",
        "install",
    ),
    (
        "cgroup-driver",
        replace(GOOD, wanted=SYSTEMD),
        "problem",
        "agent uses systemd, the runtime cgroupfs",
        "install",
    ),
    (
        "cgroup-driver",
        replace(GOOD, wanted=SYSTEMD, runtime=RuntimeFacts(cgroup_driver="cgroupfs")),
        "ok",
        "takes cgroupfs",
        "",
    ),
    (
        "cgroup-driver",
        replace(GOOD, wanted=Wanted(endpoint="unix:///run/crio/crio.sock")),
        "note",
        "does not say",
        "",
    ),
    (
        "network",
        replace(GOOD, cni=CniFacts(("a.conf",))),
        "problem",
        "bridge, host-local, loopback",
        "apt-get install -y containernetworking-plugins",
    ),
    (
        "network",
        replace(GOOD, containerd=ContainerdFiles("1.6.20", None)),
        "problem",
        "in /opt/cni/bin, but they are in /usr/lib/cni",
        "install",
    ),
    (
        "network",
        replace(GOOD, cni=replace(GOOD.cni, configs=())),
        "problem",
        "/etc/cni/net.d",
        "install",
    ),
    (
        "network",
        replace(GOOD, runtime=RuntimeFacts(network_problem="cni broken")),
        "problem",
        "cni broken",
        "10-net.conflist",
    ),
    (
        "pause-image",
        replace(GOOD, runtime=RuntimeFacts(sandbox_image="pause:3.6")),
        "note",
        "pause:3.6 is not on this machine",
        "",
    ),
    (
        "pause-image",
        replace(GOOD, runtime=RuntimeFacts(sandbox_image="pause:3", has_sandbox_image=True)),
        "ok",
        "pause:3",
        "",
    ),
    (
        "cgroups",
        replace(GOOD, controllers=frozenset({"cpu", "cpuset", "pids"})),
        "problem",
        "lacks the controllers memory",
        "cgroup_enable=memory",
    ),
    (
        "cgroups",
        replace(GOOD, cgroup_version=1, controllers=V1),
        "problem",
        "failCgroupV1",
        "failCgroupV1: false",
    ),
    (
        "cgroups",
        replace(GOOD, cgroup_version=1, controllers=V1, wanted=Wanted(fail_cgroup_v1=False)),
        "note",
        "cgroup v1",
        "",
    ),
    (
        "ports",
        replace(GOOD, busy_ports={10250: "kubelet (pid 7)"}),
        "problem",
        "0.0.0.0:10250 (port) is used by kubelet (pid 7)",
        "stop",
    ),
    ("swap", replace(GOOD, swaps=("/dev/sda2",)), "problem", "/dev/sda2", "swapoff -a"),
    (
        "swap",
        replace(GOOD, swaps=("/dev/sda2",), wanted=Wanted(fail_swap_on=False)),
        "note",
        "/dev/sda2",
        "",
    ),
    ("clock", replace(GOOD, is_clock_synchronised=False), "note", "not synch", "timesyncd"),
    (
        "clock",
        replace(GOOD, is_clock_synchronised=False, os=FEDORA),
        "note",
        "",
        "dnf install -y chrony",
    ),
    ("clock", replace(GOOD, is_clock_synchronised=None), "note", "does not say", ""),
    ("kernel-modules", replace(GOOD, missing_modules=MODULES), "problem", "overlay", "install"),
    (
        "kernel-modules",
        replace(GOOD, missing_modules=("br_netfilter",)),
        "note",
        "br_netfilter",
        "install",
    ),
    (
        "sysctls",
        replace(GOOD, sysctls={**SYSCTLS, "net.ipv4.ip_forward": "0"}),
        "problem",
        "net.ipv4.ip_forward is 0",
        "install",
    ),
    (
        "sysctls",
        replace(GOOD, sysctls={"net.ipv4.ip_forward": "1"}),
        "note",
        "bridge-nf-call-iptables is not there",
        "install",
    ),
    (
        "programs",
        replace(GOOD, programs=frozenset({"mount"})),
        "problem",
        "umount, iptables",
        "apt-get install -y mount iptables",
    ),
    (
        "programs",
        replace(
            GOOD,
            programs=frozenset({"mount", "umount", "iptables"}),
            missing_modules=("br_netfilter",),
        ),
        "note",
        "modprobe",
        "kmod",
    ),
    ("disk", replace(GOOD, free={"/var/lib/kubelet": 1 << 30}), "note", "1.0 GiB", ""),
    ("memory", replace(GOOD, memory=200 << 20), "note", "only 200 MiB", ""),
    ("hostname", replace(GOOD, hostname="my_node"), "problem", "'my_node'", "hostnamectl"),
    (
        "hostname",
        replace(GOOD, hostname="my_node", wanted=Wanted(hostname_override="Node-1")),
        "ok",
        "node-1",
        "",
    ),
    (
        "hostname",
        replace(GOOD, is_hostname_resolved=False),
        "note",
        "cannot be looked up",
        "127.0.1.1 node",
    ),
    ("machine-id", replace(GOOD, machine_id=""), "note", "missing", "systemd-machine-id-setup"),
    (
        "security",
        replace(GOOD, security=Security(apparmor=True)),
        "problem",
        "apparmor_parser is missing",
        "apt-get install -y apparmor",
    ),
    (
        "security",
        replace(GOOD, security=Security(selinux="enforcing"), os=FEDORA),
        "problem",
        "SELinux",
        "dnf install -y container-selinux",
    ),
    (
        "security",
        replace(GOOD, security=Security(apparmor=True, apparmor_parser=True)),
        "ok",
        "AppArmor",
        "",
    ),
    (
        "firewall",
        replace(GOOD, processes=(Process(5, "firewalld"),)),
        "note",
        "firewalld",
        "firewall-cmd",
    ),
    ("init", replace(GOOD, systemd=False), "note", "systemd does not run", "service manager"),
)


@pytest.mark.parametrize(
    ("name", "facts", "result", "message", "cure"),
    CASES,
    ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)],
)
def test_a_check_tells_what_is_wrong_and_its_cure(
    name: str, facts: Facts, result: str, message: str, cure: str
) -> None:
    assert_told(facts, name, result, message, cure)


def test_every_check_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(CHECKS)


def test_problems_leave_out_what_is_to_be_ignored() -> None:
    wanted = Wanted(("a: bad",))
    findings = run_checks(replace(GOOD, wanted=wanted, swaps=("/dev/sda2",)))
    assert [f.check for f in problems(findings)] == ["configuration", "swap"]
    assert [f.check for f in problems(findings, ["swap"])] == ["configuration"]
    assert problems(findings, ["all"]) == []


def test_an_unknown_distribution_gets_a_sentence_for_a_cure() -> None:
    assert OsRelease().install("runc").startswith("install runc with your")


async def test_the_runtime_is_asked_for_what_the_checks_need() -> None:
    runtime = FakeRuntime()
    facts = await ask(runtime)
    assert (facts.error, facts.network_problem) == ("", "")
    assert facts.name
    assert facts.cgroup_driver == "cgroupfs"
    for config in (None, v1.RuntimeConfigResponse()):
        runtime.config = config
        assert (await ask(runtime)).cgroup_driver == ""


def test_a_socket_that_is_not_there_is_a_runtime_that_is_down() -> None:
    facts = ask_runtime("unix:///nonexistent/containerd.sock")
    assert facts.is_down
    assert "No such file" in facts.error
    assert ask_runtime("process") == RuntimeFacts()
