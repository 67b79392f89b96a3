"""The keys and bytes of config maps and secrets."""

from __future__ import annotations

import base64
import binascii

from lightkube.models.core_v1 import ConfigMap, Secret


def config_map_content(config_map: ConfigMap) -> dict[str, bytes]:
    """Return text and binary data together, as a volume shows them. Raises ValueError."""
    content = {key: _encoded(value) for key, value in (config_map.data or {}).items()}
    content.update(_decoded(config_map.binaryData))
    return content


def secret_content(secret: Secret) -> dict[str, bytes]:
    """Return a secret's data; `stringData` goes before `data`, as at the API server.

    Raises ValueError where something is not base64.
    """
    content = _decoded(secret.data)
    content.update({key: _encoded(value) for key, value in (secret.stringData or {}).items()})
    return content


def _encoded(text: str) -> bytes:
    return text.encode()


def _decoded(data: dict[str, str] | None) -> dict[str, bytes]:
    return {key: decode_base64(value) for key, value in (data or {}).items()}


def decode_base64(text: str) -> bytes:
    """Decode standard base64, line breaks allowed, as the API server does. Raises ValueError."""
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except binascii.Error as exc:
        raise ValueError(f"not base64: {exc}") from None
