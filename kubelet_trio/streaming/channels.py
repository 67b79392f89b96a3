"""Names of protocols and channels, outcomes of commands, and terminal sizes.

Source: k8s.io/cri-streaming (remotecommand and portforward), metav1.Status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kubelet_trio.cri import StreamOptions
from kubelet_trio.model import JSON_ERRORS

# Channels of a WebSocket; the names are those of the streams in SPDY.
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
CLOSE = 255  # v5: the content is the channel that the client half-closes
STREAM_NAMES = ("stdin", "stdout", "stderr", "error", "resize")

WEBSOCKET_V5 = "v5.channel.k8s.io"
_BASE64 = frozenset({"base64.channel.k8s.io", "v4.base64.channel.k8s.io"})
_STATUS_OBJECTS = frozenset({WEBSOCKET_V5, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"})
COMMAND_WEBSOCKET = (
    WEBSOCKET_V5,
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
)
COMMAND_SPDY = (
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
)
FORWARD_SPDY = ("portforward.k8s.io",)
TUNNEL = "SPDY/3.1+portforward.k8s.io"  # SPDY in the messages of a WebSocket (KEP-4006)
FORWARD_WEBSOCKET = (TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io")

_MOST_SIZES = 4096  # bytes of terminal sizes that are parsed
_OBJECT = re.compile(r"\{[^{}]*\}")  # a size has no nested object, so one pass is enough


def chosen(wanted: Iterable[str], spoken: Sequence[str]) -> str | None:
    """Return the first of the client's protocols that we speak; None if there is none."""
    return next((protocol for protocol in wanted if protocol in spoken), None)


def is_base64(protocol: str) -> bool:
    """Return whether a WebSocket's messages are text in base64."""
    return protocol in _BASE64


def greeting(options: StreamOptions) -> bytes:
    """Return an empty message on the lowest output channel, with which upstream begins.

    It shows a WebSocket client that the command is connected (createWebSocketStreams).
    """
    if not (options.stdout or options.stderr):
        return bytes([ERROR])
    return bytes([STDOUT if options.stdout else STDERR])


def has_resize(protocol: str) -> bool:
    """Return whether a SPDY client with a terminal opens a stream for its size."""
    # As supportsTerminalResizing in remotecommand/httpstream.go.
    return protocol in ("v4.channel.k8s.io", "v3.channel.k8s.io")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, as a metav1.Status."""

    status: dict[str, Any]

    def encoded(self, protocol: str) -> bytes:
        """Return the content of the error stream; in older protocols success is empty."""
        if protocol in _STATUS_OBJECTS:
            return msgspec.json.encode(self.status)
        return str(self.status.get("message", "")).encode()


SUCCESS = Outcome({"metadata": {}, "status": "Success"})


def exited(code: int) -> Outcome:
    """Return the outcome of a command that has exited."""
    if code == 0:
        return SUCCESS
    return Outcome(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    )


def failed(message: str) -> Outcome:
    """Return the outcome of a command that could not be run."""
    return Outcome(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"Internal error occurred: {message}",
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }
    )


class SizeReader:
    """Parses terminal sizes: a sequence of `{"Width": 80, "Height": 24}`."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, content: bytes) -> tuple[int, int] | None:
        """Return rows and columns of the newest complete size; other content is dropped."""
        # Only the end: an older size would be replaced anyway.
        text = self._rest + content[-_MOST_SIZES:].decode("utf-8", "replace")
        newest, end = None, 0
        for found in _OBJECT.finditer(text):
            end = found.end()
            newest = _size(found[0]) or newest
        begun = text.rfind("{", end)
        self._rest = text[begun:][-_MOST_SIZES:] if begun >= 0 else ""
        return newest


def _size(text: str) -> tuple[int, int] | None:
    try:
        value = msgspec.json.decode(text)
    except JSON_ERRORS:
        return None
    # Go's encoding/json ignores the case of names, and leaves missing ones at zero.
    named = {name.lower(): number for name, number in value.items()}
    rows, columns = named.get("height", 0), named.get("width", 0)
    for number in (rows, columns):
        # Not `isinstance`, because a bool is an int. TerminalSize has uint16.
        if type(number) is not int or not 0 <= number < 1 << 16:
            return None
    return rows, columns
