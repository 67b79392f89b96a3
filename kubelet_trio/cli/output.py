"""`-o FORM` of the listing commands: name, json, yaml, jsonpath and custom columns. Pure.

The tables are the commands' own. Source: k8s.io/kubectl/pkg/cmd/get.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubelet_trio.cli.podstate import Json, part
from kubelet_trio.cli.tables import Table, as_list, as_text

if TYPE_CHECKING:
    from kubelet_trio.cli.jsonpath import JsonPath

FORMS = (
    *("wide", "name", "json", "yaml", "jsonpath=", "jsonpath-as-json=", "jsonpath-file="),
    *("custom-columns=", "custom-columns-file="),
)
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(m|[kMGTPE]i?|Ki)?")
_FACTORS = {"": 1.0, "m": 0.001} | {
    suffix: float(base**power)
    for base, suffixes in ((1000, "kMGTPE"), (1024, ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))
    for power, suffix in enumerate(suffixes, 1)
}


@dataclass(frozen=True, slots=True)
class Output:
    """A form of `-o`, and what it needs."""

    form: str = ""  # empty: the table
    template: JsonPath | None = None
    columns: tuple[tuple[str, JsonPath], ...] = ()

    @property
    def is_table(self) -> bool:
        """Whether the command prints its own table."""
        return self.form in ("", "wide")

    @property
    def is_wide(self) -> bool:
        """Whether the table has all columns."""
        return self.form == "wide"

    def text(self, things: Sequence[Json], *, is_one: bool = False, headers: bool = True) -> str:
        """Return objects in this form, which is no table.

        Args:
            things: the objects.
            is_one: whether one object was named: it is printed without a list around it.
            headers: whether columns have headers.

        Raises:
            JsonPathError: the template does not fit the objects.
        """
        whole = things[0] if is_one and len(things) == 1 else as_list(list(things))
        if self.form == "name":
            return "".join(f"{object_name(thing)}\n" for thing in things)
        if self.form == "jsonpath":
            assert self.template is not None
            return self.template.text(whole)
        if self.form == "jsonpath-as-json":
            assert self.template is not None
            return "".join(as_text(found, "json") for found in self.template.find(whole))
        if self.form == "custom-columns":
            return self._columns_of(things, headers=headers)
        return as_text(whole, self.form)

    def _columns_of(self, things: Sequence[Json], *, headers: bool) -> str:
        from kubelet_trio.cli.jsonpath import as_text as cell

        table = Table([name for name, _ in self.columns])
        rows = [
            [
                ",".join(cell(value) for results in path.find(thing) for value in results)
                or "<none>"
                for _, path in self.columns
            ]
            for thing in things
        ]
        return table.text(rows, headers=headers)


def parse_output(text: str) -> Output:
    """Read the value of `-o`. Raises ValueError that tells the forms, and OSError of a file."""
    form, sign, rest = text.partition("=")
    if form in ("go-template", "go-template-file", "template", "templatefile"):
        raise ValueError(
            f"{form} is not supported: use jsonpath, such as "
            "-o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}', or custom-columns"
        )
    if f"{form}=" in FORMS:
        if not rest:
            example = {"jsonpath": "'{.items[*].metadata.name}'", "custom-columns": "NAME:.a.b"}
            raise ValueError(f"{form} needs a value: {form}={example.get(form, '...')}")
        return _templated(form, rest)
    if sign or f"{form}" not in FORMS:
        raise ValueError(
            f'"{text}": expected one of {", ".join(name.rstrip("=") for name in FORMS)}'
        )
    return Output(form)


def _templated(form: str, text: str) -> Output:
    from kubelet_trio.cli.jsonpath import JsonPath, relaxed

    if form.endswith("-file"):
        with open(text, encoding="utf-8") as file:
            content = file.read()
        form = form.removesuffix("-file")
        text = content
        if form == "custom-columns":
            headers, paths = (line.split() for line in [*content.splitlines(), "", ""][:2])
            if not headers or len(headers) != len(paths):
                raise ValueError(
                    f"{len(headers)} headers and {len(paths)} fields: "
                    "expected a line of headers and a line of as many fields"
                )
            text = ",".join(f"{h}:{p}" for h, p in zip(headers, paths, strict=True))
    if form == "custom-columns":
        return Output(form, columns=tuple(_column(part) for part in text.split(",")))
    # kubectl would print a template without braces as it is, which nobody wants.
    return Output(form, JsonPath(relaxed(text) if text[:1] == "." and "{" not in text else text))


def _column(text: str) -> tuple[str, JsonPath]:
    from kubelet_trio.cli.jsonpath import JsonPath, relaxed

    header, sign, path = text.partition(":")
    if not sign:
        raise ValueError(f'custom-columns: "{text}": expected HEADER:FIELD, as NAME:.metadata.name')
    return header, JsonPath(relaxed(path))


def object_name(thing: Json) -> str:
    """Return an object as `-o name` prints it: `pod/web`."""
    return f"{str(thing.get('kind', '')).lower()}/{part(thing, 'metadata').get('name', '')}"


def sort_objects(things: Sequence[Json], path: str) -> list[Json]:
    """Return objects in the order of `--sort-by`: numbers, quantities and text by their kind.

    Those without the field come first, as in kubectl. Raises `JsonPathError`.
    """
    from kubelet_trio.cli.jsonpath import JsonPath, relaxed

    template = JsonPath(path if path.startswith("{") else relaxed(path))

    def key(thing: Json) -> tuple[Any, ...]:
        found = [value for results in template.find(thing) for value in results]
        return _rank(found[0] if found else None)

    return sorted(things, key=key)


def amount_of(quantity: str) -> float | None:
    """Return a quantity such as `500m` or `1Gi` as a number; None if it is none."""
    found = _AMOUNT.fullmatch(quantity)
    return None if found is None else float(found[1]) * _FACTORS[found[2] or ""]


def _rank(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, int | float):
        return 1, float(value)
    text = str(value)
    if (amount := amount_of(text)) is not None:
        return 1, amount
    # Natural order: web-2 before web-10.
    return 2, [
        (1, "", int(piece)) if piece.isdigit() else (0, piece, 0)
        for piece in re.split(r"(\d+)", text)
        if piece
    ]
