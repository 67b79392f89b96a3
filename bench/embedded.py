"""`python -m bench.embedded`: the memory of a program that embeds an agent and runs process pods.

Each program is a process of its own: one imports like any program, one with `load_lean`. Their
containers are processes of this machine, whose memory is not the program's. `--python` runs them
under another interpreter, which needs this package's requirements; that of a fresh installation,
since structlog imports what a development environment has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from bench.footprint import split

ROOT = Path(__file__).parents[1]
_PROGRAM = """
import sys
if sys.argv[3] == "lean":
    from kubelet_trio.lean import load_lean
    load_lean()
import trio
from kubelet_trio import KubeletConfig, open_kubelet

POD = '{apiVersion: v1, kind: Pod, metadata: {name: pod-%d}, spec: {'
POD += 'terminationGracePeriodSeconds: 1, '
POD += 'containers: [{name: main, image: none, command: [sleep, "100000"]}]}}'

async def run(kubelet, number, left):
    async with kubelet.run_pod(POD % number) as running:
        await running.wait_ready(timeout=120)
        left.discard(number)
        await trio.sleep_forever()

async def main():
    left = set(range(int(sys.argv[2])))
    config = KubeletConfig(root_dir=sys.argv[1], allow_root=True)
    async with open_kubelet(config) as kubelet, trio.open_nursery() as nursery:
        for number in sorted(left):
            nursery.start_soon(run, kubelet, number, left)
        while left:
            await trio.sleep(0.2)
        await trio.sleep(8)
        print("ready", flush=True)
        await trio.lowlevel.wait_readable(sys.stdin)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def measure(python: str, pods: int, *, lean: bool) -> Mapping[str, float]:
    """Return RSS and PSS in MB of a program that runs that many process pods."""
    with tempfile.TemporaryDirectory() as place:
        program = subprocess.Popen(
            [python, "-c", _PROGRAM, f"{place}/root", str(pods), "lean" if lean else "plain"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=place,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            if program.stdout.readline() != b"ready\n":
                raise click.ClickException(f"the program ended: {program.wait(60)}")
            return split(program.pid)["all"]
        finally:
            program.stdin.close()
            program.wait(120)


@click.command()
@click.option("--pods", default="0,10", show_default=True, help="Numbers of pods.")
@click.option("--python", default=sys.executable, help="Another interpreter than this one.")
def main(pods: str, python: str) -> None:
    """Measure the memory of programs that embed an agent."""
    click.echo("| | RSS MB | PSS MB |\n| --- | ---: | ---: |")
    for lean in (False, True):
        for count in map(int, pods.split(",")):
            found = measure(python, count, lean=lean)
            name = f"{count} pods" + (", with `load_lean`" if lean else "")
            click.echo(f"| {name} | {found['Rss']:.1f} | {found['Pss']:.1f} |")


if __name__ == "__main__":
    main()
