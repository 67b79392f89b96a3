"""What a plugin says of itself, and the seam to the rooms that use plugins of one type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

# pluginregistration v1.
CSI_TYPE = "CSIPlugin"
DEVICE_TYPE = "DevicePlugin"
DRA_TYPE = "DRAPlugin"


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """A plugin's answer to GetInfo, checked."""

    type: str
    name: str
    endpoint: str  # the path of the socket that it serves; may be anywhere
    versions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


class PluginHandler(Protocol):
    """Uses the plugins of one type. A room satisfies it by its shape, without importing it.

    For each plugin: `validate`, then `run_plugin`, in the task of the plugin's socket. So the
    handler may keep a channel, or whatever else belongs to the plugin, in a nursery of its own:

        async def run_plugin(self, name, endpoint, versions, *, task_status):
            async with open_channel(endpoint) as channel:
                self._table[name] = mine = await self._ask(channel)
                try:
                    task_status.started()
                    await trio.sleep_forever()
                finally:
                    if self._table.get(name) is mine:
                        del self._table[name]

    Where a newer socket takes a name over, the runs of both overlap for a moment: the older is
    cancelled once the newer has called `started`. The end of the older must therefore not remove
    what the newer has registered.
    """

    @property
    def is_exclusive(self) -> bool:
        """Whether only one plugin of a name is registered at a time: that of the newest socket."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What `run_plugin` raises, alone or in groups, if a plugin fails; the rest are bugs."""
        ...

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check what the plugin says. Raises ValueError with the reason to refuse it."""
        ...

    async def run_plugin(
        self,
        name: str,
        endpoint: str,
        versions: Sequence[str],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Register a plugin, call `started`, and keep it registered until cancelled.

        It limits its own calls of the plugin: nothing else here has a deadline. It is cancelled
        when the socket goes or is replaced, when a newer one takes over the name, and when the
        agent ends. If it returns or raises one of `errors`, the plugin is asked again later.
        """
        ...
