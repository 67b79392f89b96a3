"""The kubelet's chains, on an iptables that keeps its rules in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.host import IptablesError, IptablesProgram, KubeletChains
from kubelet_trio.host.iptables import CANARY, FIREWALL, HINT, MARTIANS

BUILT_IN = {
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}
Tables = dict[str, dict[str, list[tuple[str, ...]]]]


def empty() -> Tables:
    return {table: {chain: [] for chain in chains} for table, chains in BUILT_IN.items()}


@dataclass
class FakeIptables:
    """Chains and rules by table, with the exit codes of the real program."""

    tables: Tables = field(default_factory=empty)
    fails: tuple[int, str] | None = None  # what every call says for now

    async def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        await trio.lowlevel.checkpoint()
        if self.fails is not None:
            return self.fails
        how, chain, flag, table, *rule = arguments
        assert flag == "-t"
        chains = self.tables[table]
        if how == "-N":
            if chain in chains:
                return 1, "iptables: Chain already exists."
            chains[chain] = []
            return 0, ""
        target = rule[rule.index("-j") + 1] if "-j" in rule else ""
        if chain not in chains or (target and target != "DROP" and target not in chains):
            return 1, "iptables: No chain/target/match by that name."
        if how == "-C":
            return (0, "") if tuple(rule) in chains[chain] else (1, "iptables: Bad rule")
        if how == "-I":
            chains[chain].insert(0, tuple(rule))
        elif how == "-A":
            chains[chain].append(tuple(rule))
        else:
            assert how == "-S"
        return 0, ""

    def flush(self, *tables: str) -> None:
        for table in tables or BUILT_IN:
            self.tables[table] = empty()[table]


@asynccontextmanager
async def kept(iptables: FakeIptables, family: str = "ipv4") -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(KubeletChains(iptables, family).run)
        await trio.sleep(1)
        yield
        nursery.cancel_scope.cancel()


JUMP = ("-j", FIREWALL)


async def test_ipv4_has_the_firewall_the_hint_and_the_canaries(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    async with kept(iptables):
        assert iptables.tables["filter"][FIREWALL] == [MARTIANS]
        assert iptables.tables["filter"]["INPUT"] == [JUMP]
        assert iptables.tables["filter"]["OUTPUT"] == [JUMP]
        assert iptables.tables["mangle"][HINT] == []
        assert all(CANARY in chains for chains in iptables.tables.values())


async def test_ipv6_has_no_firewall(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    async with kept(iptables, "ipv6"):
        assert FIREWALL not in iptables.tables["filter"]
        assert not iptables.tables["filter"]["INPUT"]
        assert HINT in iptables.tables["mangle"]
        assert all(CANARY in chains for chains in iptables.tables.values())


async def test_what_is_there_already_stays_and_comes_once(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    others = ("-p", "tcp", "-j", "DROP")
    iptables.tables["filter"]["INPUT"].append(others)
    for _ in range(2):  # two lives of the agent; kube-proxy makes the same chain and rule
        async with kept(iptables):
            pass
    assert iptables.tables["filter"]["INPUT"] == [JUMP, others]
    assert iptables.tables["filter"][FIREWALL] == [MARTIANS]


async def test_all_of_it_is_made_anew_after_a_flush(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    async with kept(iptables):
        iptables.flush()
        await trio.sleep(70)
        assert iptables.tables["filter"][FIREWALL] == [MARTIANS]
        assert iptables.tables["filter"]["OUTPUT"] == [JUMP]
        assert all(CANARY in chains for chains in iptables.tables.values())


async def test_a_flush_that_has_begun_is_waited_for(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    async with kept(iptables):
        iptables.flush("mangle")
        await trio.sleep(60.5)  # the canary of mangle is missed by now
        assert HINT not in iptables.tables["mangle"]
        iptables.flush("nat", "filter")
        await trio.sleep(1)
        assert iptables.tables["filter"][FIREWALL] == [MARTIANS]


async def test_one_table_alone_is_made_anew_as_well(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    async with kept(iptables):
        iptables.flush("mangle")
        await trio.sleep(70)
        assert HINT in iptables.tables["mangle"]
        assert iptables.tables["filter"][FIREWALL] == [MARTIANS]


@pytest.mark.parametrize(
    "failure", [(4, "Permission denied (you must be root)"), (1, "Failed to initialize nft")]
)
async def test_refusal_is_told_once_and_tried_again(
    failure: tuple[int, str], autojump_clock: MockClock
) -> None:
    iptables = FakeIptables(fails=failure)
    with capture_logs() as logs:
        async with kept(iptables):
            await trio.sleep(300)
            assert [line["event"] for line in logs] == ["iptables.not_set_up"]
            assert failure[1] in logs[0]["error"]
            iptables.fails = None
            await trio.sleep(70)
            assert HINT in iptables.tables["mangle"]


async def test_a_lock_that_is_taken_is_no_flush(autojump_clock: MockClock) -> None:
    iptables = FakeIptables()
    with capture_logs() as logs:
        async with kept(iptables):
            iptables.fails = (4, "Another app is currently holding the xtables lock")
            await trio.sleep(61)
            iptables.fails = None
            await trio.sleep(200)
        assert "iptables.flushed" not in [line["event"] for line in logs]


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(IptablesError, match="cannot run no-such-iptables: No such file"):
        await IptablesProgram("no-such-iptables").run(("-S", "INPUT", "-t", "filter"))


async def test_the_program_is_told_to_wait_for_its_lock(tmp_path: Path) -> None:
    program = tmp_path / "iptables"
    program.write_text('#!/bin/sh\necho "$@"; exit 4\n')
    program.chmod(0o755)
    answer = await IptablesProgram(str(program)).run(("-S", "INPUT", "-t", "filter"))
    assert answer == (4, "-w 5 -S INPUT -t filter")
