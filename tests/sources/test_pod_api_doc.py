"""docs/pod-api.md has every field of the Pod API, and tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.sources import load_manifest
from kubelet_trio.sources.manifest.schema import _fields, _inner, _places
from kubelet_trio.sources.manifest.support import NEVER, NOT_YET, STATIC_POD, Refusal

ROOT = Path(__file__).parents[2]
SUPPORT = ("yes", "in part", "refused", "not the node's")
OPEN = ("yes", "in part")  # what lies below has a table of its own
OWN = (
    "metadata.deletionTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "spec.ephemeralContainers",
)


@dataclass(frozen=True)
class Row:
    """One field as the page has it."""

    support: str
    note: str
    test: str


Tables = dict[str, dict[str, Row]]  # by type and field


@functools.cache
def tables() -> Tables:
    text = (ROOT / "docs" / "pod-api.md").read_text().partition("## Fields")[2]
    found: Tables = {}
    for section in text.split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        rows = {}
        for line in body.splitlines():
            match = re.fullmatch(r"\| `(\w+)` \| ([^|]+) \| ([^|]*) \| `([^`]+)` \|", line)
            if match is not None:
                assert match[1] not in rows, f"{heading}: {match[1]} is there twice"
                rows[match[1]] = Row(match[2], match[3].strip(), match[4])
        for name in heading.split(", "):
            assert name not in found, f"{name} is there twice"
            found[name] = rows
    return found


@functools.cache
def types() -> dict[str, type[msgspec.Struct]]:
    """Return the types that a pod can be made of here, from the typed model."""
    found: dict[str, type[msgspec.Struct]] = {}
    queue: deque[type[msgspec.Struct]] = deque([Pod])
    while queue:
        kind = queue.popleft()
        if kind.__name__ in found:
            continue
        found[kind.__name__] = kind
        for name, field in _fields(kind).items():
            row = tables().get(kind.__name__, {}).get(name)
            inner = _inner(field.type)
            if inner is not None and name != "status" and (row is None or row.support in OPEN):
                queue.append(inner)
    return found


def test_the_manifest_on_the_page_loads() -> None:
    (block,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "pod-api.md").read_text(), re.DOTALL
    )
    (loaded,) = load_manifest(block.encode(), "pod-api.md", node_name="node").objects
    assert type(loaded).__name__ == "RuntimeClass"


def test_every_type_has_a_table_and_no_other() -> None:
    assert tables().keys() == types().keys()


def test_every_field_of_a_type_is_in_its_table_and_no_other() -> None:
    known: dict[str, set[str]] = {}
    for name, kind in types().items():
        rows = tables()[name]
        missing = [field for field in _fields(kind) if field not in rows]
        assert missing == [], name
        # Several types may share a table: each row must be of one of them.
        known.setdefault(",".join(rows), set()).update(_fields(kind))
    for named, fields in known.items():
        assert set(named.split(",")) - fields == set()


def rows() -> Iterator[tuple[str, Row]]:
    for kind, table in tables().items():
        for field, row in table.items():
            yield f"{kind}.{field}", row


def test_what_becomes_of_a_field_is_one_of_four() -> None:
    assert {field: row.support for field, row in rows() if row.support not in SUPPORT} == {}


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(f.name for f in functions)


def test_the_tests_exist() -> None:
    for field, row in rows():
        path, _, name = row.test.partition("::")
        assert (ROOT / "tests" / path).is_file(), field
        assert name in functions_of(path), field


def place_of(path: str) -> tuple[str, str]:
    """Return the type and field that a path of the tables names."""
    kinds = {".".join(steps): kind for steps, kind in _places()}
    place, _, field = path.replace("<c>", "containers").rpartition(".")
    return kinds[place].__name__, field.removesuffix("[]")


def test_what_is_said_to_be_refused_is() -> None:
    refused = {place_of(path) for path in (*NOT_YET, *NEVER, *STATIC_POD)}
    refused |= {(kind, "windowsOptions") for kind in ("PodSecurityContext", "SecurityContext")}
    for kind, table in tables().items():
        for field, row in table.items():
            if row.support == "refused" and field in _fields(types()[kind]):
                assert (kind, field) in refused or kind == "EphemeralContainer"


def has_row(path: str) -> bool:
    """What lies below a field that manifests may not have has no table."""
    return not any(path.startswith(f"{above}.") for above in STATIC_POD)


@pytest.mark.parametrize("path", [*filter(has_row, (*NOT_YET, *NEVER, *STATIC_POD))])
def test_what_is_refused_is_said_to_be(path: str) -> None:
    refusal: Refusal = {**NOT_YET, **NEVER, **STATIC_POD}[path]
    kind, field = place_of(path)
    row = tables()[kind][field]
    if path in OWN:
        assert "refused in a manifest" in row.note
    elif any(value not in ("", [], {}) for value in refusal.inert):
        assert row.support == "in part"
    else:
        assert row.support == "refused"
