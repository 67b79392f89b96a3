"""The command line: `kubelet-trio run`, and what looks at a running agent."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line.

    `run` goes past click, whose parser is not for Go's flags and whose memory the daemon
    would keep. Everything after it on the command line is the daemon's.
    """
    if sys.argv[1:2] == ["run"]:
        from kubelet_trio.cli.run import run

        sys.exit(run(sys.argv[2:]))
    from kubelet_trio.cli.main import cli

    cli(prog_name="kubelet-trio")


__all__ = ["main"]
