"""Parses flag values: the text after `--flag` to plain data, by the rules of Go's flag types."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from kubelet_trio.durations import Duration, parse_duration

# The spellings of Go's strconv.ParseBool.
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_value(flag: str, kind: Any, text: str) -> Any:
    """Read one flag's value. Raises ValueError with the reason."""
    special = _SPECIAL.get(flag)
    return special(text) if special else _BY_TYPE[str(kind)](text)


def parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f'"{text}" is not true or false')


def parse_int(text: str) -> int:
    """Read a number as Go's ParseInt with base 0: 0x, 0o, 0b or a leading 0 for octal."""
    # Python's base 0 refuses "010"; Go reads it as octal.
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1:].isdecimal()
    try:
        value = int(text, 8 if octal else 0)
    except ValueError:
        raise ValueError(f'"{text}" is not a whole number') from None
    if not -(2**63) <= value < 2**63:
        raise ValueError("value out of range")
    return value


def parse_list(text: str) -> list[str]:
    """Read one line of CSV, the format of pflag's string slices."""
    import csv  # deferred: few command lines have a list

    if not text:
        return []
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as exc:
        raise ValueError(str(exc)) from exc
    return rows[0] if rows else []


def parse_map(text: str, sign: str = "=") -> dict[str, str]:
    """Read `key=value,key=value`, ignoring spaces around keys and values."""
    found = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, there, value = item.partition(sign)
        if not there:
            raise ValueError(f"malformed pair, expect string{sign}string")
        found[key.strip()] = value.strip()
    return found


def _parse_bool_map(text: str) -> dict[str, bool]:
    return {key: parse_bool(value) for key, value in parse_map(text).items()}


def _parse_headers(text: str) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for item in filter(None, text.split(",")):
        name, there, value = item.partition(":")
        if not there:
            raise ValueError("malformed pair, expect string:string")
        headers.setdefault(name.strip(), []).append(value.strip())
    return headers


def _parse_ip(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _parse_taints(text: str) -> list[dict[str, str]]:
    """Read `key=value:effect` and `key:effect`; what is in the parts is checked with the rest.

    Source: ParseTaints in pkg/util/taints.
    """
    taints: dict[tuple[str, str], dict[str, str]] = {}
    for item in text.split(",") if text else ():
        # kubectl's form that removes a taint is accepted, and the node has none yet.
        is_removal = item.endswith("-")
        pair, *effects = item.removesuffix("-").split(":")
        key, *values = pair.split("=")
        if not key or len(values) > 1 or len(effects) > 1 or not (is_removal or any(effects)):
            raise ValueError(f"invalid taint spec: {item}")
        if is_removal:
            continue
        effect, value = effects[0], "".join(values)
        if (key, effect) in taints:
            raise ValueError(f"duplicated taints with the same key and effect: {item}")
        taints[key, effect] = {"key": key, "value": value, "effect": effect}
    return list(taints.values())


def _parse_reserved_memory(text: str) -> list[dict[str, Any]]:
    # ReservedMemoryVar in pkg/util/flag: several nodes in one flag, or one flag for each.
    found = []
    for each in filter(None, text.split(";")):
        node, there, limits = each.partition(":")
        if not there or not limits:
            raise ValueError(f"{each!r} is not numaNodeID:type=quantity[,type=quantity...]")
        found.append({"numaNode": parse_int(node), "limits": parse_map(limits)})
    return found


def _parse_vmodule(text: str) -> list[dict[str, Any]]:
    return [
        {"filePattern": pattern, "verbosity": parse_int(level)}
        for pattern, level in parse_map(text).items()
    ]


_SPECIAL: Mapping[str, Callable[[str], Any]] = {
    "address": _parse_ip,
    "eviction-hard": lambda text: parse_map(text, "<"),
    "eviction-soft": lambda text: parse_map(text, "<"),
    "healthz-bind-address": _parse_ip,
    "manifest-url-header": _parse_headers,
    "register-with-taints": _parse_taints,
    "reserved-memory": _parse_reserved_memory,
    "vmodule": _parse_vmodule,
}
_BY_TYPE: Mapping[str, Callable[[str], Any]] = {
    str(str): str,
    str(bool): parse_bool,
    str(bool | None): parse_bool,
    str(int): parse_int,
    str(int | None): parse_int,
    str(float): float,
    str(Duration): parse_duration,
    str(list[str]): parse_list,
    str(list[int]): lambda text: [parse_int(item) for item in parse_list(text)],
    str(dict[str, str]): parse_map,
    str(dict[str, bool]): _parse_bool_map,
}
