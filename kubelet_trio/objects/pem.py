"""Read and write PEM (RFC 7468), as Go's encoding/pem does. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

_BEGIN, _DASHES = "-----BEGIN ", "-----"
_WIDTH = 64  # characters in a line


def pem_blocks(text: str) -> Iterator[bytes]:
    """Yield the content of each block; what is between blocks and their headers is dropped.

    A block that is damaged is skipped.
    """
    kind: str | None = None
    lines: list[str] = []
    for raw in text.split("\n"):
        line = raw.rstrip()
        if line.startswith(_BEGIN) and line.endswith(_DASHES):
            kind, lines = line.removeprefix(_BEGIN).removesuffix(_DASHES), []
        elif kind is not None and line == f"-----END {kind}-----":
            content = _content(lines)
            if content is not None:
                yield content
            kind = None
        elif kind is not None:
            lines.append(line)


def certificates_pem(contents: Iterable[bytes]) -> bytes:
    """Return certificates as PEM text."""
    made = []
    for content in contents:
        text = base64.b64encode(content).decode()
        lines = [text[start : start + _WIDTH] for start in range(0, len(text), _WIDTH)]
        block = ["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""]
        made.append("\n".join(block))
    return "".join(made).encode()


def _content(lines: list[str]) -> bytes | None:
    # A header is `Name: value`; base64 has no colon.
    body = "".join(line for line in lines if ":" not in line)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
