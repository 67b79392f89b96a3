"""The kubelet's chains in the kernel, in a network namespace of the test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
import trio

from kubelet_trio.host import IptablesProgram, KubeletChains
from kubelet_trio.host import iptables as module


@pytest.fixture
def prefix() -> Iterator[tuple[str, ...]]:
    name = f"kttest-{uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield ("ip", "netns", "exec", name)
    subprocess.run(["ip", "netns", "delete", name], check=True)


def saved(prefix: tuple[str, ...], program: str, table: str) -> list[str]:
    done = subprocess.run(
        [*prefix, f"{program}-save", "-t", table], check=True, capture_output=True, text=True
    )
    return [line for line in done.stdout.splitlines() if not line.startswith("#")]


def chains(lines: list[str]) -> set[str]:
    return {line.split()[0].lstrip(":") for line in lines if line.startswith(":KUBE")}


def flush(prefix: tuple[str, ...]) -> None:
    for table in ("mangle", "nat", "filter"):
        for how in ("-F", "-X"):
            subprocess.run([*prefix, "iptables", "-w", how, "-t", table], check=True)
            assert how == "-F" or not chains(saved(prefix, "iptables", table))


RULES = [
    "-A INPUT -j KUBE-FIREWALL",
    "-A OUTPUT -j KUBE-FIREWALL",
    "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment "
    '--comment "block incoming localnet connections" -m conntrack '
    "! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
]


async def test_the_chains_come_once_and_again_after_a_flush(
    prefix: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PERIOD", 0.1)
    look = partial(saved, prefix)

    async def wait_rules() -> None:
        with trio.fail_after(30):
            while True:
                lines = await trio.to_thread.run_sync(look, "iptables", "filter")
                if [line for line in lines if line.startswith("-A")] == RULES:
                    return
                await trio.sleep(0.1)

    for _ in range(2):  # two lives of the agent
        async with trio.open_nursery() as nursery:
            for family, program in (("ipv4", "iptables"), ("ipv6", "ip6tables")):
                await nursery.start(KubeletChains(IptablesProgram(program, prefix), family).run)
            await wait_rules()
            await trio.sleep(1)
            await wait_rules()
            assert chains(look("iptables", "mangle")) == {
                "KUBE-IPTABLES-HINT",
                "KUBE-KUBELET-CANARY",
            }
            assert chains(look("ip6tables", "filter")) == {"KUBE-KUBELET-CANARY"}
            assert "KUBE-IPTABLES-HINT" in chains(look("ip6tables", "mangle"))
            flush(prefix)
            await wait_rules()
            nursery.cancel_scope.cancel()
