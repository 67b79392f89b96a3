"""gRPC on Trio, client and server, on top of h2. The API has grpclib's names."""

from kubelet_trio.grpc._call import ClientStream
from kubelet_trio.grpc._channel import Channel, Dial, open_channel
from kubelet_trio.grpc._codec import MAX_MESSAGE_BYTES, Codec, Message, ProtoCodec, RawMessage
from kubelet_trio.grpc._metadata import Metadata, MetadataLike
from kubelet_trio.grpc._methods import (
    StreamStreamMethod,
    StreamUnaryMethod,
    UnaryStreamMethod,
    UnaryUnaryMethod,
)
from kubelet_trio.grpc._server import (
    Servable,
    Server,
    ServerStream,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from kubelet_trio.grpc._status import (
    Cardinality,
    GRPCError,
    Handler,
    Status,
    StreamTerminatedError,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Cardinality",
    "Channel",
    "ClientStream",
    "Codec",
    "Dial",
    "GRPCError",
    "Handler",
    "Message",
    "Metadata",
    "MetadataLike",
    "ProtoCodec",
    "RawMessage",
    "Servable",
    "Server",
    "ServerStream",
    "Status",
    "StreamStreamMethod",
    "StreamTerminatedError",
    "StreamUnaryMethod",
    "UnaryStreamMethod",
    "UnaryUnaryMethod",
    "open_channel",
    "stream_stream",
    "stream_unary",
    "unary_stream",
    "unary_unary",
]
