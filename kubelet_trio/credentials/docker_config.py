"""Logins in Docker's file formats: of pull secrets and of the node's own files.

`config.json` is `{"auths": {LOCATION: {"username", "password"} or {"auth": BASE64}}}`; the older
`.dockercfg` is the contents of `auths`. Error messages never quote the content.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from lightkube.models.core_v1 import Secret

from kubelet_trio.credentials.matching import Login, Logins, SecretSource
from kubelet_trio.model import JSON_ERRORS, get_logger
from kubelet_trio.objects import secret_content

log = get_logger()

_JSON_TYPE, _JSON_KEY = "kubernetes.io/dockerconfigjson", ".dockerconfigjson"
_LEGACY_TYPE, _LEGACY_KEY = "kubernetes.io/dockercfg", ".dockercfg"


def secret_logins(secret: Secret) -> Logins:
    """Return the logins of a pull secret; none if the secret has another type.

    Raises ValueError naming the secret if its content is malformed.
    """
    meta = secret.metadata
    name = f"{meta.namespace}/{meta.name}" if meta is not None else ""
    found: Logins = {}
    try:
        content = secret_content(secret)
        if secret.type == _JSON_TYPE and content.get(_JSON_KEY):
            found = config_logins(content[_JSON_KEY])
        elif secret.type == _LEGACY_TYPE and content.get(_LEGACY_KEY):
            found = legacy_logins(content[_LEGACY_KEY])
    except ValueError as exc:
        raise ValueError(f"image pull secret {name}: {exc}") from None
    if meta is None:
        return found
    source = SecretSource(meta.uid or "", meta.namespace or "", meta.name or "")
    return {location: replace(login, source=source) for location, login in found.items()}


def config_logins(text: bytes) -> Logins:
    """Return the logins of a `config.json`. Raises ValueError."""
    return _logins(_object(_decoded(text)).get("auths"))


def legacy_logins(text: bytes) -> Logins:
    """Return the logins of a `.dockercfg`. Raises ValueError."""
    return _logins(_decoded(text))


def node_logins(root_dir: Path, home: Path | None) -> Logins:
    """Return the logins of the first of the node's files that can be read. Blocks.

    The paths are the Go kubelet's: `config.json` in the root directory, the working directory,
    `~/.docker` and `/.docker`; then `.dockercfg` in the first two, `~` and `/`.
    """
    for path, read in _paths(root_dir, home):
        try:
            return read(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as exc:
            log.warning("credentials.file_unreadable", path=str(path), error=str(exc))
    return {}


def _paths(root_dir: Path, home: Path | None) -> Iterator[tuple[Path, Callable[[bytes], Logins]]]:
    # Every config.json before any .dockercfg, as ReadDockerConfigFile (credentialprovider).
    own = [home / ".docker"] if home is not None else []
    for directory in (root_dir, Path.cwd(), *own, Path("/.docker")):
        yield directory / "config.json", config_logins
    own = [home] if home is not None else []
    for directory in (root_dir, Path.cwd(), *own, Path("/")):
        yield directory / ".dockercfg", legacy_logins


def home_directory() -> Path | None:
    """Return $HOME; None if it is not set, as under systemd."""
    return Path(os.environ["HOME"]) if os.environ.get("HOME") else None


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    # Without the cause: the parser's message may quote the secret.
    except JSON_ERRORS:
        raise ValueError("not JSON") from None


def _object(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _logins(entries: Any) -> Logins:
    return {location: _login(_object(entry)) for location, entry in _object(entries).items()}


def _login(entry: Mapping[str, Any]) -> Login:
    given: dict[str, str] = {}
    for name in ("username", "password", "auth", "email"):
        value = entry.get(name)
        if not isinstance(value, str | None):
            raise ValueError(f"{name} is not a string")
        given[name] = value or ""  # some tools write null
    email = given["email"]
    # `auth` takes precedence over username and password, as in the Go kubelet.
    if not given["auth"]:
        return Login(given["username"], given["password"], email)
    # With or without padding (decodeDockerConfigFieldAuth): not every tool pads as Docker does. And
    # in lines, as `base64` prints it.
    auth = given["auth"].replace("\r", "").replace("\n", "")
    try:
        text = base64.b64decode(auth + "=" * (-len(auth) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("auth is not base64 of text") from None
    username, colon, password = text.partition(":")
    if not colon:
        raise ValueError("auth is not of the form base64(username:password)")
    return Login(username, password, email)
