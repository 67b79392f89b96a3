"""Gets lists whole: in one message, or, if asked to, streamed in as many as it takes (KEP-5825).

A message holds 16 MiB at most, and a node with some ten thousand containers has more to list. Of
both kinds of calls the requests have one encoding, and so have the answers: joined messages of a
stream are the message that the unary call would have sent, as protobuf merges repeated fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubelet_trio.cri.errors import UnsupportedCallError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.remote.traced import traced_call
from kubelet_trio.cri.remote.translate import runtime_errors
from kubelet_trio.grpc import Channel, Message, RawMessage, UnaryStreamMethod, UnaryUnaryMethod
from kubelet_trio.model import get_logger

log = get_logger()

_RUNTIME, _IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
_CALLS: Mapping[str, tuple[str, type[Message]]] = {
    "ListPodSandbox": ("StreamPodSandboxes", v1.ListPodSandboxRequest),
    "ListContainers": ("StreamContainers", v1.ListContainersRequest),
    "ListContainerStats": ("StreamContainerStats", v1.ListContainerStatsRequest),
    "ListPodSandboxMetrics": ("StreamPodSandboxMetrics", v1.ListPodSandboxMetricsRequest),
    "ListImages": ("StreamImages", v1.ListImagesRequest),
}


class ListCalls:
    """The list calls of a runtime, whose answers stay encoded."""

    def __init__(
        self,
        runtime: Channel,
        images: Channel,
        timeout: float,
        *,
        streamed: bool,
        lacks: set[str],
    ) -> None:
        """Take connections.

        Args:
            runtime: leads to the runtime service.
            images: leads to the image service.
            timeout: seconds for a list, from its first message to its last.
            streamed: whether to stream lists.
            lacks: the names of calls that the runtime does not implement; those of streams that
                it is found to lack are added, and their lists not streamed while they are there.
        """
        self._timeout = timeout
        self._lacks = lacks
        self._whole: dict[str, UnaryUnaryMethod[Message, RawMessage]] = {}
        self._streams: dict[str, UnaryStreamMethod[Message, RawMessage]] = {}
        for name, (stream, request) in _CALLS.items():
            channel, path = (images, _IMAGES) if name == "ListImages" else (runtime, _RUNTIME)
            self._whole[name] = UnaryUnaryMethod(channel, path + name, request, RawMessage)
            if streamed:
                method = UnaryStreamMethod(channel, path + stream, request, RawMessage)
                self._streams[name] = method

    async def get(self, name: str, request: Message) -> bytes:
        """Return the encoded answer of a list call. Raises `RuntimeCallError`."""
        stream = _CALLS[name][0]
        if name in self._streams and stream not in self._lacks:
            try:
                with runtime_errors(stream):
                    parts = await traced_call(self._streams[name], request, self._timeout)
                return b"".join(parts)
            except UnsupportedCallError:
                self._lacks.add(stream)
                log.info(
                    "runtime.call_unsupported",
                    call=stream,
                    effect=f"{name} is called, whose answer is one message",
                )
        with runtime_errors(name):
            return await traced_call(self._whole[name], request, self._timeout)
