"""Variables from a file that a container wrote: `KEY='value'`, as a shell reads it.

The strict part of the shell's syntax that the Go kubelet takes (pkg/kubelet/util/env): values in
single quotes, literally and over several lines if need be; comments and blank lines between.
A space after `=` makes an empty value, as in a shell.
"""

from __future__ import annotations

from collections.abc import Iterator

_BLANK = " \t"


def env_file_value(text: str, key: str) -> str | None:
    """Return the first value of a key; None where the file has no such key.

    Raises ValueError naming the line for what is before it and cannot be read.
    """
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        line = line.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            raise _invalid(number, "missing '='")
        if not name:
            raise _invalid(number, "empty variable name")
        if name != name.rstrip(_BLANK):
            raise _invalid(number, "whitespace before '=' is not allowed")
        value = "" if rest.startswith((" ", "\t")) else _quoted(number, rest, lines)
        if name == key:
            return value
    return None


def _quoted(number: int, rest: str, lines: Iterator[tuple[int, str]]) -> str:
    """Read a quoted value to its end, which may be on a later line."""
    if not rest.startswith("'"):
        raise _invalid(number, "value must be enclosed in single quotes")
    value, last, rest = "", number, rest[1:]
    while "'" not in rest:
        value += f"{rest}\n"
        following = next(lines, None)
        if following is None:
            raise _invalid(number, "unclosed single quote")
        last, rest = following
    end, _, after = rest.partition("'")
    after = after.lstrip(_BLANK)
    if after and not after.startswith("#"):
        raise _invalid(last, "unexpected content after closing quote")
    return value + end


def _invalid(number: int, why: str) -> ValueError:
    return ValueError(f"invalid environment variable format at line {number}: {why}")
