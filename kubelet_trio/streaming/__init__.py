"""The protocols of exec, attach and port-forward: SPDY/3.1 and WebSocket.

Imported with the first client whose streams the agent has to parse. Streams of a runtime with its
own streaming server are mostly proxied without parsing.
"""

from __future__ import annotations

from kubelet_trio.streaming.backpressure import PEER_GONE
from kubelet_trio.streaming.channels import (
    COMMAND_SPDY,
    COMMAND_WEBSOCKET,
    FORWARD_SPDY,
    FORWARD_WEBSOCKET,
    TUNNEL,
    WEBSOCKET_V5,
    chosen,
    failed,
    is_base64,
)
from kubelet_trio.streaming.command import (
    SpdyClient,
    WebSocketClient,
    serve_command,
)
from kubelet_trio.streaming.forward import forward_spdy, forward_websocket
from kubelet_trio.streaming.spdy_link import SpdyLink, SpdyStream
from kubelet_trio.streaming.translate import translate_command
from kubelet_trio.streaming.websocket import (
    Content,
    Tunnel,
    WebSocket,
    handshake,
    offered_protocols,
    sending_parts,
)

__all__ = [
    "COMMAND_SPDY",
    "COMMAND_WEBSOCKET",
    "FORWARD_SPDY",
    "FORWARD_WEBSOCKET",
    "PEER_GONE",
    "TUNNEL",
    "WEBSOCKET_V5",
    "Content",
    "SpdyClient",
    "SpdyLink",
    "SpdyStream",
    "Tunnel",
    "WebSocket",
    "WebSocketClient",
    "chosen",
    "failed",
    "forward_spdy",
    "forward_websocket",
    "handshake",
    "is_base64",
    "offered_protocols",
    "sending_parts",
    "serve_command",
    "translate_command",
]
