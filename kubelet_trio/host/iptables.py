"""The chains that the kubelet keeps in iptables, of one address family.

    mangle  KUBE-IPTABLES-HINT     tells others which variant of iptables this machine uses
    filter  KUBE-FIREWALL          IPv4: drops packets to 127.0.0.0/8 that came from outside
    each    KUBE-KUBELET-CANARY    gone: somebody has flushed the tables, all of it is made anew

Nothing but what is missing is added, and nothing is taken away, not even at the end:
kube-proxy keeps the same chain and the same rule.

Source: pkg/kubelet/kubelet_network_linux.go and Monitor in pkg/util/iptables/iptables.go.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from kubelet_trio.model import get_logger

log = get_logger()

HINT = "KUBE-IPTABLES-HINT"
FIREWALL = "KUBE-FIREWALL"
CANARY = "KUBE-KUBELET-CANARY"

# https://issue.k8s.io/90259: with route_localnet, which kube-proxy sets for NodePorts on
# localhost, a neighbour of the node could reach what listens there.
MARTIANS = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP"),
)

_TABLES = ("mangle", "nat", "filter")
_PERIOD = 60.0  # seconds between two looks at the canary
_FLUSH_LIMIT = 5.0  # seconds that whoever flushes may take for all tables
_FLUSH_LOOK = 0.1
_RUN_LIMIT = 60.0
_LOCK_WAIT = "5"  # seconds that iptables itself waits for its lock
# Exit codes: 1, there is no such chain or rule (or, of -N, there is one); 4, it could not look.
_NO, _NOT_NOW = 1, 4


class IptablesError(Exception):
    """iptables did not do what it was asked for; the message has its words."""


class Iptables(Protocol):
    """The program, of one address family."""

    async def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Return its exit code and what it said. Raises `IptablesError` if it cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class IptablesProgram:
    """iptables or ip6tables, found on PATH. `prefix` comes before it on the command line."""

    name: str
    prefix: tuple[str, ...] = ()

    async def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """See `Iptables`."""
        command = [*self.prefix, self.name, "-w", _LOCK_WAIT, *arguments]
        try:
            with trio.fail_after(_RUN_LIMIT):
                done = await trio.run_process(
                    command, capture_stdout=True, stderr=subprocess.STDOUT, check=False
                )
        except trio.TooSlowError:
            raise IptablesError(f"{self.name} took more than {_RUN_LIMIT:g} s") from None
        except OSError as exc:
            raise IptablesError(f"cannot run {self.name}: {exc.strerror}") from exc
        return done.returncode, done.stdout.decode("utf-8", "replace").strip()


@dataclass(slots=True)
class KubeletChains:
    """Keeps the chains of one address family."""

    iptables: Iptables
    family: str  # ipv4 or ipv6
    _told: str = field(default="")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep them until cancelled. What cannot be done is logged, and tried again."""
        task_status.started()
        while True:
            try:
                await self._make()
                self._tell("")
                await self._wait_flushed()
                log.info("iptables.flushed", family=self.family)
            except IptablesError as exc:
                self._tell(str(exc))
                await trio.sleep(_PERIOD)

    async def _make(self) -> None:
        await self._ensure_chain("mangle", HINT)
        if self.family == "ipv4":  # the kernel itself drops what comes in for ::1
            await self._ensure_chain("filter", FIREWALL)
            for chain in ("OUTPUT", "INPUT"):
                await self._ensure_rule("-I", "filter", chain, "-j", FIREWALL)
            await self._ensure_rule("-A", "filter", FIREWALL, *MARTIANS)
        for table in _TABLES:
            await self._ensure_chain(table, CANARY)

    async def _wait_flushed(self) -> None:
        """Return once the canaries are gone: all, or the first one for some seconds."""
        is_there = True
        while is_there:
            await trio.sleep(_PERIOD)
            is_there = await self._is_there("mangle", CANARY)
        with trio.move_on_after(_FLUSH_LIMIT):
            for table in _TABLES[1:]:
                is_there = True
                while is_there:
                    is_there = await self._is_there(table, CANARY)
                    await trio.sleep(_FLUSH_LOOK)

    async def _is_there(self, table: str, chain: str) -> bool:
        code, said = await self.iptables.run(("-S", chain, "-t", table))
        if code == _NOT_NOW:
            raise IptablesError(said)
        return code == 0

    async def _ensure_chain(self, table: str, chain: str) -> None:
        code, said = await self.iptables.run(("-N", chain, "-t", table))
        if code and not (code == _NO and await self._is_there(table, chain)):
            raise IptablesError(f"cannot make chain {chain} in {table}: {said}")

    async def _ensure_rule(self, how: str, table: str, chain: str, *rule: str) -> None:
        code, said = await self.iptables.run(("-C", chain, "-t", table, *rule))
        if code == _NO:
            code, said = await self.iptables.run((how, chain, "-t", table, *rule))
        if code:
            raise IptablesError(f"cannot have the rule {' '.join(rule)} in {chain}: {said}")

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            log.warning(
                "iptables.not_set_up",
                family=self.family,
                error=trouble,
                effect="pods run; packets to 127.0.0.0/8 from outside are not dropped"
                if self.family == "ipv4"
                else "pods run",
            )
        elif not trouble:
            log.debug("iptables.set_up", family=self.family)
        self._told = trouble
