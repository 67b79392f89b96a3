"""The command line: `kubelet-trio run`, and the commands that read from a running agent."""

from __future__ import annotations

import sys
from os.path import basename


def main() -> None:
    """Run the command line. Called by a link of the name `kubelet`, it is the Go kubelet's."""
    if basename(sys.argv[0]) == "kubelet":
        from kubelet_trio.cli.kubelet import kubelet

        sys.exit(kubelet(sys.argv[1:]))
    # Without click: its parser does not know Go's flags, and the daemon would keep its memory.
    if sys.argv[1:2] == ["run"]:
        from kubelet_trio.cli.run import run

        sys.exit(run(sys.argv[2:]))
    from kubelet_trio.cli.main import cli

    cli(prog_name="kubelet-trio")


__all__ = ["main"]
