"""Encodes what the taps have noted as the bodies of entries, without secrets. Runs in a thread.

A tap notes objects as they are, and nobody changes them later: models of the API and messages are
replaced, not modified. So the event loop only keeps a reference.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Any

import msgspec

from kubelet_trio.cri import ImagePullError, RuntimeCallError
from kubelet_trio.model import blake2b
from kubelet_trio.pods import PodPlan
from kubelet_trio.recorder.masks import (
    LEFT_OUT,
    Mask,
    mask_bytes,
    mask_container_config,
    mask_object,
    mask_pod,
    mask_record,
    mask_runtime_object,
    mask_sandbox_config,
    mask_status,
    mask_text,
)

_encode = msgspec.json.Encoder().encode
_DIGEST = 4  # bytes
_AS_IN_CONFIGS = "utf-8", "surrogateescape"


class Variables:
    """Stands for the values of variables that device plugins give: digests with a key of its own.

    The key is never written, so that nobody can try values out. What is written shows only whether
    a variable had the same value in two entries of one agent. Only the writer's thread uses it.
    """

    def __init__(self) -> None:
        self._key = urandom(32)
        self.names: set[str] = set()  # of those that plugins have given

    def given(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return what stands for the values that a plugin gives; their names are known then."""
        self.names.update(values)
        return {
            name: self._mark(name, value.encode(*_AS_IN_CONFIGS)) for name, value in values.items()
        }

    def mark(self, name: str, value: str) -> str:
        """Return what stands for a value of a config, both in base64."""
        return b64encode(self._mark(name, b64decode(value)).encode()).decode()

    def _mark(self, name: str, value: bytes) -> str:
        told = b"%b=%b" % (name.encode(), value)
        return f"{LEFT_OUT} {blake2b(told, key=self._key, digest_size=_DIGEST).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a call, without its traceback."""

    error: str  # its class
    text: str
    code: str = ""
    reason: str = ""  # of a pull

    @classmethod
    def of(cls, exc: BaseException) -> Failure:
        if isinstance(exc, RuntimeCallError):
            reason = exc.reason if isinstance(exc, ImagePullError) else ""
            return cls(type(exc).__name__, exc.message, exc.code, reason)
        return cls(type(exc).__name__, str(exc))

    def fields(self) -> dict[str, str]:
        found = {"error": self.error, "text": mask_text(self.text)}
        return {**found, **{k: v for k in ("code", "reason") if (v := getattr(self, k))}}


@dataclass(frozen=True, slots=True)
class Listed:
    """News of a list call: entries that may have changed, and ids that are gone."""

    entries: Sequence[Any]
    gone: Sequence[str]
    is_first: bool = False  # the agent's first of all objects: noted even if it is empty


def encode_json(value: Any) -> bytes:
    """Return the body of an entry of plain values."""
    return mask_bytes(_encode(value))


def encode_pod(pod: Any) -> tuple[bytes, bytes]:
    """Return the body of a WANTED, and what of it is news if it differs.

    The API server sends a pod again with each status that this agent has reported.
    """
    found = mask_pod(_builtins(pod))
    body = mask_bytes(_encode(found))
    found.pop("status", None)
    if isinstance(found.get("metadata"), dict):
        found["metadata"].pop("resourceVersion", None)
    return body, _encode(found)


def encode_object(value: Any, kind: str) -> bytes:
    return mask_bytes(_encode(mask_object(_builtins(value), kind)))


def encode_status(status: Any) -> bytes:
    return _masked(status, mask_status)


def encode_record(content: bytes) -> bytes:
    """Return a pod's record, which is JSON already. Raises ValueError."""
    return mask_bytes(_encode(mask_record(msgspec.json.decode(content))))


def encode_request(content: Mapping[str, Any]) -> bytes:
    """Return the body of a REQUEST."""
    found = _builtins(content)
    if "manifest" in found:
        mask_pod({"spec": {"ephemeralContainers": [found["manifest"]]}})
    return mask_bytes(_encode(found))


def encode_checkpoint(content: bytes, variables: Variables) -> bytes:
    """Return the checkpoint of a manager; what device plugins have answered is told as in ASKED.

    Raises ValueError.
    """
    found = msgspec.json.decode(content)
    for claim in (found.get("claims") if isinstance(found, dict) else None) or ():
        mask_object(claim, "ResourceClaim")
    data = found.get("Data") if isinstance(found, dict) else None
    if not isinstance(data, dict):
        return mask_bytes(_encode(found))
    for entry in data.get("PodDeviceEntries") or ():
        entry["AllocResp"] = _answered(entry.get("AllocResp"), variables)
    return mask_bytes(_encode(found))


def _answered(response: str | None, variables: Variables) -> Any:
    # Here: few nodes have plugins.
    from kubelet_trio.recorder.devices import masked_answer

    return masked_answer(b64decode(response), variables) if response else None


def encode_call(number: int, request: Mapping[str, Any], variables: Variables) -> bytes:
    """Return the body of a CALL."""
    found = _builtins(request)
    config = found.get("config")
    if isinstance(config, dict) and "envs" in config:
        mask_container_config(config, variables.names, variables.mark)
    elif isinstance(config, dict):
        mask_sandbox_config(config)
    return mask_bytes(_encode({"call": number, "request": found}))


def encode_answer(result: Any) -> bytes:
    """Return the body of an ANSWER or READ: a result, or a `Failure`."""
    if isinstance(result, Failure):
        return mask_bytes(_encode(result.fields()))
    if result is None or isinstance(result, str | bool | int):
        return mask_bytes(_encode({"ok": result}))
    return mask_bytes(_encode({"ok": _mask_result(_builtins(result))}))


def encode_entry_of_list(entry: Any) -> bytes:
    """Return a message in a list."""
    return mask_bytes(_encode(mask_runtime_object(_builtins(entry))))


def list_body(entries: Sequence[bytes], gone: Sequence[str], *, is_first: bool = False) -> bytes:
    """Return the body of a READ of a list, from its encoded entries."""
    first = b',"first":true' if is_first else b""
    told = b",".join(entries), _encode(list(gone)), first
    return b'{"ok":{"entries":[%b],"gone":%b%b}}' % told


def encode_plan(plan: PodPlan) -> bytes:
    """Return the body of a PLAN."""
    waiting = {name: [why.reason, mask_text(why.message)] for name, why in plan.waiting.items()}
    fields = {
        "stop_containers": [
            {"id": stop.id, "name": stop.name, "why": stop.message, "grace": stop.grace_period}
            for stop in plan.stop_containers
        ],
        "stop_sandboxes": plan.stop_sandboxes,
        "remove_containers": plan.remove_containers,
        "create_sandbox": plan.create_sandbox,
        "sandbox_attempt": plan.sandbox_attempt,
        "sandbox_id": plan.sandbox_id,
        "resize": None
        if plan.resize is None
        else [one.container.spec.name for one in plan.resize.containers],
        "start": [{"name": s.container.spec.name, "attempt": s.attempt} for s in plan.start],
        "waiting": waiting,
        "retry_at": plan.retry_at,
        "finished": plan.finished,
    }
    return mask_bytes(_encode({"lines": plan_lines(plan), "plan": fields}))


def plan_lines(plan: PodPlan) -> list[str]:
    """Return what a sync does, in a line each, in the order in which it does it."""
    lines = [f"stop {s.name}: {s.message}" for s in plan.stop_containers]
    lines += [f"stop sandbox {id_}" for id_ in plan.stop_sandboxes]
    lines += [f"remove container {id_}" for id_ in plan.remove_containers]
    if plan.create_sandbox:
        lines.append(f"create a sandbox, attempt {plan.sandbox_attempt}")
    if plan.resize is not None:
        names = ", ".join(one.container.spec.name for one in plan.resize.containers)
        lines.append(f"resize {names or 'the pod'}")
    lines += [f"start {s.container.spec.name}, attempt {s.attempt}" for s in plan.start]
    lines += [
        mask_text(f"{name} waits: {why.reason}" + (f": {why.message}" if why.message else ""))
        for name, why in plan.waiting.items()
    ]
    if plan.finished:
        lines.append("every container has ended for good")
    return lines or ["nothing to do"]


def _masked(value: Any, mask: Mask) -> bytes:
    return mask_bytes(_encode(mask(_builtins(value))))


def _builtins(value: Any) -> Any:
    """Return dicts and lists, without fields of the API that are not set."""
    return msgspec.to_builtins(value)


def _mask_result(found: Any) -> Any:
    if isinstance(found, dict):
        for name in ("status", "image"):
            if isinstance(found.get(name), dict):
                mask_runtime_object(found[name])
        found.pop("info", None)  # of a verbose answer: the configuration of the runtime
        for name in ("image_filesystems", "container_filesystems"):
            for usage in found.get(name) or ():
                usage["timestamp"] = 0  # else each answer differs
        mask_runtime_object(found)
    return found
