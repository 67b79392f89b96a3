"""Keep the kubelet's chains in iptables, for one address family.

    mangle  KUBE-IPTABLES-HINT     shows which variant of iptables the machine uses (KEP-3178)
    filter  KUBE-FIREWALL          IPv4: drops packets to 127.0.0.0/8 that came from outside
    each    KUBE-KUBELET-CANARY    if it is missing, the tables were flushed: create all of it again

Only missing chains and rules are added. Nothing is removed, not even at the end, because
kube-proxy uses the same chain and rule.

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

# https://issue.k8s.io/90259: kube-proxy sets route_localnet for NodePorts on localhost; without
# this rule a neighbour of the node could then reach services that listen on localhost.
MARTIANS = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP"),
)

_TABLES = ("mangle", "nat", "filter")
_PERIOD = 60.0  # seconds between two looks at the canary
# iptablesFlushTimeout and iptablesFlushPollTime of pkg/util/iptables.
_FLUSH_LIMIT = 5.0  # seconds for the other program to flush all tables
_FLUSH_LOOK = 0.1
_RUN_LIMIT = 60.0
_LOCK_WAIT = "5"  # seconds that iptables itself waits for its lock
# Exit codes: 1, there is no such chain or rule (for -N: it exists); 4, the result is unknown,
# because of a resource problem (iptablesStatusResourceProblem in pkg/util/iptables).
_NO, _UNKNOWN = 1, 4


class IptablesError(Exception):
    """iptables failed; the message contains its output."""


class Iptables(Protocol):
    """The program for one address family."""

    async def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Return its exit code and output. Raises `IptablesError` if it cannot run."""
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
    _last_error: str = field(default="")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep them until cancelled; log failures, and retry."""
        task_status.started()
        while True:
            try:
                await self._create_missing()
                self._log_state("")
                await self._wait_flushed()
                log.info("iptables.flushed", family=self.family)
            except IptablesError as exc:
                self._log_state(str(exc))
                await trio.sleep(_PERIOD)

    async def _create_missing(self) -> None:
        await self._ensure_chain("mangle", HINT)
        if self.family == "ipv4":  # the kernel itself drops packets to ::1 from outside
            await self._ensure_chain("filter", FIREWALL)
            for chain in ("OUTPUT", "INPUT"):
                # Inserted first: a rule that accepts before it would bypass the firewall.
                await self._ensure_rule("-I", "filter", chain, "-j", FIREWALL)
            await self._ensure_rule("-A", "filter", FIREWALL, *MARTIANS)
        # Last: a canary vouches for the chains and rules above.
        for table in _TABLES:
            await self._ensure_chain(table, CANARY)

    async def _wait_flushed(self) -> None:
        """Return once the canaries are missing in all tables, or in the first for some seconds."""
        exists = True
        while exists:
            await trio.sleep(_PERIOD)
            exists = await self._exists("mangle", CANARY)
        # A flush is one call for each table; before its end it would delete the new chains, too.
        with trio.move_on_after(_FLUSH_LIMIT):
            for table in _TABLES[1:]:
                exists = True
                while exists:
                    exists = await self._exists(table, CANARY)
                    await trio.sleep(_FLUSH_LOOK)

    async def _exists(self, table: str, chain: str) -> bool:
        code, output = await self.iptables.run(("-S", chain, "-t", table))
        if code == _UNKNOWN:
            raise IptablesError(output)
        return code == 0

    async def _ensure_chain(self, table: str, chain: str) -> None:
        code, output = await self.iptables.run(("-N", chain, "-t", table))
        if code and not (code == _NO and await self._exists(table, chain)):
            raise IptablesError(f"cannot create chain {chain} in {table}: {output}")

    async def _ensure_rule(self, how: str, table: str, chain: str, *rule: str) -> None:
        code, output = await self.iptables.run(("-C", chain, "-t", table, *rule))
        if code == _NO:
            code, output = await self.iptables.run((how, chain, "-t", table, *rule))
        if code:
            raise IptablesError(f"cannot add the rule {' '.join(rule)} to {chain}: {output}")

    def _log_state(self, error: str) -> None:
        """Log an error once, not at every attempt; "" is success."""
        if error and error != self._last_error:
            log.warning(
                "iptables.not_set_up",
                family=self.family,
                error=error,
                effect="pods run; packets to 127.0.0.0/8 from outside are not dropped"
                if self.family == "ipv4"
                else "pods run",
            )
        elif not error:
            log.debug("iptables.set_up", family=self.family)
        self._last_error = error
