"""`-o json` and `-o yaml`."""

from __future__ import annotations

from typing import Any

import msgspec


def as_text(thing: Any, form: str) -> str:
    """Return decoded JSON as `json` or `yaml` text, the way kubectl lays it out."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(thing), indent=4).decode() + "\n"
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(thing, Dumper=dumper, default_flow_style=False, allow_unicode=True)
    return text


def as_list(things: list[Any]) -> Any:
    """Wrap objects as the v1 List that kubectl prints."""
    return {"apiVersion": "v1", "items": things, "kind": "List", "metadata": {}}
