"""The files of an installation: which this machine needs, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.install.checks import BIN_DIRS, MODULES, SYSCTLS, find_plugins
from kubelet_trio.install.cni import CONFLIST, conflist, parse_pod_cidr
from kubelet_trio.install.containerd import (
    CONFIG,
    DROP_IN,
    ContainerdFiles,
    drop_in,
    effective,
    main_file,
)
from kubelet_trio.install.facts import Facts

KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
MANIFESTS = "/etc/kubernetes/manifests"
UNIT = "/etc/systemd/system/kubelet-trio.service"
# Where packages install the same unit.
PACKAGED_UNITS = ("/usr/lib/systemd/system/kubelet-trio.service",)
SYSCTL_FILE = "/etc/sysctl.d/60-kubelet-trio.conf"
MODULES_FILE = "/etc/modules-load.d/kubelet-trio.conf"
PROGRAM = "/usr/bin/kubelet-trio"
POD_CIDR = "10.86.0.0/16"


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; an installation remembers it for the next one."""

    pod_cidr: str = POD_CIDR
    pause_image: str = ""  # empty: the runtime's own
    program: str = PROGRAM


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file as it should be. `edits` is whether it is a changed form of the user's own file."""

    path: str
    text: str
    why: str
    edits: bool = False


def unit_text(program: str = PROGRAM) -> str:
    """Return the systemd unit that starts `program`. Blocks; it reads the package's file."""
    text = (Path(__file__).parent / "kubelet-trio.service").read_text()
    return text.replace(f"={PROGRAM} run", f"={program} run")


def wanted_files(
    facts: Facts, options: Options, unit: str, present: Mapping[str, str | None]
) -> list[WantedFile]:
    """Return the files that this machine needs.

    Args:
        facts: of the machine.
        options: of this installation.
        unit: the text of the systemd unit.
        present: the texts of the files that may matter; None or missing: there is none.

    Raises:
        PodCidrError: the pods' addresses cannot be used.
        ContainerdConfigError: containerd's configuration cannot be changed safely.
    """
    found = [WantedFile(KUBELET_CONFIG, _kubelet_config(facts), "the agent's configuration")]
    found += _network(facts, options)
    if facts.containerd.is_installed and "containerd" in facts.wanted.socket:
        found += _containerd(facts, options)
    found.append(WantedFile(MODULES_FILE, _modules(), "kernel modules to load at boot"))
    found.append(WantedFile(SYSCTL_FILE, _sysctls(), "kernel settings of pod networks"))
    if not any(present.get(path) is not None for path in PACKAGED_UNITS):
        found.append(WantedFile(UNIT, unit, "the systemd unit"))
    return found


def _kubelet_config(facts: Facts) -> str:
    lines = [
        "# Written by `kubelet-trio install`, which does not change it once you have.",
        "apiVersion: kubelet.config.k8s.io/v1beta1",
        "kind: KubeletConfiguration",
        "# The manifests of this node's pods.",
        f"staticPodPath: {MANIFESTS}",
        f"containerRuntimeEndpoint: {facts.wanted.endpoint}",
        f"cgroupDriver: {'systemd' if facts.systemd else 'cgroupfs'}",
    ]
    if facts.cgroup_version == 1:
        lines += ["# This machine has cgroup v1.", "failCgroupV1: false"]
    return "\n".join(lines) + "\n"


def _network(facts: Facts, options: Options) -> Iterator[WantedFile]:
    if set(facts.cni.configs) - {CONFLIST}:
        return  # the machine has a pod network
    directory = find_plugins(facts)
    if directory is None:
        return
    networks = parse_pod_cidr(options.pod_cidr, facts.cni.routes)
    text = conflist(networks, facts.cni.plugins[directory])
    yield WantedFile(CONFLIST, text, f"a pod network: a bridge with {options.pod_cidr}")


def _containerd(facts: Facts, options: Options) -> Iterator[WantedFile]:
    files = facts.containerd
    # As it would be without an earlier installation's drop-in.
    own = effective(_without_drop_in(files))
    first = own.bin_dir if own.bin_dir not in BIN_DIRS else ""
    bin_dir = find_plugins(facts, own.bin_dir) or first or own.bin_dir
    # The driver of the agent's configuration, which may be the user's.
    systemd = facts.wanted.cgroup_driver == "systemd"
    image = options.pause_image or own.sandbox_image
    if (systemd, bin_dir, image) != (own.systemd_cgroup, own.bin_dir, own.sandbox_image):
        text = drop_in(
            files, systemd_cgroup=systemd, bin_dir=bin_dir, sandbox_image=options.pause_image
        )
        cgroups = "systemd" if systemd else "cgroupfs"
        why = f"containerd: cgroup driver {cgroups}, network plugins in {bin_dir}"
        yield WantedFile(DROP_IN, text, why + (f", {image}" if options.pause_image else ""))
    elif not own.is_disabled:
        return
    main = main_file(files)
    yield WantedFile(CONFIG, main, "containerd: imports the drop-in", edits=True)


def _without_drop_in(files: ContainerdFiles) -> ContainerdFiles:
    others = tuple(entry for entry in files.imported if entry[0] != DROP_IN)
    return ContainerdFiles(files.version, files.main, others)


def _modules() -> str:
    return "# Written by `kubelet-trio install`.\n" + "".join(f"{name}\n" for name in MODULES)


def _sysctls() -> str:
    # With "-", systemd-sysctl ignores a setting that the kernel lacks, such as without IPv6.
    lines = [f"-{name} = {value}\n" for name, value in SYSCTLS.items()]
    return "# Written by `kubelet-trio install`.\n" + "".join(lines)
