"""Finds settings that are not built yet, and settings without effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubelet_trio.config.flags import KubeletFlags
from kubelet_trio.config.gates import OTHERS, gate_problems
from kubelet_trio.config.managers import idle_fields
from kubelet_trio.config.table import BY_PATH, FIELDS, FLAGS, SERVER, Row, Support
from kubelet_trio.config.types import DEFAULTS, KubeletConfiguration
from kubelet_trio.config.walk import leaves

LEAVES = dict(leaves(KubeletConfiguration))
_FLAG_DEFAULTS = KubeletFlags()


def default_of(row: Row) -> Any:
    """Return the default value of a row."""
    if row.path:
        return LEAVES[row.path].get(DEFAULTS)
    return getattr(_FLAG_DEFAULTS, row.flag.replace("-", "_"))


def unsupported(config: KubeletConfiguration, flags: KubeletFlags) -> list[str]:
    """Return a problem for each setting that this agent does not support yet."""
    problems = [
        f"not supported yet: {row.name}: {row.why}; leave it at {_shown(default_of(row))}"
        for row, value in _changed(config, flags)
        if row.support is Support.DEFAULT
        # Fields of a disabled server have no effect, here and upstream.
        and not (row.why == SERVER and not config.enable_server)
    ]
    return problems + gate_problems(config.feature_gates)


def moot_notes(config: KubeletConfiguration, flags: KubeletFlags) -> list[str]:
    """Return a note for each setting that has no effect."""
    notes = [
        f"{row.name} has no effect: {row.why}"
        for row, _ in _changed(config, flags)
        # `--kubeconfig` is what makes this node one of a cluster.
        if row.support is Support.MOOT or (row.support is Support.API and not flags.kubeconfig)
    ]
    notes += [f"{BY_PATH[path].name} has no effect: {why}" for path, why in idle_fields(config)]
    others = sorted(OTHERS.intersection(config.feature_gates))
    notes += [f"feature gate {name} has no effect: it is of other components" for name in others]
    return notes


def _changed(config: KubeletConfiguration, flags: KubeletFlags) -> Iterator[tuple[Row, Any]]:
    for row in (*FIELDS, *FLAGS):
        value = (
            LEAVES[row.path].get(config) if row.path else getattr(flags, row.flag.replace("-", "_"))
        )
        if value != default_of(row):
            yield row, value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "" or value == [] or value == {}:
        return "its default (unset)"
    return f"its default ({value})"
