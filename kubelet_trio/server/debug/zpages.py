"""/statusz and /flagz: the state and the flags of this process, as text or as an object.

A request whose `Accept` names an object of `config.k8s.io` by its group, version and kind gets it,
in JSON or YAML. Any other gets text for people.

Source: pkg/server/statusz and flagz, and NegotiateOutputMediaType, of k8s.io/apiserver.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import yaml

from kubelet_trio import __version__
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.types import Headers, Response

_COMPONENT = "kubelet"
_GROUP = "config.k8s.io"
_TEXT, _JSON, _YAML = "text/plain", "application/json", "application/yaml"
_TYPES = (_JSON, _YAML, _TEXT)  # in the order in which upstream tries them for a wildcard
_VERSIONS = ("v1beta1", "v1alpha1")
_DEPRECATED = "v1alpha1"
_TARGET = ("g", "v", "as")
_NOSNIFF: Headers = (("X-Content-Type-Options", "nosniff"),)
_WARNING = (
    "\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n\n"
)


class NotAcceptableError(HttpError):
    """The request's `Accept` names no form that there is: 406, with a Status for its body."""

    def __init__(self) -> None:
        types = ", ".join(_TYPES)
        super().__init__(
            HTTPStatus.NOT_ACCEPTABLE, f"only the following media types are accepted: {types}"
        )

    def response(self) -> Response:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": "NotAcceptable",
            "code": self.status,
        }
        return Response(self.status, msgspec.json.encode(status), _JSON)


def negotiate(accept: str | None, kind: str) -> tuple[str, str]:
    """Return the media type of the answer and the object's version, "" for text.

    `accept` is the request's header, `kind` that of the object. Raises `HttpError` 406.
    """
    if not accept or not accept.strip():
        return _TEXT, ""
    for media_type, parameters in _clauses(accept):
        target = tuple(parameters.get(name, "") for name in _TARGET)
        # No form is a stream, and no object has a server version ("sv") to choose.
        if parameters.get("stream") or parameters.get("sv"):
            continue
        for offered in _TYPES:
            if not _matches(media_type, offered):
                continue
            if offered == _TEXT and not any(name in parameters for name in _TARGET):
                return _TEXT, ""
            if offered != _TEXT and target in {(_GROUP, each, kind) for each in _VERSIONS}:
                return offered, target[1]
    raise NotAcceptableError


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    """Return the media types of an `Accept` header with their parameters, the preferred first."""
    found = []
    for clause in accept.split(","):
        media_type, *words = (word.strip() for word in clause.split(";"))
        pairs = (word.partition("=") for word in words)
        parameters = {name.strip(): value.strip().strip('"') for name, _, value in pairs}
        found.append((media_type, parameters))
    return sorted(found, key=lambda each: -_quality(each[1]))


def _quality(parameters: Mapping[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 1.0  # as upstream's parser, which leaves its default


def _matches(wanted: str, offered: str) -> bool:
    return wanted in (offered, "*/*", f"{offered.partition('/')[0]}/*")


def statusz(
    accept: str | None, started_at: float, now: float, kubernetes: str, paths: Sequence[str]
) -> Response:
    """Return the answer to /statusz. Times are Unix seconds. Raises `HttpError` 406."""
    media_type, version = negotiate(accept, "Statusz")
    started = datetime.datetime.fromtimestamp(int(started_at), datetime.UTC)
    up = max(0, int(now - started_at))
    emulated = kubernetes.removeprefix("v").rpartition(".")[0]
    if version:
        fields = {
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "uptimeSeconds": up,
            "goVersion": "",
            "binaryVersion": __version__,
            "emulationVersion": emulated,
            "paths": list(paths),
        }
        return _object(media_type, version, "Statusz", fields)
    lines = {
        "Started": started.strftime("%a %b %d %H:%M:%S UTC %Y"),
        "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
        "Python version": sys.version.split()[0],
        "Binary version": __version__,
        "Emulation version": emulated,
        "Paths": " ".join(paths),
    }
    return _page("statusz", (f"{name}: {value}" for name, value in lines.items()))


def flagz(accept: str | None, flags: Mapping[str, str]) -> Response:
    """Return the answer to /flagz. Raises `HttpError` 406."""
    media_type, version = negotiate(accept, "Flagz")
    if version:
        return _object(media_type, version, "Flagz", {"flags": dict(flags)})
    return _page("flagz", (f"{name}={value}" for name, value in sorted(flags.items())))


def _object(media_type: str, version: str, kind: str, fields: Mapping[str, Any]) -> Response:
    body = {"kind": kind, "apiVersion": f"{_GROUP}/{version}", "metadata": {"name": _COMPONENT}}
    whole = {**body, **fields}
    if media_type == _YAML:
        encoded = yaml.safe_dump(whole, sort_keys=False).encode()
    else:
        encoded = msgspec.json.encode(whole)
    return Response(
        body=encoded,
        content_type=f"{media_type};g={_GROUP};v={version};as={kind}",
        headers=(*_NOSNIFF, *_deprecation(version, kind)),
    )


def _deprecation(version: str, kind: str) -> Iterator[tuple[str, str]]:
    if version == _DEPRECATED:
        page = kind.lower()
        text = f"This version of the {page} endpoint is deprecated. Please use a newer version."
        yield "Warning", f'299 - "{text}"'


def _page(name: str, lines: Iterable[str]) -> Response:
    text = f"\n{_COMPONENT} {name}{_WARNING}" + "\n".join(lines) + "\n"
    return Response(body=text.encode(), headers=_NOSNIFF)
