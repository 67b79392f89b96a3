"""An attach controller in memory, with the status of the node that it reads and writes."""

from __future__ import annotations

from trio_util import AsyncValue

from kubelet_trio.volumes.attaching import AttachController


class FakeController:
    """Implements `VolumesInUse` and `AttachedDevices`; it detaches nothing that is in use."""

    def __init__(self) -> None:
        self.is_reachable = True
        self._in_use: AsyncValue[frozenset[str]] = AsyncValue(frozenset())  # as it was told
        self._attached: AsyncValue[dict[str, str]] = AsyncValue({})

    @property
    def seams(self) -> AttachController:
        return AttachController(self, self)

    @property
    def in_use(self) -> list[str]:
        return sorted(self._in_use.value)

    def attach(self, name: str, device: str = "") -> None:
        self._attached.value = {**self._attached.value, name: device}

    def detach(self, name: str) -> None:
        assert name not in self._in_use.value, f"{name} is in use"
        self._attached.value = {n: d for n, d in self._attached.value.items() if n != name}

    def note(self, name: str) -> None:
        if self.is_reachable:
            self._in_use.value |= {name}

    async def wait_reported(self, name: str) -> None:
        await self._in_use.wait_value(lambda names: name in names)

    def drop(self, name: str) -> None:
        self._in_use.value -= {name}

    async def wait_device(self, name: str) -> None:
        assert name in self._in_use.value, f"{name} is not in use"
        await self._attached.wait_value(lambda names: name in names)

    def device(self, name: str) -> str | None:
        found: str | None = self._attached.value.get(name)
        return found
