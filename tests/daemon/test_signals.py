"""A signal is obeyed at once, however far the start has come."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.cli.local import local_facts
from kubelet_trio.config import Settings, parse_flags, settle, settle_locally
from kubelet_trio.daemon import build, run, run_agent
from kubelet_trio.supervision import ChildSpec


def settings(base: Path, *flags: str) -> Settings:
    line = [
        f"--root-dir={base}",
        f"--container-runtime-endpoint=unix://{base}/none.sock",
        "--cgroups-per-qos=false",
        "--enforce-node-allocatable=",
        "--healthz-port=0",
        "--keep-kernel-settings",
        "--make-iptables-util-chains=false",
        *flags,
    ]
    return settle_locally(settle(parse_flags(line)), local_facts())


async def stopped_while(hanging: trio.Event, told: Settings) -> int:
    """Run the agent and stop it as soon as it hangs; it has to end at once."""
    stop = trio.Event()
    code = -1

    async def main() -> None:
        nonlocal code
        code = await run_agent(told, stop=stop)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(main)
            await hanging.wait()
            stop.set()
    return code


@pytest.mark.parametrize("flags", [(), ("--remove-pods-on-exit",)])
async def test_a_part_that_is_never_ready_does_not_hold_the_end_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    hanging = trio.Event()

    async def never_ready(*, task_status: object) -> None:
        hanging.set()
        await trio.sleep_forever()

    monkeypatch.setattr(build, "_health_servers", lambda *_: (ChildSpec("slow", never_ready),))
    # Pods come after the part that hangs: none can have been started.
    assert await stopped_while(hanging, settings(tmp_path, *flags)) == 0


async def test_the_preparation_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = trio.Event()

    async def never_answers(*_: object, **__: object) -> tuple[str, ...]:
        hanging.set()
        await trio.sleep_forever()
        return ()

    monkeypatch.setattr(run, "look_up", never_answers)
    assert await stopped_while(hanging, settings(tmp_path)) == 0
