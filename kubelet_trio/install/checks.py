"""The checks of a machine: each decides on the gathered facts alone.

The model is kubeadm's preflight (cmd/kubeadm/app/preflight), with what a node agent itself needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kubelet_trio.cgroups import V2_CONTROLLERS
from kubelet_trio.install.containerd import (
    ContainerdConfigError,
    CriSettings,
    effective,
    main_file,
)
from kubelet_trio.install.facts import Facts
from kubelet_trio.install.findings import Finding
from kubelet_trio.install.rootless import NAMESPACE_CHECKS, USER_CHECKS, Check, Told

MODULES = ("overlay", "br_netfilter")
SYSCTLS = {
    "net.ipv4.ip_forward": "1",  # pods' packets leave the machine
    "net.bridge.bridge-nf-call-iptables": "1",  # services and hostPorts between pods of one bridge
    "net.bridge.bridge-nf-call-ip6tables": "1",
}
# Directories of CNI plugins: upstream's, Debian's, Fedora's.
BIN_DIRS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
PLUGINS = frozenset({"bridge", "host-local", "loopback"})
# Space below which the agent's own defaults evict pods (hard eviction: 10 %), or soon would.
MIN_FREE = 2 * 1024**3
MIN_MEMORY = 512 * 1024**2
# Controllers that the agent writes limits to, on version 1.
_V1_CONTROLLERS = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer"})
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_BY_INSTALL = "kubelet-trio install"


def run_checks(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, in a fixed order."""
    findings = []
    for name, check in checks_for(facts).items():
        result, message, cure = (*check(facts), "")[:3]
        by_install = cure == _BY_INSTALL
        assert result in ("ok", "note", "problem")
        findings.append(Finding(name, result, message, cure, by_install))
    return findings


def checks_for(facts: Facts) -> Mapping[str, Check]:
    """Return the checks by name: the machine's, or with those for a node without root."""
    if facts.namespace is not None:
        return {**CHECKS, **NAMESPACE_CHECKS}
    return CHECKS if facts.is_root else {**CHECKS, **USER_CHECKS}


def _configuration(facts: Facts) -> Told:
    if facts.wanted.problems:
        message = "; ".join(facts.wanted.problems)
        return "problem", message, "mend the file, or name another one with --config"
    return "ok", "the configuration is valid"


def _root(_facts: Facts) -> Told:
    return "ok", "run by root"  # others have a check of their own


def _other_kubelet(facts: Facts) -> Told:
    others = [
        process
        for process in facts.processes
        if process.pid != facts.agent_pid and _is_kubelet(process.arguments, process.name)
    ]
    if not others:
        return "ok", "no other kubelet runs"
    named = ", ".join(map(str, others))
    cure = "systemctl disable --now kubelet" if facts.systemd else f"kill {others[0].pid}"
    return "problem", f"another kubelet manages pods of this machine: {named}", cure


def _is_kubelet(arguments: Sequence[str], name: str) -> bool:
    if not arguments:  # a thread of the kernel
        return False
    programs = [argument.rpartition("/")[2] for argument in arguments]
    if programs[0].startswith("python"):  # a script's interpreter
        programs = programs[1:]
    is_agent = programs[:1] == ["kubelet-trio"] and "run" in programs[1:4]
    return is_agent or "kubelet" in (name, *programs[:1])


def _runtime(facts: Facts) -> Told:
    runtime, socket = facts.runtime, facts.wanted.socket
    if facts.wanted.endpoint == "process":
        return "note", "pods run as processes of this machine, without images or isolation"
    if not runtime.error:
        return "ok", f"{runtime.name} {runtime.version} answers at {socket}"
    if not runtime.is_down:
        message = f"the runtime at {socket} does not serve CRI v1: {runtime.error}"
        if _cri(facts).is_disabled:
            return "problem", f"{message}; /etc/containerd/config.toml disables it", _BY_INSTALL
        return "problem", message, "update it: containerd 1.6 or later, CRI-O 1.26 or later"
    if facts.containerd.is_installed and "containerd" in socket:
        message = f"containerd {facts.containerd.version} does not run: {socket}: {runtime.error}"
        how = "systemctl enable --now containerd" if facts.systemd else "start containerd"
        return "problem", message, how
    message = f"no container runtime answers at {socket}: {runtime.error}"
    return "problem", message, facts.os.install("containerd", "runc", "containernetworking-plugins")


def _cri(facts: Facts) -> CriSettings:
    try:
        return effective(facts.containerd)
    except ContainerdConfigError:
        return CriSettings()


def _uses_containerd(facts: Facts) -> bool:
    return facts.containerd.is_installed and "containerd" in facts.wanted.socket


def _runtime_config(facts: Facts) -> Told:
    if not _uses_containerd(facts):
        return "ok", "containerd is not used"
    try:
        main = main_file(facts.containerd)
        effective(facts.containerd)
    except ContainerdConfigError as exc:
        return "problem", str(exc), "mend the file"
    if _cri(facts).is_disabled and main != facts.containerd.main:
        return "problem", "/etc/containerd/config.toml disables the CRI plugin", _BY_INSTALL
    return "ok", "/etc/containerd/config.toml is valid"


def _cgroup_driver(facts: Facts) -> Told:
    wanted, actual = facts.wanted.cgroup_driver, facts.runtime.cgroup_driver
    if not actual and _uses_containerd(facts):
        actual = "systemd" if _cri(facts).systemd_cgroup else "cgroupfs"
    if not actual:
        return "note", f"the runtime does not say its cgroup driver; the agent uses {wanted}"
    if actual == wanted:
        return "ok", f"agent and runtime use {actual}"
    if facts.runtime.cgroup_driver:  # it says so by RuntimeConfig, and the agent takes it over
        return "ok", f"the agent takes {actual} from the runtime"
    message = f"the agent uses {wanted}, the runtime {actual}: limits of pods would not hold"
    return "problem", message, _BY_INSTALL


def _network(facts: Facts) -> Told:
    cri = _cri(facts)
    where = cri.bin_dir if _uses_containerd(facts) else ""
    found = find_plugins(facts, where)
    if found is None:
        lacks = ", ".join(sorted(PLUGINS))
        cure = facts.os.install("containernetworking-plugins")
        return "problem", f"no directory has the network plugins {lacks}", cure
    if where and where != found:
        message = f"containerd looks for network plugins in {where}, but they are in {found}"
        return "problem", message, _BY_INSTALL
    if not facts.cni.configs:
        message = f"no pod network is configured in {cri.conf_dir}"
        return "problem", message, _BY_INSTALL
    if facts.runtime.network_problem:
        message = f"the runtime's network is not ready: {facts.runtime.network_problem}"
        return "problem", message, f"look at {facts.cni.configs[0]}"
    return "ok", f"{facts.cni.configs[0]}, plugins in {found}"


def find_plugins(facts: Facts, first: str = "") -> str | None:
    """Return the directory with the plugins of a bridge network, `first` if it has them."""
    candidates = (first, *BIN_DIRS)
    return next((d for d in candidates if facts.cni.plugins.get(d, frozenset()) >= PLUGINS), None)


def _pause_image(facts: Facts) -> Told:
    image = facts.runtime.sandbox_image
    if not image:
        return "ok", "the runtime does not name an image of sandboxes"
    if facts.runtime.has_sandbox_image:
        return "ok", f"{image} is on this machine"
    return "note", f"{image} is not on this machine: the first pod pulls it"


def _cgroups(facts: Facts) -> Told:
    version = facts.cgroup_version
    lacking = (V2_CONTROLLERS if version == 2 else _V1_CONTROLLERS) - facts.controllers
    if lacking:
        message = f"cgroup v{version} lacks the controllers {', '.join(sorted(lacking))}"
        cure = "boot with cgroup_enable=memory" if "memory" in lacking else "enable them"
        return "problem", message, cure
    if version == 2:
        return "ok", "cgroup v2"
    if facts.wanted.fail_cgroup_v1:
        message = "cgroup v1, and failCgroupV1 is true: the agent would not start"
        return "problem", message, "failCgroupV1: false, or boot with cgroup v2"
    return "note", "cgroup v1: Kubernetes has deprecated it"


def _ports(facts: Facts) -> Told:
    busy = [
        f"{host}:{port} ({field}) is used by {facts.busy_ports[port]}"
        for field, host, port in facts.wanted.ports
        if port in facts.busy_ports
    ]
    if busy:
        return "problem", "; ".join(busy), "stop that program, or set another port"
    return "ok", ", ".join(str(port) for _, _, port in facts.wanted.ports) + " are free"


def _swap(facts: Facts) -> Told:
    if not facts.swaps:
        return "ok", "swap is off"
    named = ", ".join(facts.swaps)
    if facts.wanted.fail_swap_on:
        message = f"swap is on ({named}), and failSwapOn is true: the agent would not start"
        return "problem", message, "swapoff -a and remove it from /etc/fstab, or failSwapOn: false"
    return "note", f"swap is on ({named}); pods use it only with memorySwap"


def _clock(facts: Facts) -> Told:
    if facts.is_clock_synchronised is None:
        return "note", "the kernel does not say whether the clock is synchronised"
    if facts.is_clock_synchronised:
        return "ok", "the clock is synchronised"
    message = "the clock is not synchronised: certificates and leases depend on it"
    return "note", message, facts.os.install("systemd-timesyncd")


def _kernel_modules(facts: Facts) -> Told:
    if facts.missing_modules:
        message = f"kernel modules are not loaded: {' '.join(facts.missing_modules)}"
        # Without br_netfilter only services between pods of one bridge are missing.
        result = "problem" if "overlay" in facts.missing_modules else "note"
        return result, message, _BY_INSTALL
    return "ok", ", ".join(MODULES)


def _sysctls(facts: Facts) -> Told:
    wrong = [
        f"{name} is {facts.sysctls.get(name, 'not there')}"
        for name, value in SYSCTLS.items()
        if facts.sysctls.get(name) != value
    ]
    if not wrong:
        return "ok", ", ".join(SYSCTLS)
    is_bridge_only = facts.sysctls.get("net.ipv4.ip_forward") == "1"
    return ("note" if is_bridge_only else "problem"), "; ".join(wrong), _BY_INSTALL


def _programs(facts: Facts) -> Told:
    packages = {"mount": "mount", "umount": "mount", "iptables": "iptables"}
    lacking = [name for name in packages if name not in facts.programs]
    if lacking:
        cure = facts.os.install(*dict.fromkeys(packages[name] for name in lacking))
        return "problem", f"programs are missing: {', '.join(lacking)}", cure
    if facts.missing_modules and "modprobe" not in facts.programs:
        return "note", "there is no modprobe: modules are not loaded", facts.os.install("kmod")
    return "ok", ", ".join(packages)


def _disk(facts: Facts) -> Told:
    short = [
        f"{path} has {free / 1024**3:.1f} GiB free"
        for path, free in facts.free.items()
        if free < MIN_FREE
    ]
    if short:
        return "note", f"{'; '.join(short)}: images need more, and pods are evicted below 10 %"
    return "ok", ", ".join(f"{p} has {f / 1024**3:.0f} GiB" for p, f in facts.free.items())


def _memory(facts: Facts) -> Told:
    size = f"{facts.memory / 1024**2:.0f} MiB"
    return ("note", f"only {size}") if facts.memory < MIN_MEMORY else ("ok", size)


def _hostname(facts: Facts) -> Told:
    name = (facts.wanted.hostname_override or facts.hostname).strip().lower()
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):
        message = f"{name!r} is no valid name of a node: lower-case letters, digits, - and ."
        return "problem", message, "hostnamectl set-hostname NAME, or --hostname-override"
    if not facts.is_hostname_resolved:
        return "note", f"{name} cannot be looked up", f"echo 127.0.1.1 {name} >>/etc/hosts"
    return "ok", name


def _machine_id(facts: Facts) -> Told:
    if re.fullmatch(r"[0-9a-f]{32}", facts.machine_id):
        return "ok", facts.machine_id
    message = "/etc/machine-id is missing or empty: the node has no ID of its own"
    return "note", message, "systemd-machine-id-setup"


def _security(facts: Facts) -> Told:
    security = facts.security
    if security.apparmor and not security.apparmor_parser:
        message = "AppArmor is on, but apparmor_parser is missing: no container would start"
        return "problem", message, facts.os.install("apparmor")
    if security.selinux == "enforcing" and not security.container_selinux:
        message = "SELinux is enforcing without a policy for containers"
        return "problem", message, facts.os.install("container-selinux")
    named = ["AppArmor"] if security.apparmor else []
    named += [f"SELinux ({security.selinux})"] if security.selinux else []
    return "ok", " and ".join(named) or "neither AppArmor nor SELinux"


def _firewall(facts: Facts) -> Told:
    if any(process.name == "firewalld" for process in facts.processes):
        message = "firewalld runs: it drops packets of pods that no zone trusts"
        return "note", message, "firewall-cmd --permanent --zone=trusted --add-source=POD_CIDR"
    return "ok", "no firewalld"


def _init(facts: Facts) -> Told:
    if facts.systemd:
        return "ok", "systemd"
    message = "systemd does not run here: nothing starts or watches the agent"
    return "note", message, "start `kubelet-trio run` by your own service manager"


CHECKS: dict[str, Check] = {
    "configuration": _configuration,
    "root": _root,
    "other-kubelet": _other_kubelet,
    "runtime": _runtime,
    "runtime-config": _runtime_config,
    "cgroup-driver": _cgroup_driver,
    "network": _network,
    "pause-image": _pause_image,
    "cgroups": _cgroups,
    "ports": _ports,
    "swap": _swap,
    "clock": _clock,
    "kernel-modules": _kernel_modules,
    "sysctls": _sysctls,
    "programs": _programs,
    "disk": _disk,
    "memory": _memory,
    "hostname": _hostname,
    "machine-id": _machine_id,
    "security": _security,
    "firewall": _firewall,
    "init": _init,
}
