"""Logs of a container that floods them: rotated while it writes, and nothing is lost."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.containerd.conftest import MakeAgent
from tests.harness import container, eventually, forever, pod

LINES = 60_000
# As fast as a shell prints, in bursts: about 5 MB of log over some seconds.
FLOOD = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line-$i; done; echo the-end"


WANTED = [*(b"line-%d" % n for n in range(1, LINES + 1)), b"the-end"]


def files_of(logs: Path) -> list[Path]:
    """Return the files of the flood's log, oldest first; none while it is being renamed."""
    live = list(logs.glob("default_flood-node_*/main/0.log"))
    rotated = (path for path in logs.glob("default_flood-node_*/main/0.log.*"))
    return [*sorted(path for path in rotated if path.suffix != ".tmp"), *live]


def lines_of(logs: Path) -> list[bytes]:
    """Return what all of the files hold; nothing where one went away while they were read."""
    try:
        contents = [content(path) for path in files_of(logs)]
    except FileNotFoundError:
        return []
    return [line.split(b" ", 3)[3] for line in b"".join(contents).splitlines()]


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_a_flood_is_rotated_and_no_line_is_lost(make_agent: MakeAgent) -> None:
    agent = make_agent(
        config={
            "containerLogMaxSize": "500Ki",
            "containerLogMaxFiles": 100,
            "containerLogMonitorInterval": "3s",
        }
    )
    agent.start()
    agent.put(pod("flood", container("main", forever(FLOOD))))
    eventually(
        lambda: len(files_of(agent.logs)) > 1 and lines_of(agent.logs) == WANTED,
        within=120,
        what="every line, in more than one file",
    )
