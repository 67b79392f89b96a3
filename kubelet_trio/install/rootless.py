"""The checks for a node without root: by an ordinary user, and inside their user namespace.

They take the place of the machine's checks of the same name, or are added: docs/rootless.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kubelet_trio.install.facts import Facts, NamespaceFacts, UserFacts

# What a check finds: result, message, and cure or "install".
Told = tuple[str, str] | tuple[str, str, str]
Check = Callable[[Facts], Told]

PAGE = "docs/rootless.md"
# The IDs that images may have files of: up to nobody's, 65534.
MIN_IDS = 65536
_DELEGATED = frozenset({"cpu", "cpuset", "io", "memory", "pids"})
_DROP_IN = "/etc/systemd/system/user@.service.d/delegate.conf"
_CURE_DELEGATE = (
    f"as root: [Service] Delegate={' '.join(sorted(_DELEGATED))} in {_DROP_IN}, then reboot"
)
# Settings by which an administrator keeps users from making namespaces, and the value that does.
NAMESPACE_SYSCTLS = {
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}


def _user(facts: Facts) -> UserFacts:
    return facts.user or UserFacts()


def _namespace(facts: Facts) -> NamespaceFacts:
    return facts.namespace or NamespaceFacts()


# An ordinary user, before the namespace is made


def _no_root(facts: Facts) -> Told:
    if facts.wanted.endpoint == "process":
        return "ok", "the process runtime needs no root"
    message = "a node agent with a container runtime runs as root, of a user namespace at least"
    return "problem", message, f"sudo kubelet-trio ..., or without root: {PAGE}"


def _may_make_namespaces(facts: Facts) -> Told:
    for name, value in NAMESPACE_SYSCTLS.items():
        if _user(facts).sysctls.get(name) != value:
            continue
        if name == "kernel.apparmor_restrict_unprivileged_userns":
            message = f"{name} is 1: only programs with an AppArmor profile make user namespaces"
            return "note", message, "as root: a profile for rootlesskit, or sysctl -w ...=0"
        enough = "28633" if name == "user.max_user_namespaces" else "1"
        return "problem", f"{name} is {value}", f"as root: sysctl -w {name}={enough}"
    return "ok", "users may make user namespaces"


def _subordinate_ids(facts: Facts) -> Told:
    user = _user(facts)
    few = [
        f"/etc/{name} gives {count or 'no'} IDs"
        for name, count in (("subuid", user.subuids), ("subgid", user.subgids))
        if count < MIN_IDS
    ]
    if few:
        named = "--add-subuids 200000-265535 --add-subgids 200000-265535"
        cure = f"as root: usermod {named} {user.name or 'USER'}, with a range that nobody has"
        return "problem", f"{' and '.join(few)} to {user.name or 'this user'}", cure
    return "ok", f"{user.subuids} users and {user.subgids} groups"


def _rootless_programs(facts: Facts) -> Told:
    packages = {"rootlesskit": "rootlesskit", "newuidmap": "uidmap", "newgidmap": "uidmap"}
    lacking = [name for name in packages if name not in facts.programs]
    if not {"slirp4netns", "pasta"} & facts.programs:
        lacking.append("slirp4netns")
    if not lacking:
        return "ok", "rootlesskit, newuidmap, and a network for the namespace"
    wanted = dict.fromkeys(packages.get(name, name) for name in lacking)
    cure = facts.os.install(*wanted)
    return "problem", f"programs are missing: {', '.join(lacking)}", cure


def _delegation(facts: Facts) -> Told:
    if facts.cgroup_version == 1:
        message = "cgroup v1 cannot be delegated: pods would have no limits"
        return "note", message, f"boot with cgroup v2, or disable_cgroup = true: {PAGE}"
    given = _user(facts).delegated
    if given is None:
        message = "systemd does not run a session of this user: nothing is delegated to them"
        return "note", message, f"as root: loginctl enable-linger {_user(facts).name or 'USER'}"
    if lacking := _DELEGATED - given:
        message = f"systemd does not delegate {', '.join(sorted(lacking))} to this user"
        return "note", message, _CURE_DELEGATE
    return "ok", ", ".join(sorted(_DELEGATED))


def _later(_facts: Facts) -> Told:
    return "ok", f"looked at inside of the user namespace: {PAGE}"


def _own_runtime(facts: Facts) -> Told:
    if facts.wanted.endpoint == "process":
        return "note", "pods run as processes of this machine, without images or isolation"
    return _later(facts)


# In the namespace


def _namespace_root(_facts: Facts) -> Told:
    return "ok", "root of a user namespace"


def _user_namespace(facts: Facts) -> Told:
    users = _namespace(facts).users
    if users < MIN_IDS:
        message = (
            f"this user namespace has {users} users: images with files of others do not unpack"
        )
        return "problem", message, f"more IDs in /etc/subuid and /etc/subgid: {PAGE}"
    if not facts.wanted.has_user_namespace_gate:
        message = "the gate KubeletInUserNamespace is off: what is left out is logged as a warning"
        return "note", message, "featureGates: {KubeletInUserNamespace: true}"
    return "ok", f"{users} users, and KubeletInUserNamespace is on"


def _runtime(facts: Facts) -> Told:
    runtime = facts.runtime
    if facts.wanted.endpoint == "process":
        return "note", "pods run as processes of this namespace, without images or isolation"
    if not runtime.error:
        return "ok", f"{runtime.name} {runtime.version} answers at {facts.wanted.socket}"
    message = f"no container runtime answers at {facts.wanted.socket}: {runtime.error}"
    return "problem", message, f"start it in this namespace: {PAGE}"


def _runtime_config(_facts: Facts) -> Told:
    return "ok", "not read: a runtime without root has a file of its own"


def _cgroup_driver(facts: Facts) -> Told:
    if "systemd" in (facts.wanted.cgroup_driver, facts.runtime.cgroup_driver):
        message = "the machine's systemd makes no slices for a user namespace"
        return "problem", message, "cgroupDriver: cgroupfs, and SystemdCgroup = false in containerd"
    return "ok", "cgroupfs"


def _network(facts: Facts) -> Told:
    problem = facts.runtime.network_problem
    if problem:
        message = f"the runtime's network is not ready: {problem}"
        return (
            "problem",
            message,
            f"a configuration in its conf_dir, plugins in its bin_dir: {PAGE}",
        )
    if facts.runtime.error:
        return "note", "not known: the runtime does not answer"
    return "ok", "the runtime's network is ready"


def _cgroups(facts: Facts) -> Told:
    cgroups = _namespace(facts).cgroups
    if facts.cgroup_version == 1 and facts.wanted.fail_cgroup_v1:
        message = "cgroup v1, and failCgroupV1 is true: the agent would not start"
        return "problem", message, "failCgroupV1: false, or boot with cgroup v2"
    if cgroups.denied:
        message = f"no cgroup can be made in {cgroups.denied}: pods have no limits"
        if facts.cgroup_version == 1:
            return (
                "note",
                message,
                "boot with cgroup v2; until then disable_cgroup = true in containerd",
            )
        return "note", message, "rootlesskit --cgroupns in a unit with Delegate=yes"
    if cgroups.missing:
        message = (
            f"not delegated: {', '.join(sorted(cgroups.missing))}: pods are not limited by them"
        )
        return "note", message, _CURE_DELEGATE
    if cgroups.busy:
        message = "processes are in the delegated cgroup itself: it passes no controller to pods"
        return "note", message, "rootlesskit --pidns --cgroupns --evacuate-cgroup2=node"
    return "ok", f"cgroup v{facts.cgroup_version}, delegated"


def _swap(facts: Facts) -> Told:
    if not facts.swaps:
        return "ok", "swap is off"
    named = ", ".join(facts.swaps)
    if facts.wanted.fail_swap_on:
        message = f"swap is on ({named}), and failSwapOn is true: the agent would not start"
        return "problem", message, "failSwapOn: false"
    return "note", f"swap is on ({named}): volumes in memory may be swapped to disk"


def _kernel_modules(facts: Facts) -> Told:
    if not facts.missing_modules:
        return "ok", "overlay, br_netfilter"
    named = " ".join(facts.missing_modules)
    # Without overlay the snapshotter `native` does.
    return "note", f"kernel modules are not loaded: {named}", f"as root: modprobe -a {named}"


def _sysctls(facts: Facts) -> Told:
    if facts.sysctls.get("net.ipv4.ip_forward") == "1":
        return "ok", "net.ipv4.ip_forward"
    # CNI's bridge sets it in this network namespace when it makes the gateway.
    return "note", "net.ipv4.ip_forward is 0 in this namespace until the first pod"


def _security(facts: Facts) -> Told:
    if facts.security.apparmor:
        message = "AppArmor is on: containers in a user namespace have no profiles of it"
        return "note", message, "disable_apparmor = true in containerd"
    if facts.security.selinux == "enforcing" and not facts.security.container_selinux:
        message = "SELinux is enforcing without a policy for containers"
        return "problem", message, facts.os.install("container-selinux")
    return "ok", "no AppArmor"


def _init(_facts: Facts) -> Told:
    return "ok", "units of the user start the agent, or something else does"


NAMESPACE_CHECKS: Mapping[str, Check] = {
    "root": _namespace_root,
    "user-namespace": _user_namespace,
    "runtime": _runtime,
    "runtime-config": _runtime_config,
    "cgroup-driver": _cgroup_driver,
    "network": _network,
    "cgroups": _cgroups,
    "swap": _swap,
    "kernel-modules": _kernel_modules,
    "sysctls": _sysctls,
    "security": _security,
    "init": _init,
}

USER_CHECKS: Mapping[str, Check] = {
    "root": _no_root,
    "user-namespaces": _may_make_namespaces,
    "subordinate-ids": _subordinate_ids,
    "rootless-programs": _rootless_programs,
    "delegation": _delegation,
    "runtime": _own_runtime,
    # The machine's own are root's.
    "runtime-config": _later,
    "cgroup-driver": _later,
    "network": _later,
    "pause-image": _later,
    "sysctls": _later,
    "security": _later,
    # As in the namespace: none of it is for an installation to cure.
    "kernel-modules": _kernel_modules,
    "swap": _swap,
}
