"""How the daemon's agent calls its runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from kubelet_trio.config.load import load_settings
from kubelet_trio.cri import v1
from kubelet_trio.cri.generated.runtime.v1.server import RuntimeServiceBase
from kubelet_trio.daemon import build_agent
from kubelet_trio.grpc import Server, ServerStream


class Runtime(RuntimeServiceBase):
    """Has another container for each way to list them."""

    async def list_containers(self, request: v1.ListContainersRequest) -> v1.ListContainersResponse:
        return v1.ListContainersResponse(containers=[v1.Container(id="whole")])

    async def stream_containers(
        self, request: v1.StreamContainersRequest, stream: ServerStream[Any, Any]
    ) -> None:
        found = v1.StreamContainersResponse(containers=[v1.Container(id="streamed")])
        await stream.send_message(found)


@pytest.mark.parametrize(
    ("gates", "listed"),
    [("", "whole"), ("CRIListStreaming=false", "whole"), ("CRIListStreaming=true", "streamed")],
)
async def test_lists_are_streamed_if_the_gate_asks_for_it(
    gates: str, listed: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    socket = tmp_path / "cri.sock"
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(socket))
    listener.listen(1)
    await nursery.start(Server([Runtime()]).serve, [trio.SocketListener(listener)])
    flags = ["--pod-manifest-path=/manifests", f"--container-runtime-endpoint=unix://{socket}"]
    seams = build_agent(load_settings([*flags, f"--feature-gates={gates}"]), {}).seams
    assert seams.connection is not None
    await nursery.start(seams.connection.run)
    assert list((await seams.runtime.list_containers()).entries) == [listed]
