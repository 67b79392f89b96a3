"""From the bytes of a file or response to raw documents, one per object.

YAML or JSON, several documents, `List` and `PodList` taken apart, empty documents skipped.
Decided as a whole: a file of which one document cannot be read gives none, because nobody
can tell whose pods the rest of it would have been.

A text that begins with `{` is JSON first: JSON's escapes are not all YAML's. What is not
JSON after all is read as YAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubelet_trio.objects import API_VERSIONS, KINDS
from kubelet_trio.sources._errors import FieldError, ManifestError
from kubelet_trio.sources.yaml_documents import YamlError, yaml_documents

MAX_MANIFEST_SIZE = 10 * 1024 * 1024  # bytes; the Go kubelet's limit for files and URLs

_KINDS = ("Pod", *KINDS)
_LISTS = ("List", "PodList")


@dataclass(frozen=True, slots=True)
class RawObject:
    """One object as written, with where it stands in its file."""

    document: int  # 1 for the first
    path: str  # "" or, in a list, items[2]
    value: dict[str, Any]
    kind: str = "Pod"


def decode(data: bytes, origin: str) -> list[RawObject]:
    """Return the objects of a manifest; none if it is an empty list.

    Raises:
        ManifestError: too large, unreadable, without any document, or an object of
            another kind. All objects are looked at before it is raised.
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
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise YamlError(f"not UTF-8: byte {data[exc.start]:#04x} at offset {exc.start}") from exc


def _read(text: str) -> list[Any]:
    if not text.lstrip().startswith("{"):
        return list(yaml_documents(text))
    try:
        return list(_json_documents(text))
    except _DuplicateFieldError as exc:
        list(yaml_documents(text))  # says the same with the line, where YAML can read it
        raise YamlError(str(exc)) from exc
    except (ValueError, RecursionError) as exc:
        try:
            return list(yaml_documents(text))
        except YamlError as yaml_exc:
            # Of a text that looks like JSON, JSON's complaint is the one that helps.
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
    """Yield path, object and the kind that its list gives it, of a document's objects."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind in _LISTS and value.get("apiVersion") == "v1":
        items = value.get("items")
        if isinstance(items, list | None):
            for index, item in enumerate(items or ()):
                yield f"items[{index}]", item, kind
            return
    yield "", value, ""


def _object_problem(item: Any, listed_as: str) -> tuple[str, str] | None:
    """Return field and message if this is no object that a node takes.

    Items of a PodList need not say what they are.
    """
    if not isinstance(item, dict):
        return "", f"expected an object of kind Pod, got {json_type(item)}"
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


def json_type(value: Any) -> str:
    """Return what JSON calls the type of a decoded value, with an article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


def quote(value: Any) -> str:
    """Return a value as error messages show it: JSON, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
