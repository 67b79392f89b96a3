"""`python -m bench.scrape [--peer /path/to/kubelet]`: what a scrape of a node of real pods takes.

100 pods on a real containerd, asked for their metrics at the kubelet API as Prometheus does it: in
TLS, over a connection that stays. `bench.stats` has the same pages without a runtime, with every
container busy between two rounds: here the kernel's own files are read, and the pods' shells wait,
but for those of `--busy`. A Go kubelet collects all the time, asked or not, so what it uses without
any scrape is told too.
"""

from __future__ import annotations

import http.client
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import click

from bench.contender import Contender, Meter, serving, wait_ready
from bench.loads import names_of
from bench.report import rows, table
from tests.harness import Containerd, container, missing, pod

PAGES = ("/stats/summary", "/metrics/resource", "/metrics/cadvisor")
_WARM = 2  # scrapes: the first opens the files, the second keeps them open
_PAUSE = 1.2  # seconds: beyond what an answer holds
_BUSY = "while :; do n=0; while [ $n -lt 2000 ]; do n=$((n+1)); done; sleep 0.5; done"
_WAITS = "while :; do sleep 3600 & wait; done"


def measure(contender: Contender, pods: int, busy: int, rounds: int) -> dict[str, float]:
    """Return ms of the agent's CPU for each page, least and median, and their sizes."""
    made = [
        pod(f"bench-{n}", container("main", _BUSY if n < busy else _WAITS)) for n in range(pods)
    ]
    contender.start()
    for manifest in made:
        contender.put(manifest)
    wait_ready(contender, names_of(made), 0.2)
    time.sleep(5)
    meter, found = Meter(contender.pid), {}
    burnt, began = meter.cpu(), time.monotonic()
    time.sleep(20)
    own = (meter.cpu() - burnt) / (time.monotonic() - began)
    found["without a scrape, CPU %"] = 100 * own
    for page in PAGES:
        found |= _scrape(contender, page, rounds, own)
    return found


def _scrape(contender: Contender, page: str, rounds: int, own: float) -> Mapping[str, float]:
    meter, taken, size = Meter(contender.pid), [], 0
    # The serving certificate is the agent's own.
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", contender.api_port, context=context)
    for _ in range(_WARM + rounds):
        time.sleep(_PAUSE)
        burnt, began = meter.cpu(), time.monotonic()
        connection.request("GET", page)
        answer = connection.getresponse()
        size = len(answer.read())
        assert answer.status == 200, f"{page}: {answer.status}"
        # What comes after the last byte is the scrape's too; what it does anyhow is not.
        time.sleep(0.2)
        taken.append(1e3 * (meter.cpu() - burnt - own * (time.monotonic() - began)))
    connection.close()
    kept = sorted(taken[_WARM:])
    return {
        f"{page}, CPU ms": median(kept),
        f"{page}, least CPU ms": kept[0],
        f"{page}, kB": size / 1e3,
    }


@click.command()
@click.option("--peer", type=click.Path(path_type=Path, exists=True), help="A Go kubelet.")
@click.option("--pods", default=100, show_default=True)
@click.option("--busy", default=10, show_default=True, help="How many of them use some CPU.")
@click.option("--rounds", default=20, show_default=True, help="Scrapes of each page.")
def main(peer: Path | None, pods: int, busy: int, rounds: int) -> None:
    """Scrape this agent, and a peer, under real pods."""
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    found: dict[str, dict[str, float]] = {}
    names = []
    for other in (None, peer) if peer is not None else (None,):
        with tempfile.TemporaryDirectory() as base, Containerd() as containerd:
            contender = serving(other, Path(base), containerd)
            try:
                found[contender.name] = measure(contender, pods, busy, rounds)
            finally:
                contender.close()
        names.append(contender.name)
        click.echo(f"{contender.name} is done", err=True)
    theirs = names[1] if len(names) > 1 else None
    for line in table(rows([found], names[0], theirs), names[0], theirs):
        click.echo(line)


if __name__ == "__main__":
    main()
