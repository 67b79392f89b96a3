"""Converts pods from and to the Python client's models (`kubernetes_asyncio`, `kubernetes`).

A client model describes itself: `attribute_map` has the API's name of each attribute and
`openapi_types` its type. A V1Pod is therefore read without importing the client (some 60 MB);
only `to_client_pod` imports it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

# The client writes both forms: `list[V1Container]` and `dict(str, str)`.
_GENERIC = re.compile(r"(list|dict)[\[(](?:str, )?(.*)[\])]")


def is_client_model(value: object) -> bool:
    """Return whether a value is one of the Python client's models."""
    kind = type(value)
    return isinstance(getattr(kind, "attribute_map", None), Mapping) and isinstance(
        getattr(kind, "openapi_types", None), Mapping
    )


def from_client_model(value: Any) -> Any:
    """Return a client model as plain JSON values under the API's names, without unset fields."""
    if is_client_model(value):
        fields = ((attr, getattr(value, attr)) for attr in type(value).openapi_types)
        names = type(value).attribute_map
        return {names[attr]: from_client_model(item) for attr, item in fields if item is not None}
    if isinstance(value, Mapping):
        return {key: from_client_model(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [from_client_model(item) for item in value]
    # The client parses times; the API has them as RFC 3339 text.
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return value


def to_client_pod(pod: Pod) -> Any:
    """Return a pod as a `kubernetes_asyncio` V1Pod. Raises ImportError without that package."""
    try:
        from kubernetes_asyncio.client import models
    except ImportError as exc:
        raise ImportError(
            "a V1Pod needs the Kubernetes client: pip install 'kubelet-trio[kubernetes]'"
        ) from exc
    return _to_client(msgspec.to_builtins(pod, builtin_types=(datetime.datetime,)), "V1Pod", models)


def _to_client(value: Any, kind: str, models: Any) -> Any:
    if value is None:
        return None
    if match := _GENERIC.fullmatch(kind):
        if match[1] == "list":
            return [_to_client(item, match[2], models) for item in value]
        return {key: _to_client(item, match[2], models) for key, item in value.items()}
    model = getattr(models, kind, None)
    if model is None or not isinstance(value, dict):
        return value  # a plain value (str, int, datetime, object): no model of that name
    fields = {
        attr: _to_client(value[name], model.openapi_types[attr], models)
        for attr, name in model.attribute_map.items()
        if value.get(name) is not None
    }
    return model(**fields)
