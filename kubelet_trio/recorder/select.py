"""Chooses entries of a recording: those of some pods, or since some time. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from kubelet_trio.recorder.format import Entry, Kind
from kubelet_trio.recorder.messages import read_body, write_message

_UID_LABEL = "io.kubernetes.pod.uid"
_IN_PATH = re.compile(r"/pods/([^/]+)/")
_LISTS = ("list_containers", "list_pod_sandboxes")
_OF_POD = (Kind.RECORD, Kind.PLAN, Kind.STATUS, Kind.DECISION)


def pod_uids(entries: Iterable[Entry], name: str, namespace: str) -> frozenset[str]:
    """Return the UIDs of the pods that had a name, with or without the node's at its end."""
    found = set()
    node = ""
    for entry in entries:
        if entry.kind is Kind.START:
            node = read_body(entry.body).get("node") or ""
        if entry.kind not in (Kind.WANTED, Kind.RECORD) or not entry.body:
            continue
        body = read_body(entry.body)
        meta = (body.get("pod") if entry.kind is Kind.RECORD else body).get("metadata") or {}
        names = (name, f"{name}-{node}")
        if meta.get("name") in names and (meta.get("namespace") or "default") == namespace:
            found.add(entry.key.rpartition("/")[2])
    return frozenset(found)


class PodFilter:
    """Passes on what concerns some pods, and what concerns the node."""

    def __init__(self, uids: Collection[str]) -> None:
        self._uids = uids
        self._owners: dict[str, str] = {}  # of sandboxes and containers, by id
        self._calls: dict[tuple[Kind, int], tuple[str, str]] = {}  # method and pod, by number

    def filter(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the chosen entries. A list keeps the objects of the chosen pods."""
        for entry in entries:
            if entry.kind is Kind.START:
                body = {**read_body(entry.body), "only": sorted(self._uids)}
                yield replace(entry, body=write_message(body))
            elif entry.kind is Kind.READ and entry.key.partition(":")[0] in _LISTS:
                if (found := self._of_list(entry)) is not None:
                    yield found
            elif self._owner(entry) in ("", *self._uids):
                yield entry

    def _owner(self, entry: Entry) -> str:
        """Return the UID of the pod that an entry is about, "" if it is about the node."""
        kind, key = entry.kind, entry.key
        if kind in _OF_POD:
            return key
        if kind in (Kind.WANTED, Kind.REQUEST):
            return key.rpartition("/")[2]
        if kind is Kind.PROBE:
            return key.partition("/")[0]
        if kind is Kind.EXIT:
            return self._owners.get(key, "")
        if kind is Kind.READ:
            return self._of_read(entry)
        if kind in (Kind.CALL, Kind.VOLUME):
            return self._of_call(entry, read_body(entry.body))
        if kind is Kind.ANSWER:
            return self._of_answer(entry)
        return ""

    def _of_read(self, entry: Entry) -> str:
        method, _, name = entry.key.partition(":")
        object_id = name.partition("/")[0]
        if method in ("container_status", "pod_sandbox_status"):
            found = read_body(entry.body).get("ok") or {}
            self._learn(object_id, found.get("status") or found)
        return self._owners.get(object_id, "")

    def _of_list(self, entry: Entry) -> Entry | None:
        body = read_body(entry.body)
        if "ok" not in body:
            return entry
        for found in body["ok"]["entries"]:
            self._learn(found["id"], found)
        entries = [found for found in body["ok"]["entries"] if self._is_chosen(found["id"])]
        gone = [object_id for object_id in body["ok"]["gone"] if self._is_chosen(object_id)]
        if len(entries) == len(body["ok"]["entries"]) and len(gone) == len(body["ok"]["gone"]):
            return entry
        if not entries and not gone and not body["ok"].get("first"):
            return None
        chosen = {**body["ok"], "entries": entries, "gone": gone}
        return replace(entry, body=write_message({"ok": chosen}))

    def _is_chosen(self, object_id: str) -> bool:
        return self._owners.get(object_id, "") in ("", *self._uids)

    def _of_call(self, entry: Entry, body: dict[str, Any]) -> str:
        number = int(body.get("call") or 0)
        if entry.kind is Kind.VOLUME:
            if "args" not in body:
                return self._calls.get((Kind.VOLUME, number), ("", ""))[1]
            found = _IN_PATH.search(" ".join(map(str, body["args"])))
            owner = found[1] if found is not None else ""
        else:
            owner = self._of_request(body.get("request") or {})
        self._calls[entry.kind, number] = entry.key, owner
        return owner

    def _of_request(self, request: dict[str, Any]) -> str:
        config = request.get("config") or request.get("sandbox") or {}  # a pull has the latter
        uid = (config.get("metadata") or {}).get("uid") or (config.get("labels") or {}).get(
            _UID_LABEL
        )
        object_id = request.get("container_id") or request.get("pod_sandbox_id") or ""
        return str(uid or self._owners.get(object_id, ""))

    def _of_answer(self, entry: Entry) -> str:
        method, owner = self._calls.pop((Kind.CALL, int(entry.key)), ("", ""))
        made = read_body(entry.body).get("ok")
        if owner and method in ("run_pod_sandbox", "create_container") and isinstance(made, str):
            self._owners[made] = owner
        return owner

    def _learn(self, object_id: str, found: dict[str, Any]) -> None:
        owner = (found.get("labels") or {}).get(_UID_LABEL)
        if owner:
            self._owners[object_id] = owner


def since(entries: Iterable[Entry], wall: float) -> Iterator[Entry]:
    """Yield the entries from the last segment on that begins at or before a time, Unix seconds.

    All, if none does.
    """
    held: list[Entry] = []
    for entry in entries:
        if entry.kind is Kind.START and float(read_body(entry.body)["wall"]) <= wall:
            held.clear()
        held.append(entry)
    yield from held
