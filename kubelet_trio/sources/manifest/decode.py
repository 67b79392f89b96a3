"""Decodes the bytes of a file or response into raw objects.

YAML or JSON, one or more documents; `List` and `PodList` are unpacked, empty documents
skipped. All or nothing: if one document cannot be read, the file gives no object, because
pods that the broken part defines would otherwise count as removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubelet_trio.objects import API_VERSIONS, DOCUMENT_KINDS
from kubelet_trio.sources.errors import FieldError, ManifestError, YamlError, json_type, quote
from kubelet_trio.sources.manifest.yaml_documents import yaml_documents

MAX_MANIFEST_SIZE = 10 * 1024 * 1024  # bytes; the Go kubelet's limit for files and URLs

_KINDS = ("Pod", *DOCUMENT_KINDS)
_LISTS = ("List", "PodList")


@dataclass(frozen=True, slots=True)
class RawObject:
    """One object as written, with its place in the file."""

    document: int  # 1 for the first
    path: str  # "" or, in a list, items[2]
    value: dict[str, Any]
    kind: str = "Pod"


def decode(data: bytes, origin: str) -> list[RawObject]:
    """Return the objects of a manifest; none if it is an empty list.

    Raises:
        ManifestError: too large, unreadable, without any document, or an object of
            another kind. It lists the problems of all objects.
    """
    try:
        documents = _read(_text(data))
    except YamlError as exc:
        raise ManifestError(origin, [FieldError("", str(exc))]) from exc
    numbered = [(i, value) for i, value in enumerate(documents, start=1) if value is not None]
    if not numbered:
        raise ManifestError(origin, [FieldError("", "holds no document")])
    objects: list[RawObject] = []
    errors: list[FieldError] = []
    for number, value in numbered:
        for path, item, listed_as in _objects(value):
            problem = _object_problem(item, listed_as)
            if problem is None:
                objects.append(RawObject(number, path, item, item.get("kind") or "Pod"))
            else:
                field, message = problem
                errors.append(FieldError(f"{path}.{field}".strip("."), message, number))
    if errors:
        raise ManifestError(origin, errors)
    return objects


def _text(data: bytes) -> str:
    if len(data) > MAX_MANIFEST_SIZE:
        raise YamlError(f"larger than {MAX_MANIFEST_SIZE // 2**20} MiB")
    try:
        # Editors on Windows write a byte order mark, which is not part of YAML or JSON.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise YamlError(f"not UTF-8: byte {data[exc.start]:#04x} at offset {exc.start}") from exc


def _read(text: str) -> list[Any]:
    # JSON first: libyaml refuses escapes that JSON allows (surrogate pairs).
    if not text.lstrip().startswith("{"):
        return list(yaml_documents(text))
    try:
        return list(_json_documents(text))
    except _DuplicateFieldError as exc:
        list(yaml_documents(text))  # raises the same error with its line, if this is YAML too
        raise YamlError(str(exc)) from exc
    except (ValueError, RecursionError) as exc:
        try:
            return list(yaml_documents(text))
        except YamlError as yaml_exc:
            # The text looks like JSON, so the JSON parser's message is the helpful one.
            raise (yaml_exc if isinstance(exc, RecursionError) else YamlError(str(exc))) from exc


class _DuplicateFieldError(Exception):
    pass


def _json_documents(text: str) -> Iterator[Any]:
    """Yield the values of a stream of JSON documents."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
    position = _skip_space(text, 0)
    while position < len(text):
        value, position = decoder.raw_decode(text, position)
        yield value
        position = _skip_space(text, position)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Strict decoding, as in the API server: `dict` alone would keep the last duplicate.
    value = dict(pairs)
    if len(value) < len(pairs):
        twice, seen = "", set[str]()
        for twice, _ in pairs:
            if twice in seen:
                break
            seen.add(twice)
        raise _DuplicateFieldError(f'duplicate field "{twice}"')
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _objects(value: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield path, object and kind of the enclosing list, for each object of a document."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind in _LISTS and value.get("apiVersion") == "v1":
        items = value.get("items")
        if isinstance(items, list | None):
            for index, item in enumerate(items or ()):
                yield f"items[{index}]", item, kind
            return
    yield "", value, ""


def _object_problem(item: Any, listed_as: str) -> tuple[str, str] | None:
    """Return field and message if a node does not accept this object."""
    if not isinstance(item, dict):
        return "", f"expected an object of kind Pod, got {json_type(item)}"
    # The API server omits kind and apiVersion of the items of a typed list.
    assumed = ("Pod", "v1") if listed_as == "PodList" else (None, None)
    kind, version = item.get("kind") or assumed[0], item.get("apiVersion") or assumed[1]
    if kind is None:
        return "kind", "Required value"
    if kind not in (*_KINDS, *_LISTS):
        known = ", ".join(quote(name) for name in (*_KINDS, *_LISTS))
        return "kind", f"Unsupported value: {quote(kind)}: supported values: {known}"
    if listed_as == "PodList" and kind != "Pod":
        return "kind", f"Unsupported value: {quote(kind)}: a PodList holds Pods"
    if version is None:
        return "apiVersion", "Required value"
    known = API_VERSIONS.get(kind, "v1")
    if version != known:
        return (
            "apiVersion",
            f"Unsupported value: {quote(version)}: supported values: {quote(known)}",
        )
    if kind in _LISTS:
        return ("kind", "a list inside a list") if listed_as else ("items", "expected a list")
    return None
