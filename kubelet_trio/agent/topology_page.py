"""Shows the machine and who holds what of it, for `kubelet-trio topology`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import trio

from kubelet_trio.agent.parts import Parts
from kubelet_trio.agent.settings import Seams
from kubelet_trio.model import Purpose
from kubelet_trio.server import HttpError

if TYPE_CHECKING:
    from kubelet_trio.managers import Machine, MachineHoldings, ResourceManagers


@dataclass(frozen=True, slots=True)
class TopologyPage:
    """Writes the JSON of the control socket's `/topology`.

    Attributes:
        show: returns the machine and who holds what; None where no manager keeps it.
    """

    show: Callable[[], Awaitable[tuple[Machine, MachineHoldings | None]]]

    async def page(self) -> bytes:
        """Return the JSON of `managers.topology_page`.

        Raises:
            HttpError: the machine's files cannot be read; the text names the file.
        """
        from kubelet_trio.managers import TopologyError, topology_page  # deferred: few ask

        try:
            machine, holdings = await self.show()
        except TopologyError as exc:
            raise HttpError(500, str(exc)) from exc
        return msgspec.json.encode(topology_page(machine, holdings)) + b"\n"


def machine_alone(seams: Seams) -> Callable[[], Awaitable[tuple[Machine, None]]]:
    """Return what `TopologyPage` shows on a node without managers: the machine as it is now."""

    async def show() -> tuple[Machine, None]:
        from kubelet_trio.managers import read_machine  # deferred: few ask

        return await seams.offload_for(Purpose.STATS)(read_machine), None

    return show


def managed_machine(
    parts: Parts, managers: ResourceManagers
) -> Callable[[], Awaitable[tuple[Machine, MachineHoldings | None]]]:
    """Return what `TopologyPage` shows on a node with managers: what they gave to whom."""

    async def show() -> tuple[Machine, MachineHoldings | None]:
        from kubelet_trio.managers import machine_holdings  # deferred: few ask

        await trio.lowlevel.checkpoint()
        pods = [worker.pod for worker in parts.workers.values()]
        settings = parts.setup.settings.managers
        machine = managers.machine
        if not machine.nodes:  # its managers give devices alone
            machine, _ = await machine_alone(parts.setup.seams)()
        holdings, claims = machine_holdings(managers, settings, pods), parts.supplies.claims
        return machine, holdings if claims is None else claims.shown(holdings, pods)

    return show
