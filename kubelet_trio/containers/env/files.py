"""Parses the variables in a file that a container wrote (`fileKeyRef`): `KEY='value'`.

The syntax is the part of a shell's that the Go kubelet accepts (pkg/kubelet/util/env): values in
single quotes, taken literally, possibly over several lines; comments and blank lines. A space
after `=` means an empty value, as in a shell.

The content is untrusted: it is read in one pass, once for all variables that refer to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_BLANK = " \t"

# The Go kubelet limits a line to 64 KiB (bufio.MaxScanTokenSize); this limits the whole file.
MAX_ENV_FILE = 64 * 1024


@dataclass(frozen=True, slots=True)
class EnvFileValues:
    """The first value of each key in a file, up to the first syntax error."""

    values: Mapping[str, str]
    problem: str = ""  # the syntax error, with its line; "" if there is none

    def get(self, key: str) -> str | None:
        """Return a key's value; None if the file has no such key.

        Raises ValueError if the key is not found before a syntax error.
        """
        value = self.values.get(key)
        if value is None and self.problem:
            raise ValueError(self.problem)
        return value


def parse_env_file(text: str) -> EnvFileValues:
    """Parse a file of variables."""
    values: dict[str, str] = {}
    try:
        for name, value in _assignments(text):
            values.setdefault(name, value)
    except ValueError as exc:
        return EnvFileValues(values, str(exc))
    return EnvFileValues(values)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    # A line ends at \n or \r\n only; `splitlines` would split at ten more characters.
    split = (line.removesuffix("\r") for line in text.split("\n"))
    lines = iter(enumerate(split, start=1))
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
        yield name, "" if rest.startswith((" ", "\t")) else _quoted(number, rest, lines)


def _quoted(number: int, rest: str, lines: Iterator[tuple[int, str]]) -> str:
    """Read a quoted value to its end, which may be on a later line."""
    if not rest.startswith("'"):
        raise _invalid(number, "value must be enclosed in single quotes")
    parts: list[str] = []
    last, rest = number, rest[1:]
    while "'" not in rest:
        parts.append(rest)
        following = next(lines, None)
        if following is None:
            raise _invalid(number, "unclosed single quote")
        last, rest = following
    end, _, after = rest.partition("'")
    after = after.lstrip(_BLANK)
    if after and not after.startswith("#"):
        raise _invalid(last, "unexpected content after closing quote")
    return "\n".join((*parts, end))


def _invalid(number: int, why: str) -> ValueError:
    return ValueError(f"invalid environment variable format at line {number}: {why}")
