"""Decodes the bytes of a file or response into raw objects.

YAML or JSON, one or more documents; `List` and `PodList` are unpacked, empty documents
skipped. All or nothing: if one document cannot be read, the file counts as a whole as wrong,
because pods that the broken part defines would otherwise count as removed. The rest is read all
the same, so that all its errors are told at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kubelet_trio.objects import API_VERSIONS, DOCUMENT_KINDS
from kubelet_trio.sources.errors import FieldError, YamlError, json_type, quote
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


class Decoded(NamedTuple):
    """The objects of a manifest, and what is wrong with the rest of it."""

    objects: list[RawObject]
    errors: list[FieldError]


def decode(data: bytes) -> Decoded:
    """Return the objects of a manifest; none and no error if it is an empty list.

    The errors are those of a text that is too large or unreadable, or has no document, and of
    objects of another kind. Objects may come with errors: the manifest counts only without any.
    """
    documents, errors = _read(data)
    numbered = [(i, value) for i, value in enumerate(documents, start=1) if value is not None]
    if not numbered and not errors:
        return Decoded([], [FieldError("", "holds no document")])
    objects: list[RawObject] = []
    for number, value in numbered:
        for path, item, listed_as in _objects(value):
            problem = _object_problem(item, listed_as)
            if problem is not None:
                field, message = problem
                errors.append(FieldError(f"{path}.{field}".strip("."), message, number))
            kind = item.get("kind") or "Pod" if isinstance(item, dict) else ""
            # Without its version it can still be judged, but for a list, whose items are unknown.
            if problem is None or (field == "apiVersion" and kind not in _LISTS):
                objects.append(RawObject(number, path, item, kind))
    return Decoded(objects, errors)


def _read(data: bytes) -> tuple[list[Any], list[FieldError]]:
    """Return the documents up to the first that cannot be read, and why it cannot."""
    documents: list[Any] = []
    try:
        for value in _documents(text_of(data)):
            documents.append(value)  # noqa: PERF402  # those before an error count
    except YamlError as exc:
        return documents, [FieldError("", exc.message, 0, exc.line, exc.column)]
    return documents, []


def text_of(data: bytes) -> str:
    """Return the text of a manifest. Raises YamlError if it is too large, or not UTF-8."""
    if len(data) > MAX_MANIFEST_SIZE:
        raise YamlError(f"larger than {MAX_MANIFEST_SIZE // 2**20} MiB")
    try:
        # Editors on Windows write a byte order mark, which is not part of YAML or JSON.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise YamlError(f"not UTF-8: byte {data[exc.start]:#04x} at offset {exc.start}") from exc


def _documents(text: str) -> Iterator[Any]:
    # JSON first: libyaml refuses escapes that JSON allows (surrogate pairs).
    if not text.lstrip().startswith("{"):
        yield from yaml_documents(text)
        return
    try:
        yield from list(_json_documents(text))
        return
    except _DuplicateFieldError as exc:
        list(yaml_documents(text))  # raises the same error with its line, if this is YAML too
        raise YamlError(str(exc)) from exc
    except (ValueError, RecursionError) as exc:
        try:
            documents = list(yaml_documents(text))
        except YamlError as yaml_exc:
            # The text looks like JSON, so the JSON parser's message is the helpful one.
            raise (_json_error(exc) if isinstance(exc, ValueError) else yaml_exc) from exc
    yield from documents


def _json_error(exc: ValueError) -> YamlError:
    if isinstance(exc, json.JSONDecodeError):
        return YamlError(f"{exc.msg[:1].lower()}{exc.msg[1:]}", exc.lineno, exc.colno)
    return YamlError(str(exc))


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


# Kinds whose controllers make pods: where their pod is, and what nothing on a node does for them.
_WORKLOADS = {
    **dict.fromkeys(
        ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"),
        ("spec.template", "makes replicas or rolls out changes"),
    ),
    "DaemonSet": ("spec.template", "makes pods of it: a manifest is of one node anyway"),
    "Job": (
        "spec.template",
        "counts completions (a Pod's restartPolicy may be OnFailure or Never)",
    ),
    "CronJob": ("spec.jobTemplate.spec.template", "starts pods by the clock"),
}


def _instead_of(kind: Any) -> str:
    """Return what to write instead of a kind that a node does not know."""
    if isinstance(kind, str) and kind in _WORKLOADS:
        template, missing = _WORKLOADS[kind]
        return (
            f"it needs a controller of a cluster, and nothing on a node {missing}; put its "
            f"{template} into a document with apiVersion: v1, kind: Pod and a metadata.name"
        )
    known = (*_KINDS, *_LISTS)
    if isinstance(kind, str):
        folded = {name.lower(): name for name in known}
        word = kind.strip().lower()
        near = folded.get(word) or folded.get(word.removesuffix("s")) or _similar(word, folded)
        if near:
            return f"did you mean {quote(near)}?"
    return f"supported values: {', '.join(quote(name) for name in known)}"


def _similar(word: str, known: Mapping[str, str]) -> str:
    import difflib  # deferred: only invalid manifests need it

    found = difflib.get_close_matches(word[:64], known, n=1, cutoff=0.8)
    return known[found[0]] if found else ""


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
        return "kind", f"Unsupported value: {quote(kind)}: {_instead_of(kind)}"
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
