"""Pods as the agent tells them: a watch, and the questions that tests ask of one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.machine import PATIENCE

Json = dict[str, Any]
NODE = "node"


class WaitTimeoutError(Exception):
    """What was waited for did not come; the message says what was there instead."""


class Watch:
    """Follows `GET /pods?watch=1` of a control socket: the pods by UID, as last told.

    Read only inside `read`, in the caller's own thread; what came meanwhile waits in the
    socket. HTTP/1.0, so that the body ends with the connection and is in no chunks.
    """

    def __init__(self, control: Path) -> None:
        self.pods: dict[str, Json] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(control))
        self._socket.sendall(b"GET /pods?watch=1 HTTP/1.0\r\n\r\n")
        self._text = b""
        self._in_body = False

    def named(self, name: str) -> list[Json]:
        """Return the pods of that name: two while one makes way for the other."""
        return [pod for pod in self.pods.values() if pod_name(pod) == name]

    def read(self, deadline: float) -> bool:
        """Take what comes next; False if nothing does until the deadline, or ever."""
        if (left := deadline - time.monotonic()) <= 0:
            return False
        self._socket.settimeout(left)
        try:
            chunk = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        self._text += chunk
        if not self._in_body:
            head, end, rest = self._text.partition(b"\r\n\r\n")
            if not end:
                return bool(chunk)
            assert b" 200 " in head, head
            self._in_body, self._text = True, rest
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(chunk)

    def _take(self, change: Json) -> None:
        if change["type"] == "BOOKMARK":
            return
        uid = change["object"]["metadata"]["uid"]
        if change["type"] == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = change["object"]

    def close(self) -> None:
        self._socket.close()


def eventually(
    check: Callable[[], object], within: float = 60, what: str = "", every: float = 0.05
) -> None:
    """Ask again and again, for what nobody announces, until `check` holds."""
    deadline = time.monotonic() + within * PATIENCE
    while not check():
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"not within {within} s: {what or check}")
        time.sleep(every)


def pod_name(pod: Json) -> str:
    """Return the name that the manifest gave: without the node's name at its end."""
    name: str = pod["metadata"]["name"]
    return name.removesuffix(f"-{NODE}")


def condition(pod: Json, kind: str) -> str:
    """Return the status of one of the pod's conditions, "" if it has none such."""
    found = (c["status"] for c in pod["status"].get("conditions", ()) if c["type"] == kind)
    return next(found, "")


def is_ready(pod: Json) -> bool:
    return "status" in pod and condition(pod, "Ready") == "True"


def container_status(pod: Json, name: str) -> Json:
    """Return the status of one container, of whatever kind; {} while it has none."""
    status = pod.get("status", {})
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    listed = (entry for kind in kinds for entry in status.get(kind, ()))
    return next((entry for entry in listed if entry["name"] == name), {})
