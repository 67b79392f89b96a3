"""Rules of Event in the core group: hardly any."""

from __future__ import annotations

from kubelet_trio.testing.kube.rules.problems import Problems
from kubelet_trio.testing.kube.store import Json


def check_event(problems: Problems, obj: Json) -> None:
    """Events of what has no namespace go to `default`."""
    own = obj["metadata"].get("namespace") or ""
    about = (obj.get("involvedObject") or {}).get("namespace") or ""
    if about != own and (about or own != "default"):
        problems.invalid("involvedObject.namespace", about, "does not match event.namespace")
