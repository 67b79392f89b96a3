"""What the runtime of a replay says of itself and its images, from the recorded readings."""

from __future__ import annotations

import math
from typing import Any

from kubelet_trio.cri import v1
from kubelet_trio.recorder import read_message
from kubelet_trio.replay.absent import AbsentCalls


class RuntimeReads(AbsentCalls):
    """Reading calls without an object; `_read` has what was recorded."""

    async def _read(self, method: str, name: str = "", touched: float = -math.inf) -> Any:
        raise NotImplementedError

    async def version(self) -> v1.VersionResponse:
        content = await self._read("version")
        if content is None:
            return v1.VersionResponse(
                version="0.1.0", runtime_name="recorded", runtime_api_version="v1"
            )
        return read_message(v1.VersionResponse, content)

    async def status(self) -> v1.StatusResponse:
        content = await self._read("status")
        if content is None:
            words = ("RuntimeReady", "NetworkReady")
            conditions = [v1.RuntimeCondition(type=word, status=True) for word in words]
            return v1.StatusResponse(status=v1.RuntimeStatus(conditions=conditions))
        return read_message(v1.StatusResponse, content)

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        content = await self._read("runtime_config")
        return None if content is None else read_message(v1.RuntimeConfigResponse, content)

    async def list_images(self) -> list[v1.Image]:
        content = await self._read("list_images")
        entries = content.get("entries", ()) if isinstance(content, dict) else content
        return [read_message(v1.Image, each) for each in entries or ()]

    async def sandbox_image(self) -> str:
        return str(await self._read("sandbox_image") or "")
