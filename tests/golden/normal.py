"""Replacing what differs from run to run by words, the same ones as in the recorded data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-X"),
        (r"sha256:[0-9a-f]{64}", "SHA"),
        (r"\b[0-9a-f]{64}\b", "CID"),
        (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", "TIME"),
        (r"\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+", "..TIMEDIR"),
        # The recorded data has the names of some termination logs left as they were.
        (r"(/containers/[a-z0-9-]+)/[0-9a-f]{8}\b", r"\1/RANDOM"),
        (r"/proc/\d+/ns/", "/proc/PID/ns/"),
        (r"/var/lib/containerd-e2e", "STATE"),
        (r"[\w/.]*/netns/cni-UID", "NETNS/cni-UID"),
        (r"registry\.k8s\.io/pause:[\d.]+", "PAUSE"),
    )
)


class Words:
    """What stands for what of one run: pairs of a text and its word."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._words = dict(pairs)
        texts = sorted(self._words, key=len, reverse=True)
        # No part of a longer word: 10.0.0.1 is not in 10.0.0.12.
        either = "|".join(map(re.escape, texts)) or "(?!)"
        self._pattern = re.compile(rf"(?<![\w.])(?:{either})(?!\w)")

    def text(self, value: str) -> str:
        """Return a text with words in the place of what differs."""
        value = self._pattern.sub(lambda found: self._words[found[0]], value)
        for pattern, word in _RULES:
            value = pattern.sub(word, value)
        return value

    def json(self, value: Any) -> Any:
        """Return a JSON value with words in its strings and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.json(item) for key, item in value.items()}
        return [self.json(item) for item in value] if isinstance(value, list) else value


NO_WORDS = Words(())


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return path -> value of every leaf; what a list's entries are known by is their index.

    An empty object or list is a leaf. A list of plain values is one leaf.
    """
    if isinstance(value, dict) and value:
        items: Iterable[tuple[str, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = _keyed(value)
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in items:
        found |= flat(item, f"{path}.{key}" if path else str(key))
    return found


_KEYS = ("path", "destination", "type", "mountPath", "name", "ip", "key")


def _keyed(entries: Sequence[Any]) -> list[tuple[str, Any]]:
    key = next((k for k in _KEYS if all(isinstance(e, dict) and k in e for e in entries)), None)
    named = [str(e[key]) if key else str(n) for n, e in enumerate(entries)]
    seen: dict[str, int] = {}
    found = []
    for name, entry in zip(named, entries, strict=True):
        seen[name] = seen.get(name, 0) + 1
        found.append((name if seen[name] == 1 else f"{name}#{seen[name]}", entry))
    return found


def shown(value: Any) -> str:
    """Return a leaf as it is compared and printed."""
    return json.dumps(value, sort_keys=True)
