"""grpcio as the independent peer: the plugin's side of registration, in real time."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import trio

from kubelet_trio.plugins import PluginRegistry
from kubelet_trio.supervision import Supervisor
from tests.plugins.fakes import CSI, FakeHandler

# Encoded by hand: PluginInfo(type, name, endpoint, supported_versions), and its empty answers.
_INFO = b"".join(
    bytes([number << 3 | 2, len(text)]) + text
    for number, text in (
        (1, b"CSIPlugin"),
        (2, b"disk.example.com"),
        (3, b"/csi.sock"),
        (4, b"1.0.0"),
        (4, b"1.1.0"),
    )
)


def serve(target: str, told: queue.SimpleQueue[bytes]) -> grpc.Server:
    """Serve a registrar; `told` gets the encoded RegistrationStatus."""

    def notify(request: bytes, _context: grpc.ServicerContext) -> bytes:
        told.put(request)
        return b""

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "pluginregistration.Registration",
                {
                    "GetInfo": grpc.unary_unary_rpc_method_handler(lambda *_: _INFO),
                    "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
                },
            ),
        )
    )
    server.add_insecure_port(target)
    server.start()
    return server


async def test_a_registrar_on_grpcio_is_registered(short_path: Path) -> None:
    handler, told = FakeHandler(), queue.SimpleQueue[bytes]()
    registry = PluginRegistry(short_path, {CSI: handler}.get)
    supervisor = Supervisor("plugins", registry.children())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            server = serve(f"unix://{short_path}/disk.sock", told)
            try:
                await handler.wait_registered("/csi.sock")
                status = await trio.to_thread.run_sync(lambda: told.get(timeout=30))
                assert status == b"\x08\x01"  # plugin_registered = true, no error
                assert handler.registered == [("disk.example.com", "/csi.sock")]
            finally:
                server.stop(None).wait()
            # It removes its socket itself.
            await handler.wait_registered()
            nursery.cancel_scope.cancel()
