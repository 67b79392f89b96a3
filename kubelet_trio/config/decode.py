"""Converts decoded JSON to a `KubeletConfiguration`, and reports unknown fields and bad types."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from kubelet_trio.config.errors import ConfigError
from kubelet_trio.config.types import Block, KubeletConfiguration
from kubelet_trio.config.walk import drop, pick
from kubelet_trio.durations import Duration, parse_duration

# In Go only a pointer field can tell unset from zero. These are no pointers in types.go, so a
# zero in a file means the default.
_UNSET = """
podLogsDir syncFrequency fileCheckFrequency httpCheckFrequency address port
authentication.webhook.cacheTTL authorization.mode authorization.webhook.cacheAuthorizedTTL
authorization.webhook.cacheUnauthorizedTTL registryBurst eventBurst healthzBindAddress
imagePullCredentialsVerificationPolicy streamingConnectionIdleTimeout
nodeStatusUpdateFrequency nodeStatusReportFrequency nodeLeaseDurationSeconds
imageMinimumGCAge volumeStatsAggPeriod cgroupDriver cpuManagerPolicy
cpuManagerReconcilePeriod memoryManagerPolicy memoryReservationPolicy topologyManagerPolicy
topologyManagerScope runtimeRequestTimeout hairpinMode maxPods maxOpenFiles contentType
kubeAPIBurst evictionPressureTransitionPeriod containerLogMaxSize volumePluginDir
configMapAndSecretChangeDetectionStrategy containerRuntimeEndpoint logging.format
logging.flushFrequency
"""
ZERO_IS_UNSET = frozenset(_UNSET.split())
_ZEROS = ("", 0, "0", "0s")


def normalize(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file without nulls and without zeros that mean "unset"."""
    settled: dict[str, Any] = _without_nulls(copy.deepcopy(dict(raw)))
    for path in ZERO_IS_UNSET:
        value = pick(settled, path)
        # False equals 0 in Python, and is a value of its own.
        if not isinstance(value, bool) and value in _ZEROS:
            drop(settled, path)
    # As SetDefaults_KubeletConfiguration (v1beta1/defaults.go).
    if "nodeStatusUpdateFrequency" in settled:
        settled.setdefault("nodeStatusReportFrequency", settled["nodeStatusUpdateFrequency"])
    pids = settled.get("podPidsLimit")
    if isinstance(pids, int) and pids < 0:
        settled["podPidsLimit"] = -1
    return settled


def decode(raw: Mapping[str, Any]) -> KubeletConfiguration:
    """Return the configuration in decoded JSON. Raises `ConfigError` with every bad field."""
    config, problems, _ = decode_all(raw)
    if problems:
        raise ConfigError(problems)
    return config


def decode_all(raw: Mapping[str, Any]) -> tuple[KubeletConfiguration, list[str], list[str]]:
    """Return the configuration without its bad fields, the problems, and the names left out."""
    problems = list(_unknown_fields(raw, KubeletConfiguration, ""))
    known = {k: v for k, v in raw.items() if k in KubeletConfiguration.__struct_encode_fields__}
    pulls = known.get("maxParallelImagePulls")
    # As SetDefaults_KubeletConfiguration: parallel pulls turn serializeImagePulls off.
    if isinstance(pulls, int) and pulls >= 2:
        known.setdefault("serializeImagePulls", False)
    # One field at a time: msgspec stops at the first error, and all of them are to be reported.
    left_out = []
    for name, value in list(known.items()):
        try:
            _convert({name: value})
        except msgspec.ValidationError as exc:
            problems.append(_field_problem(exc, raw))
            left_out.append(name)
            del known[name]
    return _convert(known), problems, left_out


def _convert(raw: Mapping[str, Any]) -> KubeletConfiguration:
    return msgspec.convert(raw, KubeletConfiguration, dec_hook=_from_text)


def _from_text(kind: type, value: Any) -> Any:
    if kind is not Duration:
        raise NotImplementedError(kind)
    if isinstance(value, Duration):  # from a flag
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Duration(value / 10**9)  # logging.flushFrequency may be in nanoseconds
    if not isinstance(value, str):
        raise TypeError("expected a duration such as 20s")
    return parse_duration(value)


# msgspec's names of types, in the words that manifests' errors have.
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_EXPECTED = re.compile(r"expected `([a-z| ]+)`, got `([a-z]+)`")


def _field_problem(exc: msgspec.ValidationError, raw: Mapping[str, Any]) -> str:
    text = str(exc)
    what, _, where = text.rpartition(" - at `$")
    if not where:
        return f"invalid configuration: {text}"
    path = re.sub(r"^\.", "", where.rstrip("`"))
    what = f"{what[:1].lower()}{what[1:]}"
    found = _EXPECTED.fullmatch(what)
    if found is not None:
        kinds = [_TYPES.get(kind.strip(), kind) for kind in found[1].split("|")]
        wanted = " or ".join(kind for kind in kinds if kind != "null")
        value = pick(raw, path)
        is_plain = isinstance(value, str | int | float) and "[" not in path
        got = json.dumps(value)[:80] if is_plain else _TYPES.get(found[2], found[2])
        what = f"expected {wanted}, got {got}"
    return f"invalid configuration: {path}: {what}"


def _unknown_fields(raw: Any, kind: Any, path: str) -> Iterator[str]:
    """Walk along values and types together; msgspec would silently drop unknown fields."""
    block = next((k for k in (kind, *get_args(kind)) if _is_block(k)), None)
    if isinstance(raw, list) and block is not None:
        for index, item in enumerate(raw):
            yield from _unknown_fields(item, block, f"{path}[{index}]")
    if not isinstance(raw, dict) or block is None:
        return
    known = {field.encode_name: field.type for field in msgspec.structs.fields(block)}
    for name, value in raw.items():
        here = f"{path}.{name}" if path else str(name)
        if name in known:
            yield from _unknown_fields(value, known[name], here)
        else:
            yield f"unknown field: {here}{_hint(str(name), known)}"


def _is_block(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Block)


def _hint(name: str, known: Mapping[str, Any]) -> str:
    folded = {other.lower(): other for other in known}
    import difflib  # deferred: only an error needs it

    close = difflib.get_close_matches(name.lower(), folded, n=1)
    return f" (did you mean {folded[close[0]]}?)" if close else ""


def _without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in raw.items()
        if value is not None
    }
