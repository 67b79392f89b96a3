"""The API's patch formats, as pure functions on JSON values.

A strategic merge patch merges some lists by a key of their items, the `patchMergeKey` of the API's
types. The tables here hold the keys of the kinds that a node uses. `make_strategic` computes the
smallest patch between two states. Source: strategicpatch in apimachinery.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from kubelet_trio.kube.errors import MergeKeyError, PatchError

Json = Any
JsonObject = dict[str, Any]

# Merge key by the path of a list, without its items; "" for lists of plain values.
_META = {"metadata.finalizers": "", "metadata.ownerReferences": "uid"}
_CONTAINER = {
    "env": "name",
    "ports": "containerPort",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
}
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_POD = {
    "spec.hostAliases": "ip",
    "spec.imagePullSecrets": "name",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.volumes": "name",
    "status.conditions": "type",
    "status.hostIPs": "ip",
    "status.podIPs": "ip",
    "status.resourceClaimStatuses": "name",
    **{f"spec.{part}": "name" for part in _CONTAINERS},
    **{f"spec.{part}.{name}": key for part in _CONTAINERS for name, key in _CONTAINER.items()},
}
_NODE = {"spec.podCIDRs": "", "status.addresses": "type", "status.conditions": "type"}
MERGE_KEYS: dict[str, dict[str, str]] = {
    "Pod": _META | _POD,
    "Node": _META | _NODE,
    "Namespace": _META | {"status.conditions": "type"},
    "PersistentVolumeClaim": _META | {"status.conditions": "type"},
    "Service": _META | {"spec.ports": "port", "status.conditions": "type"},
    "ServiceAccount": _META | {"imagePullSecrets": "name", "secrets": "name"},
    "CSINode": _META | {"spec.drivers": "name"},
}

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"
_RETAIN = "$retainKeys"


def apply_merge(current: Json, patch: Json) -> Json:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(current) if isinstance(current, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge(result.get(key), value)
    return result


def apply_strategic(current: Mapping[str, Any], patch: Mapping[str, Any], kind: str) -> JsonObject:
    """Apply a strategic merge patch to an object of a kind.

    Raises:
        PatchError: an item of a merged list has no merge key.
    """
    return _merge(current, patch, MERGE_KEYS.get(kind, _META), "")


def _merge(
    current: Mapping[str, Any], patch: Mapping[str, Any], keys: Mapping[str, str], path: str
) -> JsonObject:
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    # `$patch: replace` in an object: the patch is the new value.
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(current)
    # Of types with `patchStrategy=retainKeys` (a volume's source): all other keys go.
    if _RETAIN in patch:
        result = {key: value for key, value in result.items() if key in patch[_RETAIN]}
    for key, value in patch.items():
        # Lists of plain values have no merge key to delete by.
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            result[name] = [item for item in result.get(name) or () if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            below = f"{path}.{key}" if path else key
            order = patch.get(_ORDER + key)
            result[key] = _merge_value(result.get(key), value, keys, below, order)
    for key, order in patch.items():
        if key.startswith(_ORDER) and (name := key.removeprefix(_ORDER)) not in patch:
            below = f"{path}.{name}" if path else name
            if name in result and below in keys:
                result[name] = _ordered(result[name], order, keys[below])
    return result


def _merge_value(
    current: Json, value: Json, keys: Mapping[str, str], path: str, order: Sequence[Any] | None
) -> Json:
    if isinstance(value, Mapping):
        return _merge(current if isinstance(current, Mapping) else {}, value, keys, path)
    if isinstance(value, Sequence) and not isinstance(value, str) and path in keys:
        key = keys[path]
        present = current if isinstance(current, list) else []
        if not key:
            merged = _union(present, value)
        else:
            merged = _merge_list(present, value, keys, path)
            if order is None:
                return _patched_first(merged, present, value, key)
        return _ordered(merged, order, key) if order is not None else merged
    return copy.deepcopy(value)


def _union(current: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    return [*current, *(item for item in added if item not in current)]


def _merge_list(
    current: Sequence[Any], patch: Sequence[Any], keys: Mapping[str, str], path: str
) -> list[Any]:
    key = keys[path]
    replaced = any(item == {"$patch": "replace"} for item in patch)
    result: list[Any] = [] if replaced else list(current)
    for item in patch:
        if item == {"$patch": "replace"}:
            continue
        if not isinstance(item, Mapping) or key not in item:
            raise MergeKeyError(item, key, path)
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != item[key]]
        elif at is None:
            result.append(_merge({}, item, keys, path))
        else:
            result[at] = _merge(result[at], item, keys, path)
    return result


def _patched_first(
    merged: Sequence[Any], before: Sequence[Any], patch: Sequence[Any], key: str
) -> list[Any]:
    """Return the items in the server's order for a patch without `$setElementOrder`.

    The patch's items keep the patch's order. An item that the patch does not name stays before
    the items that it was before, and new items come first (mergeSortedSlice).
    """
    place = {item.get(key): at for at, item in enumerate(before)}
    order = [item.get(key) for item in patch if isinstance(item, Mapping)]
    by_key = {item.get(key): item for item in merged}
    named = [name for name in dict.fromkeys(order) if name in by_key]
    left = [name for name in by_key if name not in named]
    result = []
    for name in named:
        while left and name in place and left[0] in place and place[left[0]] < place[name]:
            result.append(left.pop(0))
        result.append(name)
    return [by_key[name] for name in (*result, *left)]


def _ordered(items: Sequence[Any], order: Sequence[Any], key: str) -> list[Any]:
    """Return the items in the patch's order; those it does not name keep their position."""

    def name(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, Mapping) else item

    wanted = [name(item) for item in order]
    named = sorted(
        (item for item in items if name(item) in wanted), key=lambda i: wanted.index(name(i))
    )
    iterator = iter(named)
    return [next(iterator) if name(item) in wanted else item for item in items]


def make_strategic(before: Mapping[str, Any], after: Mapping[str, Any], kind: str) -> JsonObject:
    """Return the smallest strategic merge patch from one state of an object to another.

    Empty if they are equal. Items of a merged list that only `before` has are deleted, so leave
    items of other owners out of both.
    """
    return _diff(before, after, MERGE_KEYS.get(kind, _META), "")


def _diff(
    before: Mapping[str, Any], after: Mapping[str, Any], keys: Mapping[str, str], path: str
) -> JsonObject:
    patch: JsonObject = {key: None for key in before if after.get(key) is None}
    for key, value in after.items():
        old = before.get(key)
        if value is None or value == old:
            continue
        below = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            patch[key] = _diff(old, value, keys, below)
        elif isinstance(value, list) and below in keys:
            _diff_list(patch, key, old or [], value, keys, below)
        else:
            patch[key] = value
    return patch


def _diff_list(
    patch: JsonObject,
    name: str,
    old: Sequence[Any],
    new: Sequence[Any],
    keys: Mapping[str, str],
    path: str,
) -> None:
    key = keys[path]
    if not key:
        added = [item for item in new if item not in old]
        gone = [item for item in old if item not in new]
        patch |= {name: added} if added else {}
        patch |= {_DELETE + name: gone} if gone else {}
        patch[_ORDER + name] = list(new)
        return
    known = {item[key]: item for item in old}
    changes: list[JsonObject] = []
    for item in new:
        was = known.get(item[key])
        if was != item:
            changes.append({**_diff(was or {}, item, keys, path), key: item[key]})
    wanted = [item[key] for item in new]
    changes += [{"$patch": "delete", key: k} for k in known if k not in wanted]
    if old:
        # A new list needs no order. And a server that does not know the field ignores a new list,
        # but refuses a patch with an order for it.
        patch[_ORDER + name] = [{key: k} for k in wanted]
    if changes:
        patch[name] = changes


def apply_json_patch(current: Json, operations: Sequence[Mapping[str, Any]]) -> Json:
    """Apply a JSON patch (RFC 6902).

    Raises:
        PatchError: an operation that does not fit, or a `test` that fails.
    """
    document = copy.deepcopy(current)
    for operation in operations:
        document = _operate(document, operation)
    return document


def _operate(document: Json, operation: Mapping[str, Any]) -> Json:
    name, path = operation.get("op"), str(operation.get("path", ""))
    if name in ("move", "copy"):
        source = str(operation.get("from", ""))
        value = copy.deepcopy(_lookup(document, source))
        if name == "move":
            document = _operate(document, {"op": "remove", "path": source})
        return _operate(document, {"op": "add", "path": path, "value": value})
    if name == "test":
        if _lookup(document, path) != operation.get("value"):
            raise PatchError(f"testing value {path} failed")
        return document
    if name not in ("add", "replace", "remove"):
        raise PatchError(f"unexpected operation {name!r}")
    value = copy.deepcopy(operation.get("value"))
    if not path:
        return value
    parent_path, _, last = path.rpartition("/")
    parent, key = _lookup(document, parent_path), _unescaped(last)
    if name != "add":
        _lookup(document, path)  # RFC 6902: the target of replace and remove must exist
    if isinstance(parent, list):
        # RFC 6901: "-" is the position after the last item.
        index = len(parent) if key == "-" else _index(key, len(parent), path)
        if name == "add":
            parent.insert(index, value)
        elif name == "remove":
            del parent[index]
        else:
            parent[index] = value
    elif name == "remove":
        del parent[key]
    else:
        parent[key] = value
    return document


def _lookup(document: Json, path: str) -> Json:
    for part in path.split("/")[1:]:
        key = _unescaped(part)
        if isinstance(document, list):
            index = _index(key, len(document) - 1, path)
            document = document[index]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            raise PatchError(f"doc is missing path: {path!r}")
    return document


def _index(text: str, last: int, path: str) -> int:
    if not text.isdigit() or int(text) > last:
        raise PatchError(f"invalid index referenced in path: {path!r}")
    return int(text)


def _unescaped(part: str) -> str:
    # In this order (RFC 6901, 4): "~01" stands for "~1", not for "/".
    return part.replace("~1", "/").replace("~0", "~")
