"""gRPC on Trio, client and server, on top of h2. The API has grpclib's names."""

from kubelet_trio.grpc._channel import Channel, Dial, open_channel
from kubelet_trio.grpc._codec import Message, RawMessage
from kubelet_trio.grpc._limits import ServerLimits
from kubelet_trio.grpc._metadata import MetadataLike
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
from kubelet_trio.grpc._status import (
    CODE_NAMES,
    GRPCError,
    Handler,
    Status,
    StreamTerminatedError,
    go_text,
)

__all__ = [
    "CODE_NAMES",
    "Channel",
    "Dial",
    "GRPCError",
    "Handler",
    "Message",
    "MetadataLike",
    "RawMessage",
    "Server",
    "ServerLimits",
    "ServerStream",
    "Status",
    "StreamStreamMethod",
    "StreamTerminatedError",
    "StreamUnaryMethod",
    "UnaryStreamMethod",
    "UnaryUnaryMethod",
    "go_text",
    "open_channel",
    "stream_stream",
    "stream_unary",
    "unary_stream",
    "unary_unary",
]
