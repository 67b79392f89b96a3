"""gRPC on Trio, client and server, on top of h2. The API has grpclib's names."""

from kubelet_trio.grpc._channel import Channel, Dial, open_channel
from kubelet_trio.grpc._codec import Message, RawMessage
from kubelet_trio.grpc._limits import ServerLimits
from kubelet_trio.grpc._methods import (
    StreamStreamMethod,
    StreamUnaryMethod,
    UnaryStreamMethod,
    UnaryUnaryMethod,
)
from kubelet_trio.grpc._server import (
    Server,
    ServerStream,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from kubelet_trio.grpc._status import GRPCError, Handler, Status

__all__ = [
    "Channel",
    "Dial",
    "GRPCError",
    "Handler",
    "Message",
    "RawMessage",
    "Server",
    "ServerLimits",
    "ServerStream",
    "Status",
    "StreamStreamMethod",
    "StreamUnaryMethod",
    "UnaryStreamMethod",
    "UnaryUnaryMethod",
    "open_channel",
    "stream_stream",
    "stream_unary",
    "unary_stream",
    "unary_unary",
]
