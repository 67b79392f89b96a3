"""The command line of a program called `kubelet`: the Go kubelet's, without subcommands.

kubeadm runs `kubelet --version` and reads its one line; its systemd unit runs `kubelet --flags`.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

NAME = "kubelet"


def kubelet(argv: Sequence[str]) -> int:
    """Run the agent as `kubelet-trio run` does; return its exit code.

    `--version` prints `Kubernetes v1.36.2`, `--version=raw` Go's `version.Info` of it
    (k8s.io/component-base/version/verflag).
    """
    from kubelet_trio.cli.run import run
    from kubelet_trio.config import ConfigError, parse_flags, run_help
    from kubelet_trio.model import KUBERNETES_VERSION

    try:
        line = parse_flags(argv)
    except ConfigError:
        run(argv)  # which tells all problems
        return 1  # as cobra's programs
    if line.wants_help:
        print(run_help(every=True).replace("kubelet-trio run", NAME, 1), end="")
    elif line.wants_raw_version:
        print(raw_version(KUBERNETES_VERSION))
    elif line.wants_version:
        print(f"Kubernetes {KUBERNETES_VERSION}")
    else:
        return run(argv)
    return 0


def raw_version(version: str) -> str:
    """Return the version as Go prints its `version.Info`; what is not Go's is named as it is."""
    from kubelet_trio import __version__

    major, minor, _ = version.removeprefix("v").split(".")
    python = sys.implementation.name + platform.python_version()
    fields = {
        "Major": major,
        "Minor": minor,
        "EmulationMajor": "",
        "EmulationMinor": "",
        "MinCompatibilityMajor": "",
        "MinCompatibilityMinor": "",
        "GitVersion": version,
        "GitCommit": "",
        "GitTreeState": "",
        "BuildDate": "",
        "GoVersion": "",
        "Compiler": f"{python} kubelet-trio {__version__}",
        "Platform": f"linux/{platform.machine()}",
    }
    told = ", ".join(f'{name}:"{value}"' for name, value in fields.items())
    return f"version.Info{{{told}}}"
